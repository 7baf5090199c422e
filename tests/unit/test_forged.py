"""Studies that somebody made by hand: what they say beyond their config reaches no shell and no process."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.controller import NAME as ORTMODULE
from autorecompute.cli import main
from autorecompute.studies import Problem, StudyFolder
from stand_ins.printed import has_no_data

EVIL = {"X=1; touch pwned; Y": "v", "LD_PRELOAD": "./evil.so"}
VERBS = {
    "emit": ["emit", "evil"],
    "emit dotenv": ["emit", "evil", "--format", "dotenv"],
    "emit json": ["emit", "evil", "--format", "json"],
    "run": ["run", "evil", "--", "true"],
    "show": ["show", "evil"],
    "show json": ["show", "evil", "--json"],
    "report": ["report", "evil"],
    "check": ["check", "evil", "--", "train.py"],
    "compare": ["studies", "compare", "evil", "evil"],
    "export": ["studies", "export", "evil"],
}


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Calls a verb beside the studies; gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def forge(tmp_path, make_detection, make_result):
    """Makes a finished study, and puts fields of one's own into one of its files."""

    def forge(name="result.json", *, versions=None, **fields):
        folder = StudyFolder("evil", tmp_path / "studies")
        folder.prepare()
        folder.begin(Problem.of(make_detection(), 2**30), ["python", "train.py"])
        folder.finish(make_result(trials=0))
        file = folder.path / name
        plain = json.loads(file.read_text())
        place = plain["best"] if name == "result.json" else plain
        place.update(fields)
        if versions is not None:
            plain["versions"] = versions
        file.write_text(json.dumps(plain))
        return folder

    return forge


@pytest.fixture
def in_a_shell(call):
    """What ``eval "$(autorecompute emit evil)"`` leaves in the environment, after whatever it does."""

    def evaluate():
        code, out, err = call("emit", "evil")
        shell = ["/bin/sh", "-c", 'eval "$(cat)"; env -0']
        done = subprocess.run(shell, input=out, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
        return code, dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry), err

    return evaluate


@pytest.mark.parametrize("verb", VERBS)
def test_variables_of_somebody_elses_are_refused_by_name(call, forge, verb, tmp_path):
    """A study that stores variables is not read by any verb: one sentence names the file and the field."""
    forge(environment=EVIL)
    code, out, err = call(*VERBS[verb])
    assert code == 3
    assert has_no_data(VERBS[verb], code, out)
    assert len(err.splitlines()) == 1
    assert "result.json" in err
    assert "'best.environment' is unknown" in err
    assert not (tmp_path / "pwned").exists()


def test_a_shell_sees_nothing_of_them(in_a_shell, forge, tmp_path):
    """Evaluating what is emitted of such a study runs nothing and sets nothing."""
    forge(environment=EVIL)
    code, seen, _ = in_a_shell()
    assert code == 3
    assert not {"X", "Y", "LD_PRELOAD"} & set(seen)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("study.json", {"environment": EVIL}, "'environment' is unknown"),
        ("result.json", {"config": ["rm -rf"]}, "Result"),
        ("result.json", {"knobs": ["../evil"]}, "setting '../evil'"),
    ],
)
def test_whatever_else_a_file_holds_is_refused_by_name(call, forge, name, fields, told):
    """Fields that no version writes, rows that are none, and settings that do not exist end in a sentence."""
    forge(name, **fields)
    code, out, err = call("emit", "evil")
    assert code in {2, 3}
    assert out == ""
    assert len(err.splitlines()) == 1
    assert told in err


@pytest.mark.parametrize("backend", ["..os", "nothing", "fake.controller", ""])
def test_a_name_from_a_file_imports_nothing(call, forge, backend):
    """A training system that is none is told, whatever module there may be of its name."""
    forge(versions={"fake": "3.1", "backend": backend})
    code, out, err = call("emit", "evil")
    assert (code, out) == (3, "")
    assert "training system" in err


ROWS = [
    "a;touch pwned;b",
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    'x"; touch pwned; "',
    "a b",
    "*",
    "ü",
]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("version", ["1.18.0", "1.19.2"])
def test_whatever_a_plan_is_called_a_shell_reads_it_as_text(in_a_shell, call, forge, row, version):
    """The name of a plan comes from a file: quoted in a shell, refused in a dotenv file where readers disagree."""
    forge(
        config=[f"{row}:1"],
        versions={"torch": "2.4.1", "onnxruntime": version, "backend": ORTMODULE},
    )
    code, seen, err = in_a_shell()
    assert (code, err) == (0, "")
    value = seen["ORTMODULE_MEMORY_OPT_CONFIG"]
    assert (value if version == "1.18.0" else json.loads(Path(value).read_text())[0]) == f"{row}:1:-1"
    assert not Path("pwned").exists()
    code, out, err = call("emit", "evil", "--format", "dotenv")
    if version == "1.18.0":
        assert (code, out) == (2, "")
        assert "--format shell" in err


@pytest.mark.parametrize("row", ["a\0b", "a\nb", "a\x1b[31mb", "a\ud800b"])
@pytest.mark.parametrize("verb", ["emit", "emit dotenv", "run", "show", "report"])
def test_a_plan_that_no_variable_can_hold_is_refused(call, forge, row, verb):
    """A NUL byte, a line break or half a character in a plan's name ends in a sentence, and nothing is started."""
    forge(
        config=[f"{row}:1"],
        versions={"torch": "2.4.1", "onnxruntime": "1.18.0", "backend": ORTMODULE},
    )
    code, out, err = call(*VERBS[verb])
    assert code in {2, 3}
    assert (out, len(err.splitlines())) == ("", 1)


@pytest.mark.parametrize("verb", ["emit", "run", "show", "report"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder of links"])
def test_a_plans_file_that_leads_elsewhere_is_not_written(call, forge, tmp_path, kind, verb):
    """A link in the place of the file or of its folder is refused and nothing behind it changes; no pipe is read."""
    folder, mine = forge(), tmp_path / "mine.json"
    mine.write_text("mine")
    if kind == "folder of links":
        folder.best.rmdir()
        folder.best.symlink_to(tmp_path)
    elif kind == "pipe":
        os.mkfifo(folder.best / "plans.json")
    else:
        (folder.best / "plans.json").symlink_to(mine)
    code, out, err = call(*VERBS[verb])
    assert (code, out) == (3, "")
    assert "could end up elsewhere" in err
    assert mine.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "studies"}
