import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from autorecompute.backends.registry import render, variables
from autorecompute.backends.torch.forecast.plans_file import read_plans_file
from autorecompute.emit import NOT_MEASURED, RENDERERS, hand_out
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.figures import Figures, KnobFigures, Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.training_job import SETTINGS
from fake_backend.controller import FILE_NOTE, MODE_VARIABLE, PLANS_VARIABLE, READ_BY, plans_text
from unit.conftest import build_result

CONFIG = Config.parse(["blocks.*/gelu:drop", "blocks.*/linear:drop"])
CONFIGS = [CONFIG, Config(), Config.parse(["whole model:light"])]
AWKWARD_FOLDERS = ["with space", "it's", 'double"quote', "$HOME `id` \\", "new\nline", "ümlaut", "-n; exit 7"]


def answer(config=CONFIG, *, of_best=(), **changes):
    changed = {"config": config, "relative_throughput": None, **dict(of_best)}
    command = ["python", "train.py", "--note", "two words"]
    return build_result(CONFIG, of_best=changed, **{"command": command, **changes})


def emitted(form, result, folder=Path("/studies/bert/best")):
    """What is printed of a study whose files lie in the folder, and the variables that it is about."""
    rendered = render(result.best.config, result.best.knobs, result.versions, folder)
    return RENDERERS[form](result, rendered), rendered.variables


def source(text, folder, environment=None):
    """The memory variables of a process that a POSIX shell starts after it has read the text."""
    file = folder / "emitted.sh"
    file.write_text(text)
    command = ["/bin/sh", "-c", 'set -eu; . "$1"; exec /usr/bin/env -0', "sh", str(file)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment or {}).stdout
    pairs = (pair.partition("=")[::2] for pair in printed.split("\0"))
    return {name: value for name, value in pairs if name in variables()}


