import contextlib
import fcntl
import functools
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from training_scripts import STAND_IN
from warm import start_server
from workplace import FREED_AT_ONCE, OWN_TRAINING, PLAIN_BATCH, SCRIPTS, Finished, Workplace

ONE_THREAD = Path(__file__).parents[2] / "benchmarks" / "replay" / "one_thread"

PLAIN = ("plain_transformer.py", "--backend", "torch", "--batch-flag=--bs")
"""What follows ``tune`` for the transformer in plain PyTorch, which starts much sooner than in ORTModule."""

HAND_WRITTEN_PLAN = "FusedMatMul+Add+:1:-1"
"""What a user of ORTModule could have switched on by hand; it saves a part of the transformer's peak."""


@pytest.fixture(scope="session")
def warm_executable():
    """An interpreter whose processes are forked from one that has imported torch."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, start_server(Path(folder)) as python:
        yield str(python)


@pytest.fixture(scope="module")
def warm_python(warm_executable):
    """Has the tests start processes that need not import torch, where that is not what they test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_executable)
        yield


PYTHON = sys.executable


@pytest.fixture
def cold_python(monkeypatch):
    """What the test starts is a process of its own from its start on."""
    monkeypatch.setattr(sys, "executable", PYTHON)


def pytest_addoption(parser):
    parser.addoption("--every-study", action="store_true", help="look at the plans of every study, not of two")
    parser.addoption("--record-golden", action="store_true", help="record what the studies' plans are now")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ONE_THREAD), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def scripts():
    return SCRIPTS


@pytest.fixture
def workplace(tmp_path, temporary):
    with contextlib.closing(Workplace(tmp_path, temporary)) as workplace:
        yield workplace


@pytest.fixture(scope="session")
def make_workplace(tmp_path_factory, temporary):
    with contextlib.ExitStack() as stack:

        def make(name, **variables):
            place = Workplace(tmp_path_factory.mktemp(name), temporary, **variables)
            return stack.enter_context(contextlib.closing(place))

        yield make


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory that all tests of a module share."""
    return make_workplace("place")


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def once(shared):
    def once(name, run):
        kept = shared / f"{name}.json"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(asdict(run())))
        return Finished(**json.loads(kept.read_text()))

    return once


@pytest.fixture(scope="session")
def share_workplace(shared, temporary):
    with contextlib.ExitStack() as stack:

        def share(name, python=None):
            path = shared / name
            path.mkdir(exist_ok=True)
            place = Workplace(path, temporary, python=python, **FREED_AT_ONCE)
            return stack.enter_context(contextlib.closing(place))

        yield share


@pytest.fixture(scope="session")
def road(share_workplace):
    return share_workplace("road")


@pytest.fixture(scope="session")
def tune_transformer():
    # The script's own batch is compared with no smaller one: each process of such a pair exports the model anew.
    command = ("transformer.py", "--max-trials", "3", "--json")

    def tune(place, study, limit):
        return place.tune(*command, "--memory-limit", limit, "--study", study, arguments=("--bs", "192"))

    return tune


@pytest.fixture(scope="session")
def unlimited(once, road, tune_transformer):
    return once("unlimited", lambda: tune_transformer(road, "unlimited", "1000GiB"))


@pytest.fixture(scope="session")
def by_hand(tmp_path_factory):
    file = tmp_path_factory.mktemp("by-hand") / "by_hand.json"
    file.write_text(json.dumps([HAND_WRITTEN_PLAN]))
    return {"ORTMODULE_MEMORY_OPT_CONFIG": str(file)}


@pytest.fixture(scope="session")
def limit_bytes(once, unlimited, road, by_hand):
    trained = once("by-hand", lambda: road.train("transformer.py", "--bs", "192", "--steps", "4", **by_hand))
    return (unlimited.answer["best"]["peak_bytes"] + trained.printed_peak_bytes) // 2


@pytest.fixture(scope="session")
def tuned(once, road, tune_transformer, limit_bytes):
    return once("limited", lambda: tune_transformer(road, "limited", str(limit_bytes)))


@pytest.fixture(scope="session")
def plain_road(share_workplace, warm_executable):
    """Warm whichever test comes first: a fork holds 40 MiB more, and what is measured here limits later tunings."""
    return share_workplace("plain-road", warm_executable)


@pytest.fixture(scope="session")
def plain_forecasts(once, plain_road):
    command = ("-m", "autorecompute", "plans", str(SCRIPTS / PLAIN[0]), *PLAIN[1:], "--batch", str(PLAIN_BATCH))
    run = functools.partial(plain_road.start, *command, "--peak", "--json")
    looked = once("plain-forecasts", lambda: plain_road.finish(run()))
    assert looked.code == 0, looked.stderr
    return {forecast["config"]: forecast["peak_bytes"] for forecast in looked.answer["peak"]["forecasts"]}


@pytest.fixture(scope="session")
def plain_limit_bytes(plain_forecasts):
    return (plain_forecasts["none"] + min(plain_forecasts.values())) // 2


@pytest.fixture(scope="session")
def in_plain_pytorch():
    return {"PYTHONPATH": os.pathsep.join([str(STAND_IN), os.environ["PYTHONPATH"]])}


@pytest.fixture(scope="module")
def train_plainly(place):
    return functools.cache(lambda *arguments: place.finish(place.start(OWN_TRAINING, *arguments)))


@pytest.fixture(scope="module")
def find_rest(place):
    """Finds the bytes that a script's process holds between its steps while it is tuned; machines differ in them.

    Its trials tell them: on some processors the first steps leave 10 MiB and more that are not there before.
    """

    def find(script, *options):
        training = (script, *options, "--memory-limit", "1024GiB", "--study", "rest", "--", "--steps", "14")
        finished = place.finish(place.start("-m", "autorecompute", "train", *training))
        assert finished.code == 0, finished.stderr
        return max(trial["measurement"]["held_bytes"] for trial in place.study("rest").trials)

    return find


@pytest.fixture(scope="module")
def forecasts(place):
    looked = place.finish(place.start("-m", "autorecompute", "plans", OWN_TRAINING, "--peak", "--json"))
    return looked.answer["peak"]["forecasts"]


@pytest.fixture(scope="module")
def limit(find_rest, forecasts):
    steps = [forecast["live_bytes"] for forecast in forecasts]
    return f"{find_rest(OWN_TRAINING) + min(steps) + (max(steps) - min(steps)) * 2 // 5}"


@pytest.fixture(scope="module")
def begin(limit):
    def begin(place, study, *arguments, steps=36, share=1.0):
        options = ("--memory-limit", str(int(share * int(limit))), "--study", study, "--tuning-steps", str(steps))
        return place.start("-m", "autorecompute", "train", OWN_TRAINING, *options, "--", *arguments)

    return begin
