"""What ``autorecompute emit`` prints, read back by the programs it is for."""

import argparse
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from autorecompute.backends.registry import render, variables
from autorecompute.cli import emit
from autorecompute.emit.formats import RENDERERS
from autorecompute.emit.handing import hand_out
from autorecompute.emit.provenance import NOT_MEASURED
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.figures import Figures, KnobFigures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Best, Result, SearchEnd
from autorecompute.studies import Problem, StudyFolder
from autorecompute.training_job import Device
from autorecompute.verdict import Verdict
from fake_backend.controller import FILE_NOTE, MODE_VARIABLE, PLANS_VARIABLE, READ_BY, plans_text

OPAQUE = Config.parse(["whole model:light"])
CONFIG = Config.parse(["blocks.*/gelu:drop", "blocks.*/linear:drop"])
AWKWARD_FOLDERS = ["plain", "with space", "it's", 'double"quote', "$HOME `id` \\", "new\nline", "ümlaut", "-n; exit 7"]


def make_result(config=CONFIG, **changes):
    """A study's answer, with some numbers measured and some not."""
    best = Best(
        config=config,
        description="blocks.*/gelu and blocks.*/linear",
        batch=32,
        samples_per_second=35.25,
        relative_throughput=None,
        peak_bytes=771_751_936,
        limit_bytes=943_718_400,
        confirmed=True,
    )
    fields = {
        "study": "bert",
        "problem": "0f1e2d3c",
        "verdict": Verdict.RECOMPUTE_PAYS,
        "best": best,
        "baseline": Figures(outcome=Outcome.OOM, batch=32),
        "trials": 14,
        "search_end": SearchEnd.NOTHING_LEFT,
        "wall_seconds": 321.5,
        "device": Device(kind="cpu", name="Some Processor, 2 cores", total_bytes=16 * 2**30),
        "versions": {"torch": "2.13.0", "fake": "3.1", "backend": "fake"},
        "command": ["python", "train.py", "--note", "two words"],
        "command_gives_batch": True,
    }
    return Result(**{**fields, **changes})


def emitted(form, result, folder=Path("/studies/bert/best")):
    """What is printed of a study whose files lie in the folder, and the variables that it is about."""
    rendered = render(result.best.config, result.best.knobs, result.versions, folder)
    return RENDERERS[form](result, rendered), rendered.variables


def printed(form, result):
    """What is printed of a study."""
    return emitted(form, result)[0]


def source(text, folder, environment=None):
    """The memory variables after a POSIX shell has read the text."""
    file = folder / "emitted.sh"
    file.write_text(text)
    names = " ".join(f'"${{{name}-unset}}"' for name in variables())
    script = f'set -eu; . "$1"; printf "%s\\0" {names}'
    command = ["/bin/sh", "-c", script, "sh", str(file)]
    values = subprocess.run(command, check=True, capture_output=True, text=True, env=environment or {}).stdout
    pairs = zip(variables(), values.split("\0"), strict=False)
    return {name: value for name, value in pairs if value != "unset"}


def statements(text):
    """The lines that a reader acts on."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def comments(text):
    """The lines for people."""
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("folder", AWKWARD_FOLDERS)
def test_a_shell_reads_the_values_back(folder, tmp_path):
    """Sourcing the shell form sets exactly the config's variables, whatever signs the path has."""
    text, variables = emitted("shell", make_result(), tmp_path / folder)
    assert source(text, tmp_path) == variables


def test_what_is_sourced_reaches_a_child(tmp_path):
    """The shell form exports: a process started afterwards has the variables."""
    text, variables = emitted("shell", make_result())
    (tmp_path / "emitted.sh").write_text(text)
    command = ["/bin/sh", "-c", f'. "$1"; printenv {PLANS_VARIABLE}', "sh", str(tmp_path / "emitted.sh")]
    seen = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert seen.stdout.rstrip("\n") == variables[PLANS_VARIABLE]


@pytest.mark.parametrize("config", [CONFIG, Config(), OPAQUE])
def test_a_shell_forgets_what_an_earlier_study_left(config, tmp_path):
    """Sourcing the shell form leaves no variable that would overrule the config."""
    text, variables = emitted("shell", make_result(config))
    left = {MODE_VARIABLE: "whole", PLANS_VARIABLE: "/other/plans.json"}
    assert source(text, tmp_path, left) == variables


