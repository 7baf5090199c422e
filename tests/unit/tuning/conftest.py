import functools
import tempfile
import time
from types import SimpleNamespace

import pytest

from stand_ins.timed import Clock, TimedBench
from stand_ins.tuning import Tuning


@pytest.fixture(scope="session", autouse=True)
def _own_locks(tmp_path_factory):
    """No test waits for a tuning that measures on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_search_is_long():
    """A search by the machine's own clock never lasts so long that answers are confirmed early, however busy it is."""
    own = time.monotonic
    still = SimpleNamespace(monotonic=lambda: 0.0 if time.monotonic is own else time.monotonic())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autorecompute.tuning.confirmation.time", still)
        yield


@pytest.fixture(scope="session")
def tune_in():
    """Begins a session of the study that lies in a folder."""
    return Tuning


@pytest.fixture
def clock(monkeypatch):
    """The clock that every budget and every wait reads."""
    clock = Clock()
    monkeypatch.setattr("autorecompute.waiting.time.monotonic", clock.monotonic)
    return clock


@pytest.fixture
def make_timed_bench(clock):
    return functools.partial(TimedBench, clock)


@pytest.fixture
def make_tuning(make_root, tune_in):
    """Begins a session of one and the same study."""
    return functools.partial(tune_in, make_root())


@pytest.fixture(scope="module")
def finished(tune_in, make_root):
    tuning = tune_in(make_root())
    return tuning, tuning.run()
