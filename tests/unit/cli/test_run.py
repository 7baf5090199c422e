import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from autorecompute.backends.registry import render
from autorecompute.errors import NothingFitsError, SetupError, UsageError
from autorecompute.figures import Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import VARIABLE, add_evidence, read_evidence
from autorecompute.startup import FOLDER, HOOKS_VARIABLE
from autorecompute.training_job import BATCH_VARIABLE, LIMIT_VARIABLE, PEAK_VARIABLE
from autorecompute.units import format_bytes
from fake_backend.controller import IMPORT_HOOK, MODE_VARIABLE, PLANS_VARIABLE, plans_text

CONFIG = Config.parse(["blocks.*/gelu:drop"])

SHOW_ARGUMENTS = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
SHOW_ENVIRONMENT = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
SHOW_PROCESS_ID = [sys.executable, "-c", "import os; print(os.getpid())"]


@pytest.fixture
def folder(begin, make_result):
    return begin(result=make_result(CONFIG))


@pytest.fixture
def ended(start, folder):
    assert folder.exists()

    def ended(*rest, **options):
        process = start("run", "bert", *rest, **options)
        process.out, process.err = process.communicate()
        return process

    return ended


def test_the_command_takes_the_place_of_the_process_and_its_exit_is_its_own(ended, make_result):
    process, best = ended("--", *SHOW_PROCESS_ID), make_result(CONFIG).best
    assert int(process.out) == process.pid
    peak = format_bytes(best.peak_bytes)
    on = f"training with {best.description} at batch {best.batch}; its peak was {peak} when it was confirmed"
    assert process.err == f"autorecompute: {on}\n"
    assert ended("--", "sh", "-c", "exit 7").returncode == 7
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        assert ended("--", "sh", "-c", f"kill -{number.value} $$").returncode == -number


@pytest.mark.parametrize(
    "arguments", [["--version", "-h", "--help"], ["--", "a b", "", "*"], ["--study", "-", "--lr=3", "{batch}", "-o"]]
)
def test_arguments_arrive_untouched(ended, arguments):
    assert json.loads(ended("--", *SHOW_ARGUMENTS, *arguments).out) == arguments


def test_the_environment_arrives_and_what_is_replaced_in_it_is_told_also_where_nobody_reads_that(
    ended, start, unread, folder, make_result
):
    plans_file = render(CONFIG, (), make_result().versions, folder.best).variables[PLANS_VARIABLE]
    replaced = {PLANS_VARIABLE: "/old.json", BATCH_VARIABLE: "32", HOOKS_VARIABLE: "[]"}
    path = f"{FOLDER}{os.pathsep}/mine"
    process = ended("--", *SHOW_ENVIRONMENT, PYTHONPATH=path, MINE="kept", **replaced)
    seen = json.loads(process.out)
    assert seen[PLANS_VARIABLE] == plans_file
    assert Path(plans_file).read_text() == plans_text(CONFIG)
    assert seen[BATCH_VARIABLE] == "32"
    assert seen["PYTHONPATH"] == path  # with the folder once
    assert seen["MINE"] == "kept"
    assert seen[HOOKS_VARIABLE] == IMPORT_HOOK
    for words in (PLANS_VARIABLE, "/old.json", plans_file, HOOKS_VARIABLE):
        assert words in process.err
    assert BATCH_VARIABLE not in process.err
    best = make_result(CONFIG).best
    assert (int(seen[PEAK_VARIABLE]), int(seen[LIMIT_VARIABLE])) == (best.peak_bytes, best.limit_bytes)
    process = ended("--", *SHOW_PROCESS_ID, stderr=unread, **{PLANS_VARIABLE: "/old.json"})
    assert (process.returncode, int(process.out)) == (0, process.pid)
    # A study may be given by its path.
    process = start("run", str(folder.path.rename(folder.path.parent.parent / "moved")), "--", *SHOW_ENVIRONMENT)
    assert "/moved/" in json.loads(process.communicate()[0])[PLANS_VARIABLE]


@pytest.mark.parametrize("config", [CONFIG, Config()])
def test_a_variable_that_would_overrule_the_config_is_removed_and_told(ended, folder, make_result, config):
    folder.finish(make_result(of_best={"config": config}))
    process = ended("--", *SHOW_ENVIRONMENT, **{MODE_VARIABLE: "\x1b[2J"})
    seen = json.loads(process.out)
    assert MODE_VARIABLE not in seen
    assert seen["PYTHONPATH"] == str(FOLDER)  # an empty entry would be the working directory
    assert f"{MODE_VARIABLE}=\\x1b[2J of your environment" in process.err


@pytest.mark.parametrize("rest", [[], ["--"], ["--", "no-such-command-anywhere"], ["--", "/"], ["--", ""]])
def test_a_command_that_cannot_be_started_is_a_wrong_usage(ended, rest):
    process = ended(*rest)
    assert (process.returncode, process.out) == (UsageError.exit_code, "")
    assert "Traceback" not in process.err


def test_where_nothing_fits_or_no_plans_file_can_be_written_nothing_is_started(ended, folder, make_result):
    folder.best.rmdir()
    folder.best.write_text("no folder")
    process = ended("--", *SHOW_PROCESS_ID)
    assert (process.returncode, process.out) == (SetupError.exit_code, "")
    folder.finish(dataclasses.replace(make_result(verdict=Verdict.NO_FIT), best=None))
    process = ended("--", *SHOW_PROCESS_ID)
    assert (process.returncode, process.out) == (NothingFitsError.exit_code, "")


def test_a_training_is_told_where_to_keep_what_it_finds_and_the_next_run_says_it(ended, folder, monkeypatch):
    environment = json.loads(ended("--", *SHOW_ENVIRONMENT).out)
    monkeypatch.setenv(VARIABLE, environment[VARIABLE])
    add_evidence(CONFIG, "in a training, step 7: recompute of blocks.1 differs")
    add_evidence(CONFIG, "in a training, step 9: recompute of blocks.1 differs")
    with folder.evidence.open("ab") as stream:
        stream.write(b'{"config": [[[[[')  # a training that was killed
    assert "step 7: recompute of blocks.1 differs. Tune again" in ended("--", *SHOW_ENVIRONMENT).err
    assert folder.result().warnings == ("in a training, step 7: recompute of blocks.1 differs",)
    assert [(one.config, one.outcome) for one in folder.rejections()] == [(CONFIG, Outcome.WRONG_GRADIENT)]


@pytest.mark.parametrize(
    "lies_there", [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/dev/full")]
)
def test_evidence_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch, lies_there):
    file = tmp_path / "evidence.jsonl"
    lies_there(file)
    monkeypatch.setenv(VARIABLE, str(file))
    add_evidence(CONFIG, "step 7")
    assert read_evidence(file) == []
