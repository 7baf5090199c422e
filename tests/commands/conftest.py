"""Real commands, processes, signals and studies on a training that takes no time and needs no torch."""

import contextlib
import functools
import sys
import tempfile
from pathlib import Path

import pytest

from fake_backend import program
from fake_backend.clock import VARIABLE, Clock, wind
from fake_backend.trainer import launcher
from warm import start_server
from workplace import QUICK, Workplace

PYTHON = sys.executable
WARM = (
    *(f"autorecompute.cli.{verb}" for verb in ("check", "plans", "studies", "train", "tune")),
    *("autorecompute.backends.ortmodule.controller", "autorecompute.backends.torch.controller"),
    *("alembic.command", "optuna.storages._rdb.storage", "sqlalchemy.dialects.sqlite"),
    *("fake_backend.controller", "fake_backend.trainer"),
)
"""A command of these tests imports for seconds, and works for some tenths of one."""


class Desk(Workplace):
    """A working directory whose ``train.py`` the fake backend trains: 900 MiB without recompute, 420 MiB at least."""

    def __init__(self, path, temporary):
        clock = wind(path.with_suffix(".clock"))
        super().__init__(path, temporary, **{VARIABLE: clock})
        self.clock = Clock(clock)
        (path / "train.py").touch()

    @staticmethod
    def tuning(*options, arguments=()):
        rest = ["--", *arguments] if arguments else []
        return [program.__file__, "tune", "train.py", "--launcher", launcher(), *QUICK, *options, *rest]

    def begin(self, *words, **variables):
        return self.start(program.__file__, *words, **variables)

    def run(self, *words, **variables):
        return self.finish(self.begin(*words, **variables))

    def stop(self, process, *numbers):
        """Sends signals to a command whose script stands still, and has time go on until it looks around."""
        for number in numbers:
            process.send_signal(number)

        def ends():
            self.clock.advance(0.6)
            return process.poll() is not None

        self.wait_until(ends)
        return self.finish(process)


@pytest.fixture(scope="session")
def warm_executable():
    """An interpreter whose processes are forked from one that has imported what commands and workers need."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, start_server(Path(folder), WARM) as python:
        yield str(python)


@pytest.fixture(scope="module", autouse=True)
def _warm_python(warm_executable):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_executable)
        yield


@pytest.fixture(scope="module")
def cold_python():
    """Start processes of the tests' own, for which no others stand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", PYTHON)
        yield


@pytest.fixture(scope="session")
def make_desk(tmp_path_factory, temporary):
    with contextlib.ExitStack() as stack:
        path = functools.partial(tmp_path_factory.mktemp, "desk")
        yield lambda: stack.enter_context(contextlib.closing(Desk(path(), temporary)))


@pytest.fixture
def desk(make_desk):
    return make_desk()


@pytest.fixture(scope="module")
def place(make_desk):
    """One that all tests of a module share."""
    return make_desk()
