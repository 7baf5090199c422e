import functools

import pytest

from autorecompute.studies import StudyFolder
from autorecompute.trials import Job
from autorecompute.tuning.batches.batch_tuner import BatchTuner
from autorecompute.tuning.context import TuningContext, TuningSettings
from autorecompute.units import MIB


class Several:
    def __init__(self, root, make_bench, watcher, batches=(), **changes):
        script = root / "train.py"
        script.touch()
        self.folder, self.watcher = StudyFolder("bert", root / "studies"), watcher
        self.folder.prepare()
        self.benches = {}
        self._make_bench = make_bench
        batch = batches[0] if batches else 8
        self.lead = make_bench(batch)
        asked = {"limit_bytes": 600 * MIB, "max_trials": 40, "timeout_seconds": None, "sampler": "greedy"}
        asked |= {"batch": batch}
        place = TuningContext(
            job=Job(script=script, batch_flag="--bs"),
            bench=self.lead,
            folder=self.folder,
            settings=TuningSettings(**{**asked, **changes}),
            progress=watcher,
        )
        self.tuner = BatchTuner(place, batches, self.open_bench)

    def open_bench(self, batch, _folder):
        assert batch not in self.benches
        self.benches[batch] = self._make_bench(batch)
        return self.benches[batch]

    def run(self):
        return self.tuner.run()

    @property
    def watched(self):
        return [batch for config, batch in self.lead.watched if config.is_none]

    @property
    def has_measured(self):
        return bool(self.lead.watched or self.lead.measured or self.benches)


@pytest.fixture(scope="module")
def begin_in(make_bench, make_detection, make_watcher):
    def begin(root, batches=(), *, formula=None, adapt=lambda bench: bench, **changes):
        def make(batch):
            return adapt(make_bench(make_detection(batch=batch, resting_bytes=100 * MIB), **(formula or {})))

        return Several(root, make, make_watcher(), batches, **changes)

    return begin


@pytest.fixture
def begin(begin_in, make_root):
    return functools.partial(begin_in, make_root())


@pytest.fixture
def begin_timed(make_root, make_timed_bench, make_detection, make_watcher):
    root = make_root()

    def begin(batches, **changes):
        def make(batch):
            return make_timed_bench(make_detection(batch=batch, resting_bytes=100 * MIB))

        return Several(root, make, make_watcher(), batches, **changes)

    return begin


@pytest.fixture(scope="module")
def best(begin_in, make_root):
    several = begin_in(make_root())
    return several, several.run()


@pytest.fixture(scope="module")
def listed(begin_in, make_root):
    several = begin_in(make_root(), (8, 16, 24, 64))
    return several, several.run()
