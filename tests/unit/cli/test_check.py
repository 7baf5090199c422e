import sys

import pytest

from autorecompute import cli, codec
from autorecompute.cli import train
from autorecompute.cli.check import job_of
from autorecompute.errors import UsageError
from autorecompute.worker.protocol import SETTINGS_VARIABLE, Settings

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
        ("train.py settings.py", [PYTHON, *WORKER, "train.py", "settings.py"]),
        ("python train.py --bs 8", [PYTHON, *WORKER, "train.py", "--bs", "8"]),
        ("python3 train.py", [PYTHON, *WORKER, "train.py"]),
        ("python train --config conf.py", [PYTHON, *WORKER, "train", "--config", "conf.py"]),
        ("/opt/bin/python3 -u train.py", ["/opt/bin/python3", "-u", *WORKER, "train.py"]),
        ("torchrun --nproc-per-node 2 train.py", ["torchrun", "--nproc-per-node", "2", *WORKER, "train.py"]),
        ("-m package.train conf.py", [PYTHON, *WORKER, "-m", "package.train", "conf.py"]),
        ("python -m package.train conf.py", [PYTHON, *WORKER, "-m", "package.train", "conf.py"]),
        ("torchrun -m package.train conf.py", ["torchrun", *WORKER, "-m", "package.train", "conf.py"]),
        (
            "python -m torch.distributed.run -m package.train conf.py",
            ["python", "-m", "torch.distributed.run", *WORKER, "-m", "package.train", "conf.py"],
        ),
    ],
)
def test_a_script_or_a_module_is_started_by_what_stands_before_it(typed, started):
    """Alone or after python by this interpreter, as ``tune`` starts it, else by the launcher that is written."""
    assert job_of(typed.split()).worker_command(None) == started


def test_a_stored_command_is_printed_and_never_run(call, begin, make_result, tmp_path):
    """A folder that was cloned is not marked as imported, and knows the digest of any machine."""
    command = ["sh", "-c", "touch pwned", "train.py"]
    begin(result=make_result(trials=0, command=command, script_at=3))
    code, out, err = call("check", "bert")
    assert (code, out) == (UsageError.exit_code, "")
    assert "Give the command that trains: autorecompute check bert -- train.py" in err
    assert "sh -c 'touch pwned' train.py" in err
    assert not (tmp_path / "pwned").exists()


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


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("no.py train.py", "There is no script 'no.py'"),
        ("python no.py", "There is no script 'no.py'"),
        ("python --version", "No script is named in 'python --version'"),
        ("--bs 8", "No script is named in '--bs 8'"),
    ],
)
def test_a_command_that_starts_no_script_is_a_wrong_usage(call, begin, make_result, words, complaint):
    begin(result=make_result(trials=0))
    code, out, err = call("check", "bert", "--", *words.split())
    assert (code, out) == (UsageError.exit_code, "")
    assert complaint in err.splitlines()[-1]


def test_the_search_of_ranks_knows_that_checkpoints_are_replaced(monkeypatch):
    class StartedError(Exception):
        """In place of the training."""

    def start(_command, environment, _option):
        raise StartedError(environment[SETTINGS_VARIABLE])

    monkeypatch.setattr(train, "replace_process", start)
    with pytest.raises(StartedError) as started:
        cli.main(["train", "--launcher", "torchrun", "--replace-checkpointing", "train.py"])
    settings = codec.decode(str(started.value), Settings)
    assert (settings.replaces_checkpointing, settings.search.replaces_checkpointing) == (True, True)
    assert train._job_of(settings.search).replaces_checkpointing
