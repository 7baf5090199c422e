import contextlib
import dataclasses
import multiprocessing.connection
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from autorecompute import codec
from autorecompute.trials import Job, process
from autorecompute.trials.private import private_folder
from autorecompute.trials.process import WorkerProcess
from autorecompute.worker.protocol import Settings

WORKER = Path(__file__).with_name("fake_worker.py")
HANG_SECONDS = 600


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """On a busy machine a process takes its time to end."""
    monkeypatch.setattr(process, "GRACE_SECONDS", HANG_SECONDS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FakeJob(Job):
    def worker_command(self, batch):
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
    def make(actions, **fields):
        return FakeJob(script=WORKER, arguments=(str(worker_folder), *actions.split()), **fields)

    return make


@pytest.fixture
def is_gone(worker_folder):
    """Whether a process ends: the last worker, ``pid``, the nth one or its ``child``."""

    def is_gone(name="pid"):
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(int((worker_folder / name).read_text()))
            deadline = time.monotonic() + HANG_SECONDS
            while worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(0.05)
            return worker.status() == psutil.STATUS_ZOMBIE
        return True

    return is_gone


@pytest.fixture
def sockets(monkeypatch):
    """The folder that takes the workers' sockets; its path is short, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="ar-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield private_folder()


@pytest.fixture
def start(tmp_path, make_job, sockets):
    started = []

    def start(actions="", *, command=None, log=tmp_path / "worker.log", **variables):
        command = command or make_job(actions).worker_command(None)
        worker = WorkerProcess(command, {**os.environ, **variables}, log, Settings())
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
    assert list(sockets.iterdir()) == []


class Clock:
    """The tuner's time, which passes where a worker says so and all that it said before was heard."""

    def __init__(self, passing):
        self.now, self._passing = 0.0, passing

    def monotonic(self):
        return self.now

    def sleep(self, _seconds):
        """Nobody has to be waited for."""

    def wait(self, ends, timeout):
        passes = timeout > 0 and self._passing.exists()
        speakers = multiprocessing.connection.wait(ends, 0 if passes else min(timeout, 0.05))
        if passes and not speakers:
            self.now += float(self._passing.read_text())
            self._passing.unlink()
        return speakers


@pytest.fixture
def clock(worker_folder, monkeypatch):
    clock = Clock(worker_folder / "passing")
    monkeypatch.setattr(process, "time", clock)
    monkeypatch.setattr(process, "wait", clock.wait)
    return clock
