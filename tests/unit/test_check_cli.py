"""``autorecompute check`` as a command: what is run of the words after ``--``."""

import sys
from pathlib import Path

import pytest

from autorecompute.cli import main
from autorecompute.cli.check import as_typed, job_of
from autorecompute.errors import UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.trials import Bench, Job
from autorecompute.units import GIB

WORKER = ("-m", "autorecompute.worker", "train.py")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.fixture
def make_study(make_detection, make_result):
    """Makes a finished study with this in its answer; gives its name."""

    def make(**changes):
        folder, detection, result = StudyFolder("bert"), make_detection(), make_result(trials=0, **changes)
        folder.prepare()
        folder.begin(Problem.of(detection, GIB), result.command, Sizes.of(detection))
        folder.finish(result)
        return folder.name

    return make


@pytest.fixture
def study(make_study):
    """A finished study's name."""
    return make_study()


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
    assert job_of(as_typed(words)).worker_command(None) == [*start, *WORKER, *arguments]


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
    assert job_of(as_typed([*words, "settings.py"])).worker_command(None) == command


def test_a_launcher_may_be_called_like_a_script():
    """What comes first starts something."""
    assert job_of(["./launch.py", "train.py"]).worker_command(None) == ["./launch.py", *WORKER]


def test_what_comes_first_after_python_is_the_script(tmp_path):
    """Whatever it is called, and whatever its arguments are."""
    (tmp_path / "train").touch()
    command = [sys.executable, "-m", "autorecompute.worker", "train", "--config", "conf.py"]
    assert job_of(["python", "train", "--config", "conf.py"]).worker_command(None) == command


@pytest.mark.parametrize(
    "job",
    [
        {"script": Path("bin/train"), "arguments": ("--config", "conf.py")},
        {"script": Path("train.py"), "launcher": "python tools/launch.py", "arguments": ("-m", "conf.py")},
        {"script": Path("package.train"), "is_module": True, "arguments": ("settings.py",)},
        {"script": Path("package.train"), "is_module": True, "launcher": "torchrun --nproc-per-node 2"},
        {"script": Path("train.py"), "launcher": "python3 -u", "batch_flag": "--bs"},
    ],
    ids=lambda job: f"{job.get('launcher', '')} {job['script']}",
)
def test_a_study_is_checked_with_the_job_that_was_tuned(make_study, monkeypatch, job):
    """No word of its command is taken for the script but the one that was: see ``tune``."""
    Path("bin").mkdir()
    Path("bin/train").touch()
    tuned, started = Job(**job), []
    name = make_study(command=tuned.plain_command(8), script_at=tuned.script_at)

    def detect(self):
        started.append(self._job)
        raise UsageError("nothing is started here")

    monkeypatch.setattr(Bench, "detect", detect)
    assert main(["check", name]) == UsageError.exit_code
    assert started[0].worker_command(None) == tuned.worker_command(8)


def test_a_notebook_is_not_started_by_a_command(make_study, capsys):
    """One sentence says what to do instead, on the screen and where a check is asked for."""
    name = make_study(command=["python"], script_at=0)
    assert main(["check", name]) == UsageError.exit_code
    assert "was found in a notebook, which no command starts. Call autorecompute.auto" in capsys.readouterr().err
    assert main(["show", name]) == 0
    shown = capsys.readouterr().out
    assert "  autorecompute.apply(model)\nwith this set, or call autorecompute.auto again:\n  export " in shown
    assert "autorecompute run" not in shown
    assert main(["report", name]) == 0
    page = (StudyFolder(name).path / "report.html").read_text()
    assert "autorecompute.apply(model)" in page
    assert "autorecompute run bert" not in page


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
