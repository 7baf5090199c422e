import contextlib
import dataclasses
import shutil

import pytest

from autorecompute.studies import Problem, Sizes
from autorecompute.studies.problem import Head
from autorecompute.studies.shared_study import SharedStudy
from autorecompute.studies.storage import parse_storage
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from autorecompute.waiting import OutOfTime
from stand_ins.formula import FormulaBench
from stand_ins.sharing import LIMIT
from stand_ins.studies import COMMAND


@pytest.fixture
def root(make_root, empty_database):
    """Where the database is, and a folder for each worker."""
    root = make_root()
    shutil.copy(empty_database, root / "shared.db")
    return root


@pytest.fixture
def open_shared(root):
    """Opens the study for one more worker."""
    return lambda: SharedStudy(parse_storage(f"sqlite:///{root}/shared.db"), "bert")


@pytest.fixture
def work_in(root, open_shared, tune_in, make_detection):
    """Begins a session of one worker, on a device and in a folder of its own."""

    def work_in(place, bench=None, *, name="Some Processor", outside_bytes=None, **settings):
        device = Device(kind="cpu", name=name, uuid=f"device-{place}", total_bytes=16 * GIB)
        if bench is None:
            bench = FormulaBench(make_detection(device=device, resting_bytes=100 * MIB, outside_bytes=outside_bytes))
        bench.detection = dataclasses.replace(bench.detection, device=device)
        folder = root / str(place)
        folder.mkdir(exist_ok=True)
        # Optuna takes a tenth of a second for each trial.
        return tune_in(folder, bench, shared=open_shared(), **{"max_trials": 10, **settings})

    return work_in


@pytest.fixture
def begin_other(open_shared, make_detection, make_space):
    """Lets one more worker join, whenever the test says."""
    with contextlib.ExitStack() as workers:

        def begin_other():
            worker, detection = open_shared(), make_detection(resting_bytes=100 * MIB)
            workers.callback(worker.close)
            head = Head.of("bert", COMMAND, Problem.of(detection, LIMIT), Sizes.of(detection))
            worker.join(head, make_space(), is_limit_free=False)
            return worker

        yield begin_other


@pytest.fixture
def partner(begin_other):
    return begin_other()


@pytest.fixture
def end_wait(monkeypatch):
    """Lets the time be over for whoever waits for the others or its device, at the nth pause."""

    def end_wait(pauses):
        left = iter(range(pauses - 1))

        def pause(_seconds):
            if next(left, None) is None:
                raise OutOfTime

        for module in ("tuning.ledger", "trials.private"):
            monkeypatch.setattr(f"autorecompute.{module}.pause", pause)

    return end_wait