def statements(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


def comments(form, result):
    return "\n".join(line for line in emitted(form, result)[0].splitlines() if line.startswith("#"))


@pytest.mark.parametrize(
    ("config", "folder"), [*((CONFIG, folder) for folder in AWKWARD_FOLDERS), *((config, "a") for config in CONFIGS)]
)
def test_what_is_sourced_reaches_a_child_and_nothing_that_an_earlier_study_left(config, folder, tmp_path):
    text, variables = emitted("shell", answer(config), tmp_path / folder)
    left = {MODE_VARIABLE: "whole", PLANS_VARIABLE: "/other/plans.json"}
    assert source(text, tmp_path, left) == variables


@pytest.mark.parametrize("sign", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\0"])
def test_no_value_breaks_out_of_its_comment(sign, tmp_path):
    evil = f"x{sign}touch {tmp_path}/broken-out{sign}EVIL=1"
    honest = answer()
    result = dataclasses.replace(
        honest,
        study=evil,
        problem=evil,
        command=["python", evil],
        versions={**honest.versions, evil: evil},
        device=dataclasses.replace(honest.device, name=evil),
        best=dataclasses.replace(honest.best, description=evil),
    )
    for form in ("shell", "dotenv"):
        assert statements(emitted(form, result)[0]) == statements(emitted(form, honest)[0])
    source(emitted("shell", result)[0], tmp_path)
    assert not (tmp_path / "broken-out").exists()


@pytest.mark.parametrize("config", CONFIGS)
def test_dotenv_lines_are_names_and_plain_values(config):
    text, variables = emitted("dotenv", answer(config))
    assert dict(line.split("=", 1) for line in statements(text)) == variables


@pytest.mark.parametrize("folder", AWKWARD_FOLDERS)
def test_dotenv_refuses_what_its_readers_disagree_about(folder):
    with pytest.raises(UsageError, match="--format shell"):
        emitted("dotenv", answer(), Path("/studies") / folder)


def test_json_holds_the_config_and_the_figures_and_kept_knobs_are_told_with_what_they_gained():
    result = answer()
    text, variables = emitted("json", result)
    plain = json.loads(text)
    assert plain["environment"] == variables
    assert Config.parse(plain["config"]) == result.best.config
    for name in ("batch", "samples_per_second", "peak_bytes", "limit_bytes", "confirmed"):
        assert plain[name] == getattr(result.best, name)
    for name in ("study", "problem", "verdict", "verdict_sentence", "versions", "command"):
        assert plain[name] == getattr(result, name)
    assert (plain["relative_throughput"], plain["baseline"]["peak_bytes"]) == (None, None)
    gain = {"throughput_ratio": 1.08, "low": 1.05, "high": 1.11}
    kept = KnobFigures(name="fused_kernels", outcome=Outcome.OK, kept=True, **gain)
    left = KnobFigures(name="whole_graph", outcome=Outcome.OK, **gain)
    result = answer(knobs=(kept, left), of_best={"knobs": ("fused_kernels",)})
    told = comments("shell", result)
    assert "fused_kernels 1.08x (1.05-1.11)" in told
    assert "whole_graph" not in told
    assert "FAKE_FUSED=1" in statements(emitted("dotenv", result)[0])


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_comments_tell_where_variables_come_from_and_what_was_not_measured_or_need_not_be_set(form):
    result = answer()
    told = comments(form, result)
    for value in (result.study, result.problem, result.verdict_sentence, result.best.config.hash, result.device.name):
        assert value in told
    for value in (*result.versions.values(), *result.command, str(result.best.batch), FILE_NOTE, f"only in {READ_BY}"):
        assert value in told
    assert MODE_VARIABLE in told.partition("must not be set: ")[2]
    early = comments(form, answer(compared=False, rival=None))
    assert "# largest batch without recompute: not measured" in early.splitlines()
    baseline = Figures(outcome=Outcome.OK, samples_per_second=40.0, peak_bytes=2**30)
    assert NOT_MEASURED in comments(form, answer(baseline=baseline))
    assert NOT_MEASURED not in comments(form, answer(baseline=baseline, of_best={"relative_throughput": 0.9}))
    needless = comments(form, answer(Config()))
    assert "nothing has to be set" in needless
    assert "without 'autorecompute run'" not in needless


def test_a_python_file_says_what_it_needs_and_no_more():
    versions = {"torch": "2.13.0", "model": "Blocks 0123456789ab", "backend": "torch"}
    config = Config.parse(["blocks.*:checkpoint"])
    (plans,) = emitted("python", answer(config, versions=versions))[1]
    for allocator, given in {"": {}, **SETTINGS}.items():
        result = answer(config, versions={**versions, "allocator": allocator})
        text, variables = emitted("python", result)
        told = comments("python", result)
        assert "call apply_recompute(model)" in told
        assert "def apply_recompute(model):" in text
        assert "autorecompute.apply(model)" not in told
        assert "plans file" not in told
        settings = [f"{name}={value}" for name, value in variables.items() if name != plans]
        assert settings == [f"{name}={value}" for name, value in given.items()]
        assert not settings or f"to be set in the environment: {' '.join(settings)}" in told
        # A file of plans would recompute the same modules once more.
        assert plans in told.partition("must not be set: ")[2].partition("\n")[0]


def test_a_study_without_a_fitting_config_gives_nothing_out(begin):
    nothing = dataclasses.replace(build_result(verdict=Verdict.NO_FIT), best=None)
    for result, words in ((nothing, "holds the memory limit"), (nothing.ending(SearchEnd.TIME), "has no answer yet")):
        with pytest.raises(NothingFitsError, match=words):
            hand_out(begin(), result)


@pytest.fixture
def folder(begin):
    return begin(result=answer(trials=0))


@pytest.mark.parametrize(("options", "form"), [([], "shell"), (["--format", "json"], "json")])
def test_the_verb_prints_what_the_format_renders(call, folder, options, form):
    assert call("emit", "bert", *options) == (0, emitted(form, folder.result(), folder.best)[0], "")


def test_the_verb_writes_a_file_that_others_may_read(call, folder, tmp_path):
    other, new = tmp_path / "other", tmp_path / "new.sh"
    other.touch()
    assert call("emit", "bert", "-o", "new.sh")[:2] == (0, "")
    assert source(new.read_text(), tmp_path) == emitted("shell", folder.result(), folder.best)[1]
    assert new.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("damaged", [None, "", plans_text(CONFIG)[:-5], plans_text(Config()), "\udcff"])
def test_a_plans_file_that_is_not_the_measured_one_is_made_anew_and_no_other(call, folder, damaged):
    """So that a study that cannot be written is emitted all the same."""
    file = folder.best / "plans.json"
    if damaged is not None:
        file.write_bytes(damaged.encode(errors="surrogateescape"))
    assert call("emit", "bert")[0] == 0
    assert file.read_text() == plans_text(CONFIG)
    before = file.stat()
    call("emit", "bert")
    assert os.path.samestat(file.stat(), before)


BLOCKS = ["h.*:checkpoint"]
CHEAP, DEAR = ["h.*/gelu:drop"], ["h.*.mlp:checkpoint:2"]
VERSIONS = {"backend": "torch", "torch": "2.13.0", "model": "Net 12", "python": "3.11.9"}


def forecast(choices, share, *, holds, **more):
    return {"choices": choices, "peak_bytes": 2**30, "recompute_share": share, "holds_limit": holds, **more}


@pytest.fixture
def emit(tmp_path, call):
    def emit(*options, **changes):
        peak = {
            "forecasts": [
                forecast([], 0.0, holds=False),
                forecast(BLOCKS, 0.3, holds=True, reserved_holds_limit=False),
            ],
            "frontier": [
                *(forecast(choices, share, holds=True) for choices, share in ((BLOCKS, 0.3), (DEAR, 0.2))),
                forecast(CHEAP, 0.1, holds=False),
            ],
        }
        presets = {"none": [], "blocks": BLOCKS}
        plain = {"presets": presets, "versions": VERSIONS, "peak": peak, "command": "tune", **changes}
        (tmp_path / "looked.json").write_text(json.dumps(plain))
        return call("emit", "looked.json", *options)

    return emit


@pytest.mark.parametrize(
    ("name", "choices"),
    [("blocks", BLOCKS), ("best", DEAR), (Config.parse(CHEAP).hash, CHEAP), (Config.parse(DEAR).hash[:6], DEAR)],
    ids=["preset", "best", "hash", "short hash"],
)
def test_a_planned_config_is_given_out_as_unmeasured(emit, tmp_path, name, choices):
    code, printed, _ = emit("--unmeasured", name)
    assert (code, json.loads(printed)["unmeasured"]) == (0, True)
    (tmp_path / "plans.json").write_text(printed)
    found = read_plans_file(tmp_path / "plans.json")
    assert (found.config, found.model, found.is_unmeasured) == (Config.parse(choices), "Net 12", True)


def test_the_best_is_one_that_the_allocator_can_hold(emit):
    on_card = [
        forecast([], 0.0, holds=None, reserved_holds_limit=False),
        forecast(BLOCKS, 0.3, holds=None, reserved_holds_limit=True),
        forecast(CHEAP, 0.1, holds=None, reserved_holds_limit=None),
    ]
    code, printed, _ = emit("--unmeasured", "best", peak={"forecasts": on_card, "frontier": []})
    assert (code, json.loads(printed)["plans"]) == (0, BLOCKS)
    over = {"forecasts": [forecast(BLOCKS, 0.1, holds=True, reserved_holds_limit=False)], "frontier": []}
    code, printed, complaint = emit("--unmeasured", "best", peak=over)
    assert (code, printed) == (UsageError.exit_code, "")
    assert "--memory-limit" in complaint


def test_python_says_so_too(emit):
    code, printed, _ = emit("--unmeasured", "blocks", "--format", "python")
    assert code == 0
    assert "# unmeasured: no step was run with config" in printed
    assert "# peak: 1.00 GiB, predicted" in printed
    compile(printed, "recompute.py", "exec")


@pytest.mark.parametrize(
    ("options", "backend", "words"),
    [
        ([], "torch", "no study"),
        (["--unmeasured", "none"], "torch", "recomputes nothing"),
        (["--unmeasured", "missing"], "torch", "none, blocks"),
        (["--unmeasured", ""], "torch", "none, blocks"),
        (["--unmeasured", "blocks", "--format", "shell"], "torch", "json or python"),
        (["--unmeasured", Config.parse(CHEAP).hash, "--format", "python"], "torch", "checkpoint"),
        (["--unmeasured", "blocks"], "ortmodule", "Tune the script"),
    ],
)
def test_what_cannot_be_given_out_as_unmeasured_is_told_with_a_way_out(emit, options, backend, words):
    code, printed, complaint = emit(*options, versions={**VERSIONS, "backend": backend})
    assert (code, printed) == (UsageError.exit_code, "")
    assert words in complaint


@pytest.mark.parametrize(
    "changes",
    [{"presets": 3}, {"presets": {"blocks": ["\x1b[2J"]}}, {"versions": {"backend": 5}}, {"peak": {"frontier": [{}]}}],
)
def test_a_file_that_is_not_what_plans_printed_is_refused(emit, changes):
    code, printed, complaint = emit("--unmeasured", "blocks", **changes)
    assert (code, printed) == (UsageError.exit_code, "")
    assert "'looked.json'" in complaint
    assert "plans SCRIPT --fake --json" in complaint
    assert "\x1b" not in complaint
