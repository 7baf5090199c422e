"""``autorecompute run`` as a process: what the command that takes its place receives."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute import codec
from autorecompute.backends import ORTMODULE
from autorecompute.backends.ortmodule.environment import (
    CONFIG_VARIABLE,
    LEVEL_VARIABLE,
    environment_for,
    plans_file_text,
)
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.figures import Figures
from autorecompute.measurement import Device
from autorecompute.plans import Config
from autorecompute.result import Best, Result, SearchEnd, Verdict
from autorecompute.startup import FOLDER, WRAP_VARIABLE, prepend_to_python_path
from autorecompute.worker.protocol import BATCH_VARIABLE

CONFIG = Config.parse(["Gelu+:1:-1"])

DRIVER = """
import sys, types
from pathlib import Path
from autorecompute import codec
from autorecompute.cli import main
from autorecompute.result import Result

studies = types.ModuleType("autorecompute.studies")
studies.load_result = lambda name: codec.decode(Path(name).read_text(), Result)
sys.modules["autorecompute.studies"] = studies
sys.exit(main())
"""

SHOW_ARGUMENTS = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
SHOW_ENVIRONMENT = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
SHOW_PROCESS_ID = [sys.executable, "-c", "import os; print(os.getpid())"]


def make_result(folder, config=CONFIG, *, fits=True):
    """A study's answer whose plans file lies in the folder."""
    plans_file = folder / "plans.json"
    plans_file.write_text(plans_file_text(config))
    best = Best(
        config=config,
        description="Gelu+",
        environment=environment_for(config, ort_version="1.19.2", plans_file=plans_file),
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
        versions={"onnxruntime": "1.19.2", "backend": ORTMODULE},
        command=["python", "train.py"],
        command_gives_batch=True,
    )


@pytest.fixture
def start(tmp_path):
    """Starts the verb on a result with what comes after the study's name; gives its process, ended."""
    (tmp_path / "driver.py").write_text(DRIVER)

    def run(*rest, result=None, **variables):
        study = tmp_path / "result.json"
        study.write_bytes(codec.encode(result or make_result(tmp_path)))
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "driver.py"), "run", str(study), *rest],
            env={**inherited, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
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


def test_the_environment_arrives(start, tmp_path):
    """The command has the study's variables, its batch, the startup folder first, and all that was there."""
    result = make_result(tmp_path)
    seen = json.loads(start("--", *SHOW_ENVIRONMENT, result=result, PYTHONPATH="/mine", MINE="kept").out)
    assert result.best.environment.items() <= seen.items()
    assert seen[BATCH_VARIABLE] == str(result.best.batch)
    assert seen["PYTHONPATH"].split(os.pathsep) == [str(FOLDER), "/mine"]
    assert seen["MINE"] == "kept"


def test_a_replaced_variable_is_told(start, tmp_path):
    """A variable that the caller had set to something else is replaced, and both values are named on stderr."""
    result = make_result(tmp_path)
    process = start("--", *SHOW_ENVIRONMENT, result=result, **{CONFIG_VARIABLE: "/old.json", BATCH_VARIABLE: "32"})
    value = result.best.environment[CONFIG_VARIABLE]
    assert json.loads(process.out)[CONFIG_VARIABLE] == value
    assert CONFIG_VARIABLE in process.err
    assert "/old.json" in process.err
    assert value in process.err
    assert BATCH_VARIABLE not in process.err


@pytest.mark.parametrize("config", [CONFIG, Config()])
def test_a_variable_that_would_overrule_the_config_is_removed(start, tmp_path, config):
    """A level of the caller's does not reach the command, which is told on stderr."""
    process = start("--", *SHOW_ENVIRONMENT, result=make_result(tmp_path, config), **{LEVEL_VARIABLE: "2"})
    assert LEVEL_VARIABLE not in json.loads(process.out)
    assert LEVEL_VARIABLE in process.err


def test_nothing_is_said_where_nothing_is_replaced(start):
    """A clean environment gives no word on stderr."""
    assert start("--", "true").err == ""


def test_a_wrapped_study_has_the_command_wrapped(start, tmp_path):
    """The variable that has the model wrapped is set for a study that was wrapped, and removed for any other."""
    plain = make_result(tmp_path)
    wrapped = dataclasses.replace(plain, wrap=True)
    assert json.loads(start("--", *SHOW_ENVIRONMENT, result=wrapped).out)[WRAP_VARIABLE]
    process = start("--", *SHOW_ENVIRONMENT, result=plain, **{WRAP_VARIABLE: "1"})
    assert WRAP_VARIABLE not in json.loads(process.out)
    assert WRAP_VARIABLE in process.err


@pytest.mark.parametrize("rest", [[], ["--"], ["--", "no-such-command-anywhere"], ["--", "/"], ["--", ""]])
def test_a_command_that_cannot_be_started_is_a_wrong_usage(start, rest):
    """No command, an unknown one and a folder end in one sentence or two and the exit code of wrong usage."""
    process = start(*rest)
    assert process.returncode == UsageError.exit_code
    assert "Traceback" not in process.err
    assert process.out == ""


def test_a_moved_plans_file_is_a_wrong_usage(start, tmp_path):
    """The command is not started with a variable that points to nothing."""
    result = make_result(tmp_path)
    Path(result.best.environment[CONFIG_VARIABLE]).unlink()
    process = start("--", *SHOW_PROCESS_ID, result=result)
    assert (process.returncode, process.out) == (UsageError.exit_code, "")


def test_a_study_without_a_fitting_config_starts_nothing(start, tmp_path):
    """Where no config fits, the command is not started."""
    process = start("--", *SHOW_PROCESS_ID, result=make_result(tmp_path, fits=False))
    assert (process.returncode, process.out) == (NothingFitsError.exit_code, "")


@pytest.mark.parametrize("inherited", ["", "/a", f"/a{os.pathsep}/b"])
def test_the_startup_folder_comes_first_and_once(inherited):
    """Prepending twice gives the folder once, and no empty entry, which would mean the working directory."""
    path = prepend_to_python_path(prepend_to_python_path(inherited))
    assert path.split(os.pathsep) == [str(FOLDER), *filter(None, inherited.split(os.pathsep))]
