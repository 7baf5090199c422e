"""``autorecompute run`` as a process: what the command that takes its place receives."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.backends.registry import render
from autorecompute.errors import NothingFitsError, SetupError, UsageError
from autorecompute.figures import Figures
from autorecompute.plans import Config
from autorecompute.result import Best, Result, SearchEnd
from autorecompute.startup import FOLDER, HOOKS_VARIABLE, prepend_to_python_path
from autorecompute.studies import Problem, StudyFolder
from autorecompute.training_job import Device
from autorecompute.verdict import Verdict
from autorecompute.worker.protocol import BATCH_VARIABLE
from fake_backend.controller import MODE_VARIABLE, PLANS_VARIABLE, STARTED, plans_text
from stand_ins import program

CONFIG = Config.parse(["blocks.*/gelu:drop"])

SHOW_ARGUMENTS = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
SHOW_ENVIRONMENT = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
SHOW_PROCESS_ID = [sys.executable, "-c", "import os; print(os.getpid())"]


def make_result(config=CONFIG, *, fits=True):
    """A study's answer."""
    best = Best(
        config=config,
        description="blocks.*/gelu",
        batch=32,
        samples_per_second=35.25,
        relative_throughput=0.9,
        peak_bytes=2**20,
        limit_bytes=2**21,
        confirmed=True,
    )
    return Result(
        study="bert",
        problem="0f1e2d3c",
        verdict=Verdict.RECOMPUTE_PAYS if fits else Verdict.NO_FIT,
        best=best if fits else None,
        baseline=Figures(),
        trials=14,
        search_end=SearchEnd.NOTHING_LEFT,
        wall_seconds=321.5,
        device=Device(kind="cpu", name="Some Processor", total_bytes=2**30),
        versions={"fake": "3.1", "backend": "fake"},
        command=["python", "train.py"],
        command_gives_batch=True,
    )


@pytest.fixture
def folder(tmp_path, make_detection):
    """A study."""
    folder = StudyFolder("bert", tmp_path / "studies")
    folder.prepare()
    folder.begin(Problem.of(make_detection(), 2**21), ["python", "train.py"])
    return folder


@pytest.fixture
def variables(folder):
    """What the study's answer is switched on with."""
    return render(CONFIG, (), make_result().versions, folder.best).variables


