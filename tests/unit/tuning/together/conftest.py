import contextlib

import pytest

from autorecompute.studies import Problem, Sizes
from autorecompute.studies.sharing import SharedStudy, parse_storage
from autorecompute.studies.tuned import Tuned
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from stand_ins.sharing import LIMIT, shorten_lives


@pytest.fixture
def root(make_root):
    return make_root()


@pytest.fixture
def open_shared(root):
    def open_shared():
        return SharedStudy(parse_storage(f"journal:{root}/journal"), "bert", lambda _: None)

    return open_shared


@pytest.fixture
def work_in(root, open_shared, tune_in, make_bench, make_detection):
    def work_in(place, bench=None, *, name="Some Processor", outside_bytes=None, **settings):
        device = Device(kind="cpu", name=name, uuid=f"device-{place}", total_bytes=16 * GIB)
        detection = make_detection(device=device, resting_bytes=100 * MIB, outside_bytes=outside_bytes)
        folder = root / str(place)
        folder.mkdir(exist_ok=True)
        bench = bench or make_bench(detection)
        bench.detection = detection
        return tune_in(folder, bench, shared=open_shared(), **settings)

    return work_in


@pytest.fixture
def begin_other(open_shared, make_detection, make_space):
    with contextlib.ExitStack() as workers:

        def begin_other():
            worker = open_shared()
            workers.callback(worker.leave)
            detection = make_detection(resting_bytes=100 * MIB)
            tuned = Tuned(
                problem=Problem.of(detection, LIMIT), sizes=Sizes.of(detection), command=("python", "train.py")
            )
            worker.join(tuned, make_space(), is_limit_free=False)
            return worker

        yield begin_other


@pytest.fixture
def partner(begin_other):
    return begin_other()


@pytest.fixture
def short_lives(monkeypatch):
    shorten_lives(monkeypatch)
