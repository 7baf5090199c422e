import json
import os
import subprocess
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.controller import NAME as ORTMODULE
from stand_ins.printed import has_no_data

EVIL = {"X=1; touch pwned; Y": "v", "LD_PRELOAD": "./evil.so"}
EMIT = "emit evil"
VERBS = [
    *(EMIT, "emit evil --format dotenv", "emit evil --format json", "run evil -- no-such-command", "show evil"),
    *("show evil --json", "report evil", "check evil -- train.py", "studies export evil"),
]


@pytest.fixture
def forge(begin, make_result):
    def forge(name="result.json", *, versions=None, **fields):
        folder = begin("evil", make_result(trials=0))
        file = folder.path / name
        plain = json.loads(file.read_text())
        place = plain["best"] if name == "result.json" else plain
        place.update(fields)
        if versions is not None:
            plain["versions"] = versions
        file.write_text(json.dumps(plain))
        return folder

    return forge


@pytest.mark.parametrize("verb", VERBS)
def test_variables_of_somebody_elses_are_refused_by_name(call, forge, verb):
    forge(environment=EVIL)
    code, out, err = call(*verb.split())
    assert code == 3
    assert has_no_data(verb.split(), code, out)
    assert len(err.splitlines()) == 1
    assert "result.json" in err
    assert "'best.environment' is unknown" in err
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("study.json", {"environment": EVIL}, "'environment' is unknown"),
        ("result.json", {"config": ["rm -rf"]}, "Result"),
        ("result.json", {"knobs": ["../evil"]}, "setting '../evil'"),
        *(
            ("result.json", {"versions": {"fake": "3.1", "backend": name}}, "training system")
            for name in ("..os", "nothing", "fake.controller", "")
        ),
    ],
)
def test_whatever_else_a_file_holds_is_refused_by_name(call, forge, name, fields, told):
    forge(name, **fields)
    code, out, err = call("emit", "evil")
    assert code in {2, 3}
    assert (out, len(err.splitlines())) == ("", 1)
    assert told in err


@pytest.mark.parametrize(
    "row",
    ["a;touch pwned;b", "$(touch pwned)", "`touch pwned`", "'; touch pwned; '", 'x"; touch pwned; "', "a b", "*", "ü"],
)
@pytest.mark.parametrize("version", ["1.18.0", "1.19.2"])
def test_whatever_a_plan_is_called_a_shell_reads_it_as_text(call, forge, row, version):
    forge(config=[f"{row}:1"], versions={"torch": "2.4.1", "onnxruntime": version, "backend": ORTMODULE})
    code, out, err = call("emit", "evil")
    assert (code, err) == (0, "")
    shell = ["/bin/sh", "-c", 'eval "$(cat)"; env -0']
    done = subprocess.run(shell, input=out, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    seen = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    value = seen["ORTMODULE_MEMORY_OPT_CONFIG"]
    assert (value if version == "1.18.0" else json.loads(Path(value).read_text())[0]) == f"{row}:1:-1"
    assert not Path("pwned").exists()
    code, out, err = call("emit", "evil", "--format", "dotenv")
    if version == "1.18.0":
        assert (code, out) == (2, "")
        assert "--format shell" in err


@pytest.mark.parametrize("row", ["a\0b", "a\nb", "a\x1b[31mb", "a\ud800b"])
@pytest.mark.parametrize("verb", [*VERBS[:2], "run evil -- no-such-command", "show evil", "report evil"])
def test_a_plan_that_no_variable_can_hold_is_refused(call, forge, row, verb):
    forge(config=[f"{row}:1"], versions={"torch": "2.4.1", "onnxruntime": "1.18.0", "backend": ORTMODULE})
    code, out, err = call(*verb.split())
    assert code in {2, 3}
    assert (out, len(err.splitlines())) == ("", 1)


@pytest.mark.parametrize("verb", [EMIT, "run evil -- no-such-command", "show evil", "report evil"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder of links"])
def test_a_plans_file_that_leads_elsewhere_is_not_written(call, forge, tmp_path, kind, verb):
    folder, mine = forge(), tmp_path / "mine.json"
    mine.write_text("mine")
    if kind == "folder of links":
        folder.best.rmdir()
        folder.best.symlink_to(tmp_path)
    elif kind == "pipe":
        os.mkfifo(folder.best / "plans.json")
    else:
        (folder.best / "plans.json").symlink_to(mine)
    code, out, err = call(*verb.split())
    assert (code, out) == (3, "")
    assert "could end up elsewhere" in err
    assert mine.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "studies"}
