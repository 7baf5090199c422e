"""``autorecompute check`` as a command: what is run of the words after ``--``."""

from __future__ import annotations

import sys

import pytest

from autorecompute.cli import main
from autorecompute.cli.check import as_typed, job_of
from autorecompute.errors import UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.units import GIB

WORKER = ("-m", "autorecompute.worker", "train.py")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.fixture
def study(make_detection, make_result):
    """A finished study's name."""
    folder, detection = StudyFolder("bert"), make_detection()
    folder.prepare()
    folder.begin(Problem.of(detection, GIB), ["python", "train.py"], Sizes.of(detection))
    folder.finish(make_result())
    return folder.name


@pytest.mark.parametrize(
    ("words", "start", "arguments"),
    [
        (["train.py", "--bs", "8"], [sys.executable], ["--bs", "8"]),
        (["train.py", "settings.py"], [sys.executable], ["settings.py"]),
        (["python", "train.py", "--bs", "8"], [sys.executable], ["--bs", "8"]),
        (["python3", "train.py"], [sys.executable], []),
        (["/opt/bin/python3", "-u", "train.py"], ["/opt/bin/python3", "-u"], []),
        (["torchrun", "--nproc-per-node", "2", "train.py"], ["torchrun", "--nproc-per-node", "2"], []),
    ],
    ids=" ".join,
)
def test_a_script_is_started_by_what_stands_before_it(words, start, arguments):
    """Alone or after python by this interpreter, as ``tune`` starts it, else by the launcher that is written."""
    assert job_of(as_typed(words), wrap=False).worker_command(None) == [*start, *WORKER, *arguments]


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["-m", "package.train"], [sys.executable]),
        (["python", "-m", "package.train"], [sys.executable]),
        (["torchrun", "--nproc-per-node", "2", "-m", "package.train"], ["torchrun", "--nproc-per-node", "2"]),
        (["python", "-m", "torch.distributed.run", "-m", "package.train"], ["python", "-m", "torch.distributed.run"]),
    ],
    ids=" ".join,
)
def test_a_module_is_started_by_what_stands_before_it(words, start):
    """A module that starts others is no module to tune, and a file among the arguments is no script."""
    command = [*start, "-m", "autorecompute.worker", "-m", "package.train", "settings.py"]
    assert job_of(as_typed([*words, "settings.py"]), wrap=False).worker_command(None) == command


def test_a_stored_launcher_may_be_called_like_a_script():
    """A study that was tuned with such a launcher is checked with it."""
    assert job_of(["./launch.py", "train.py"], wrap=False).worker_command(None) == ["./launch.py", *WORKER]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["no.py", "train.py"], "There is no script 'no.py'"),
        (["python", "no.py"], "There is no script 'no.py'"),
        (["python", "--version"], "No script is named in 'python --version'"),
        (["--bs", "8"], "No script is named in '--bs 8'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_that_starts_no_script_is_a_wrong_usage(study, capsys, words, complaint):
    """One sentence names what is missing, before anything is started."""
    assert main(["check", study, "--", *words]) == UsageError.exit_code
    out, err = capsys.readouterr()
    assert (out, complaint in err.splitlines()[-1]) == ("", True)