@pytest.mark.parametrize("sign", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\0"])
def test_no_value_breaks_out_of_its_comment(sign, tmp_path):
    """A line break in the study, the command, the device or a version starts no statement."""
    evil = f"x{sign}touch {tmp_path}/broken-out{sign}EVIL=1"
    honest = make_result()
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
        assert statements(printed(form, result)) == statements(printed(form, honest))
    source(printed("shell", result), tmp_path)
    assert not (tmp_path / "broken-out").exists()


@pytest.mark.parametrize("config", [CONFIG, Config(), OPAQUE])
def test_dotenv_lines_are_names_and_plain_values(config):
    """Splitting the dotenv form's lines at the equals sign, as docker does, gives the config's variables."""
    text, variables = emitted("dotenv", make_result(config))
    pairs = dict(line.split("=", 1) for line in statements(text))
    assert pairs == variables


@pytest.mark.parametrize("folder", AWKWARD_FOLDERS[1:])
def test_dotenv_refuses_what_its_readers_disagree_about(folder):
    """A path outside the plain signs is refused, and the shell form named."""
    with pytest.raises(UsageError, match="--format shell"):
        emitted("dotenv", make_result(), Path("/studies") / folder)


def test_json_holds_the_config_and_the_figures():
    """The JSON form reads back as the same config, environment and measured numbers."""
    result = make_result()
    text, variables = emitted("json", result)
    plain = json.loads(text)
    assert plain["environment"] == variables
    assert Config.parse(plain["config"]) == result.best.config
    for name in ("batch", "samples_per_second", "peak_bytes", "limit_bytes", "confirmed"):
        assert plain[name] == getattr(result.best, name)
    for name in ("study", "problem", "verdict", "verdict_sentence", "versions", "command"):
        assert plain[name] == getattr(result, name)


def test_json_has_null_where_nothing_was_measured():
    """An unmeasured number is null in JSON, never 0."""
    plain = json.loads(printed("json", make_result()))
    assert plain["relative_throughput"] is None
    assert plain["baseline"]["peak_bytes"] is None


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_comments_tell_where_the_variables_come_from(form):
    """The comments hold the study, problem, verdict, config, device, versions and command."""
    result = make_result()
    told = comments(printed(form, result))
    for value in (result.study, result.problem, result.verdict_sentence, result.best.config.hash, result.device.name):
        assert value in told
    for value in (*result.versions.values(), *result.command, str(result.best.batch)):
        assert value in told


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_comments_of_an_early_answer_say_that_it_was_compared_with_nothing(form):
    """Whoever reads the file sees that a smaller batch may be faster."""
    lines = comments(printed(form, make_result(compared=False, rival=None))).splitlines()
    assert "# largest batch without recompute: not measured" in lines


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_comments_say_what_was_not_measured(form):
    """An unmeasured share of the throughput is called so, and a measured one is not."""
    unmeasured = make_result(baseline=Figures(outcome=Outcome.OK, samples_per_second=40.0, peak_bytes=2**30))
    best = dataclasses.replace(unmeasured.best, relative_throughput=0.9)
    assert NOT_MEASURED in comments(printed(form, unmeasured))
    assert NOT_MEASURED not in comments(printed(form, dataclasses.replace(unmeasured, best=best)))


def test_a_study_without_a_fitting_config_gives_nothing_out(folder):
    """A study in which no config fits has nothing to train with."""
    with pytest.raises(NothingFitsError, match="holds the memory limit"):
        hand_out(folder, make_result(best=None, verdict=Verdict.NO_FIT))


def test_a_study_whose_time_was_over_first_is_not_said_to_fit_nothing(folder):
    """It has no answer yet, and a higher limit is not what it needs."""
    open_result = make_result(best=None, verdict=Verdict.NO_FIT).ending(SearchEnd.TIME)
    with pytest.raises(NothingFitsError, match="has no answer yet"):
        hand_out(folder, open_result)


@pytest.fixture
def folder(tmp_path, make_detection):
    """A study that has an answer."""
    folder = StudyFolder("bert", tmp_path / "studies")
    folder.path.mkdir(parents=True)
    folder.begin(Problem.of(make_detection(), 943_718_400), ["python", "train.py"])
    folder.finish(make_result())
    return folder


@pytest.fixture
def call(monkeypatch, tmp_path, folder):
    """Calls the verb on the study."""
    monkeypatch.chdir(tmp_path)
    assert folder.exists()
    parser = argparse.ArgumentParser()
    emit.register(parser.add_subparsers())

    def run(*arguments):
        args = parser.parse_args(["emit", "bert", *map(str, arguments)])
        return args.run(args)

    return run


def test_the_verb_prints_what_the_format_renders(call, capsys, tmp_path):
    """Without a file, stdout holds the rendered text and nothing else."""
    best = tmp_path / "studies" / "bert" / "best"
    assert call() == 0
    assert capsys.readouterr() == (emitted("shell", make_result(), best)[0], "")
    assert call("--format", "json") == 0
    assert capsys.readouterr() == (emitted("json", make_result(), best)[0], "")


def test_the_verb_writes_a_file_that_others_may_read(call, capsys, tmp_path):
    """With -o the text goes to the file, with the permissions of any new file, and stdout stays empty."""
    other = tmp_path / "other"
    other.touch()
    call("-o", tmp_path / "new.sh")
    assert capsys.readouterr().out == ""
    assert source((tmp_path / "new.sh").read_text(), tmp_path)
    assert (tmp_path / "new.sh").stat().st_mode == other.stat().st_mode


def test_an_existing_file_is_replaced_only_by_force(call, tmp_path):
    """An existing file survives without --force and is replaced with it; no draft stays behind."""
    file = tmp_path / "existing.sh"
    file.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        call("-o", file)
    assert file.read_text() == "mine"
    call("-o", file, "--force")
    assert source(file.read_text(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"existing.sh", "studies", "emitted.sh"}


def test_a_file_that_cannot_be_written_is_a_wrong_usage(call, tmp_path):
    """A folder, a device, a missing folder and a file taken for a folder are refused, even by force."""
    for target in (
        tmp_path,
        "/dev/null",
        tmp_path / "no" / "file",
        tmp_path / "studies" / "bert" / "best" / "plans.json" / "file",
    ):
        with pytest.raises(UsageError):
            call("-o", target, "--force")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("damaged", [None, "", plans_text(CONFIG)[:-5], plans_text(Config()), "\udcff"])
def test_a_plans_file_that_is_not_the_measured_one_is_made_anew(call, tmp_path, damaged):
    """Whatever was moved, cut, edited or garbled: the file that the variables name holds the answer's plans."""
    file = tmp_path / "studies" / "bert" / "best" / "plans.json"
    if damaged is not None:
        file.parent.mkdir(parents=True)
        file.write_bytes(damaged.encode(errors="surrogateescape"))
    assert call() == 0
    assert file.read_text() == plans_text(CONFIG)


def test_a_study_that_cannot_be_written_is_emitted_all_the_same(call, tmp_path):
    """Where the file is there already, nothing is written."""
    call()
    file = tmp_path / "studies" / "bert" / "best" / "plans.json"
    before = file.stat().st_mtime_ns, file.stat().st_ino
    call()
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_variables_without_a_file_need_none():
    """Only what a variable names is written."""
    assert render(Config(), ("fused_kernels",), make_result().versions, Path("nowhere")).files == {}


@pytest.mark.parametrize("wrap", [True, False])
def test_a_program_can_see_whether_a_study_was_wrapped(wrap):
    """The JSON form has a field for it."""
    assert json.loads(printed("json", make_result(wrap=wrap)))["wrap"] is wrap


def test_what_a_variable_needs_besides_is_told():
    """The notes of the training system stand in the comments, and a variable that is set is not to be left unset."""
    result = make_result()
    result = dataclasses.replace(result, best=dataclasses.replace(result.best, knobs=("whole_graph",)))
    for form in ("shell", "dotenv"):
        told = comments(printed(form, result))
        assert FILE_NOTE in told
        assert f"only in {READ_BY}" in told
        assert MODE_VARIABLE not in told.partition("must not be set: ")[2].partition("\n")[0]
        assert MODE_VARIABLE in comments(printed(form, make_result())).partition("must not be set: ")[2]


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_a_script_that_needs_nothing_is_asked_for_nothing(form):
    """Where no recompute is the answer, the comments do not ask for a change of the script as well."""
    told = comments(printed(form, make_result(Config())))
    assert "nothing has to be set" in told
    assert "without 'autorecompute run'" not in told


def test_kept_knobs_are_told_with_what_they_gained():
    """The comments name each setting that was kept; its value is read back as any other."""
    gain = {"throughput_ratio": 1.08, "low": 1.05, "high": 1.11}
    kept = KnobFigures(name="fused_kernels", outcome=Outcome.OK, kept=True, **gain)
    left = KnobFigures(name="whole_graph", outcome=Outcome.OK, **gain)
    result = make_result()
    result = dataclasses.replace(
        result, knobs=(kept, left), best=dataclasses.replace(result.best, knobs=("fused_kernels",))
    )
    told = comments(printed("shell", result))
    assert "fused_kernels 1.08x (1.05-1.11)" in told
    assert "whole_graph" not in told
    text, variables = emitted("dotenv", result)
    assert dict(line.split("=", 1) for line in statements(text)) == variables
    assert variables["FAKE_FUSED"] == "1"


def test_a_python_file_says_what_it_needs_and_no_more():
    """Its comments name the function to call and the variables of kept settings, and nothing that shells need."""
    versions = {"torch": "2.13.0", "model": "Blocks 0123456789ab", "backend": "torch"}
    plain = make_result(Config.parse(["blocks.*:checkpoint"]), versions=versions)
    turned = dataclasses.replace(plain, best=dataclasses.replace(plain.best, knobs=("expandable_segments",)))
    for result, is_turned in ((plain, False), (turned, True)):
        text, variables = emitted("python", result)
        (plans,) = set(emitted("python", plain)[1])
        told = comments(text)
        assert "call apply_recompute(model)" in told
        assert "def apply_recompute(model):" in text
        assert "autorecompute.apply(model)" not in told
        assert "plans file" not in told
        settings = [f"{name}={value}" for name, value in variables.items() if name != plans]
        assert bool(settings) is is_turned
        assert [setting for setting in settings if f"to be set in the environment: {setting}" not in told] == []
        # A file of plans would recompute the same modules once more.
        assert plans in told.partition("must not be set: ")[2].partition("\n")[0]