@pytest.fixture
def start(folder, tmp_path):
    """Starts the verb on a result with what comes after the study's name; gives its process, ended."""

    def run(*rest, result=None, stderr=subprocess.PIPE, **variables):
        folder.finish(result or make_result())
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.Popen(
            [sys.executable, program.__file__, "run", "bert", *rest],
            cwd=tmp_path,
            env={**inherited, **variables},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        process.out, process.err = process.communicate(timeout=60)
        return process

    return run


def test_the_command_takes_the_place_of_the_process(start):
    """The command runs under the process id that the verb was started with."""
    process = start("--", *SHOW_PROCESS_ID)
    assert int(process.out) == process.pid


def test_the_exit_is_the_commands_own(start):
    """The caller sees the exit code of the command, and the signal that ended it."""
    assert start("--", "sh", "-c", "exit 7").returncode == 7
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        assert start("--", "sh", "-c", f"kill -{number.value} $$").returncode == -number


@pytest.mark.parametrize(
    "arguments", [["--version", "-h", "--help"], ["--", "a b", "", "*"], ["--study", "-", "--lr=3", "{batch}", "-o"]]
)
def test_arguments_arrive_untouched(start, arguments):
    """Flags that the tuner has too, a further --, blanks and empty words reach the command as they were typed."""
    process = start("--", *SHOW_ARGUMENTS, *arguments)
    assert json.loads(process.out) == arguments


def test_the_environment_arrives(start, variables):
    """The command has the study's variables, its batch, the startup folder first, and all that was there."""
    seen = json.loads(start("--", *SHOW_ENVIRONMENT, PYTHONPATH="/mine", MINE="kept").out)
    assert variables.items() <= seen.items()
    assert Path(seen[PLANS_VARIABLE]).read_text() == plans_text(CONFIG)
    assert seen[BATCH_VARIABLE] == "32"
    assert seen["PYTHONPATH"].split(os.pathsep) == [str(FOLDER), "/mine"]
    assert seen["MINE"] == "kept"


def test_a_replaced_variable_is_told(start, variables):
    """A variable that the caller had set to something else is replaced, and both values are named on stderr."""
    process = start("--", *SHOW_ENVIRONMENT, **{PLANS_VARIABLE: "/old.json", BATCH_VARIABLE: "32"})
    value = variables[PLANS_VARIABLE]
    assert json.loads(process.out)[PLANS_VARIABLE] == value
    assert PLANS_VARIABLE in process.err
    assert "/old.json" in process.err
    assert value in process.err
    assert BATCH_VARIABLE not in process.err


@pytest.mark.parametrize("config", [CONFIG, Config()])
def test_a_variable_that_would_overrule_the_config_is_removed(start, config):
    """A mode of the caller's does not reach the command, which is told on stderr."""
    process = start("--", *SHOW_ENVIRONMENT, result=make_result(config), **{MODE_VARIABLE: "whole"})
    assert MODE_VARIABLE not in json.loads(process.out)
    assert MODE_VARIABLE in process.err


def test_what_a_terminal_would_obey_in_a_variable_is_written_out(start):
    """The value of a variable that is taken away is shown, and none of it is obeyed."""
    process = start("--", "true", **{MODE_VARIABLE: "\x1b[2J"})
    assert f"{MODE_VARIABLE}=\\x1b[2J of your environment" in process.err


def test_the_command_starts_where_nobody_reads_what_is_replaced(start):
    """A reader of messages that has gone keeps nothing from being run."""
    reader, writer = os.pipe()
    os.close(reader)
    process = start("--", *SHOW_PROCESS_ID, stderr=writer, **{PLANS_VARIABLE: "/old.json"})
    os.close(writer)
    assert (process.returncode, int(process.out)) == (0, process.pid)


def test_nothing_is_said_where_nothing_is_replaced(start):
    """A clean environment gives no word on stderr."""
    assert start("--", "true").err == ""


def test_the_functions_of_the_training_system_are_called_and_no_others(start):
    """A process calls what the backend wants called when it imports a module, whatever was set before."""
    process = start("--", *SHOW_ENVIRONMENT, **{HOOKS_VARIABLE: "[]"})
    hooks = json.loads(process.out)[HOOKS_VARIABLE]
    assert STARTED.function in hooks
    assert STARTED.missed in hooks
    assert HOOKS_VARIABLE in process.err


@pytest.mark.parametrize("rest", [[], ["--"], ["--", "no-such-command-anywhere"], ["--", "/"], ["--", ""]])
def test_a_command_that_cannot_be_started_is_a_wrong_usage(start, rest):
    """No command, an unknown one and a folder end in one sentence or two and the exit code of wrong usage."""
    process = start(*rest)
    assert process.returncode == UsageError.exit_code
    assert "Traceback" not in process.err
    assert process.out == ""


def test_a_plans_file_that_nobody_can_write_starts_nothing(start, folder):
    """The command is not started with a variable that points to something else."""
    folder.best.rmdir()
    folder.best.write_text("no folder")
    process = start("--", *SHOW_PROCESS_ID)
    assert (process.returncode, process.out) == (SetupError.exit_code, "")


def test_a_study_without_a_fitting_config_starts_nothing(start):
    """Where no config fits, the command is not started."""
    process = start("--", *SHOW_PROCESS_ID, result=make_result(fits=False))
    assert (process.returncode, process.out) == (NothingFitsError.exit_code, "")


@pytest.mark.parametrize("inherited", ["", "/a", f"/a{os.pathsep}/b"])
def test_the_startup_folder_comes_first_and_once(inherited):
    """Prepending twice gives the folder once, and no empty entry, which would mean the working directory."""
    path = prepend_to_python_path(prepend_to_python_path(inherited))
    assert path.split(os.pathsep) == [str(FOLDER), *filter(None, inherited.split(os.pathsep))]
