import sys
from pathlib import Path

import pytest

from autorecompute.cli.check import as_typed, job_of
from autorecompute.errors import UsageError
from autorecompute.trials import Bench, Job

PYTHON = sys.executable
WORKER = ["-m", "autorecompute.worker"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("typed", "started"),
    [
        ("train.py --bs 8", [PYTHON, *WORKER, "train.py", "--bs", "8"]),
        ("python train.py --bs 8", [PYTHON, *WORKER, "train.py", "--bs", "8"]),
        ("python train --config conf.py", [PYTHON, *WORKER, "train", "--config", "conf.py"]),
        ("/opt/bin/python3 -u train.py", ["/opt/bin/python3", "-u", *WORKER, "train.py"]),
        ("torchrun --nproc-per-node 2 train.py", ["torchrun", "--nproc-per-node", "2", *WORKER, "train.py"]),
        ("-m package.train conf.py", [PYTHON, *WORKER, "-m", "package.train", "conf.py"]),
        (
            "python -m torch.distributed.run -m package.train conf.py",
            ["python", "-m", "torch.distributed.run", *WORKER, "-m", "package.train", "conf.py"],
        ),
    ],
)
def test_a_script_or_a_module_is_started_by_what_stands_before_it(typed, started):
    """Alone or after python by this interpreter, as ``tune`` starts it, else by the launcher that is written."""
    assert job_of(as_typed(typed.split())).worker_command(None) == started


def test_a_launcher_may_be_called_like_a_script():
    assert job_of(["./launch.py", "train.py"]).worker_command(None) == ["./launch.py", *WORKER, "train.py"]


@pytest.mark.parametrize(
    "job",
    [
        {"script": Path("train"), "arguments": ("--config", "conf.py")},
        {"script": Path("train.py"), "launcher": "python tools/launch.py", "arguments": ("-m", "conf.py")},
        {"script": Path("package.train"), "is_module": True, "arguments": ("settings.py",)},
        {"script": Path("package.train"), "is_module": True, "launcher": "torchrun --nproc-per-node 2"},
        {"script": Path("train.py"), "launcher": "python3 -u", "batch_flag": "--bs"},
    ],
    ids=lambda job: f"{job.get('launcher', '')} {job['script']}",
)
def test_a_study_is_checked_with_the_job_that_was_tuned(call, begin, make_result, monkeypatch, job):
    tuned, started = Job(**job), []
    begin(result=make_result(trials=0, command=tuned.plain_command(8), script_at=tuned.script_at))

    def detect(self):
        started.append(self._job.worker_command(None))
        raise UsageError("nothing is started here")

    monkeypatch.setattr(Bench, "detect", detect)
    assert call("check", "bert")[0] == UsageError.exit_code
    assert started == [tuned.worker_command(8)]


def test_a_notebook_is_not_started_by_a_command(call, begin, make_result):
    folder = begin(result=make_result(trials=0, command=["python"], script_at=0))
    code, _, err = call("check", "bert")
    assert code == UsageError.exit_code
    assert "was found in a notebook, which no command starts. Call autorecompute.auto" in err
    shown = call("show", "bert")[1]
    assert "  autorecompute.apply(model)\nwith this set, or call autorecompute.auto again:\n  export " in shown
    assert "autorecompute run" not in shown
    assert call("report", "bert")[0] == 0
    page = (folder.path / "report.html").read_text()
    assert "autorecompute.apply(model)" in page
    assert "autorecompute run bert" not in page
