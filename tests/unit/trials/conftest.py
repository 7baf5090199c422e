"""Workers without torch, which do what a test says."""

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from autorecompute import codec
from autorecompute.trials import Job
from autorecompute.trials.private import private_folder
from autorecompute.trials.process import WorkerProcess
from autorecompute.worker.protocol import Settings

WORKER = Path(__file__).with_name("fake_worker.py")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FakeJob(Job):
    """A job whose workers need no torch."""

    def worker_command(self, batch):
        """The command of the fake worker."""
        return [sys.executable, str(self.script), *self.script_arguments(batch)]


@pytest.fixture
def worker_folder(tmp_path, make_detection):
    """A folder in which fake workers find what they detect, and leave who they are."""
    folder = tmp_path / "worker"
    folder.mkdir()
    (folder / "detection.json").write_bytes(codec.encode(make_detection()))
    return folder


@pytest.fixture
def make_job(worker_folder):
    """Builds a job whose workers do what is said."""

    def make(actions, **fields):
        return FakeJob(script=WORKER, arguments=(str(worker_folder), *actions.split()), **fields)

    return make


@pytest.fixture
def is_gone(worker_folder):
    """Whether a process ends within a few seconds: the last worker, ``pid``, the nth one or its ``child``."""

    def is_gone(name="pid"):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int((worker_folder / name).read_text()))
            for _ in range(100):
                if process.status() == psutil.STATUS_ZOMBIE:
                    return True
                time.sleep(0.05)
            return False
        return True

    return is_gone


@pytest.fixture
def sockets(monkeypatch):
    """The folder that takes the workers' sockets; its path is short, for a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="ar-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield private_folder()


@pytest.fixture
def start(tmp_path, make_job, sockets):
    """Starts a worker that does what is said."""
    started = []

    def start(actions="", *, command=None, log=tmp_path / "worker.log", **variables):
        command = command or make_job(actions).worker_command(None)
        worker = WorkerProcess(command, {**os.environ, **variables}, log, lambda address: Settings(address=address))
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
    assert list(sockets.iterdir()) == []
