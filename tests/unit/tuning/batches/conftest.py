import functools

import pytest

from autorecompute.tuning.session import BatchTuner
from autorecompute.units import MIB
from stand_ins.formula import FormulaBench
from stand_ins.tuning import Tuning


class Several(Tuning):
    """One session of a tuning over several batches, in a folder that outlives it; the best is searched without any."""

    def __init__(self, root, make_bench, batches=(), **changes):
        batch = batches[0] if batches else 8
        super().__init__(root, make_bench(batch), batch=batch, **changes)
        self.benches, self._make_bench = {}, make_bench
        self.tuner = BatchTuner(self.context, batches, self.open_bench)

    def open_bench(self, batch, _folder):
        assert batch not in self.benches, "a bench is opened once"
        self.benches[batch] = self._make_bench(batch)
        return self.benches[batch]

    @property
    def watched(self):
        """The batches of fresh processes without recompute on the first bench."""
        return [batch for config, batch in self.bench.watched if config.is_none]

    @property
    def has_measured(self):
        """Whether any process was started beyond the detection."""
        return bool(self.bench.watched or self.bench.measured or self.benches)


@pytest.fixture(scope="module")
def begin_in(make_detection):
    """Begins a session in a folder, on a formula."""

    def begin(root, batches=(), *, kind=FormulaBench, formula=None, adapt=lambda bench: bench, **changes):
        def make(batch):
            return adapt(kind(make_detection(batch=batch, resting_bytes=100 * MIB), **(formula or {})))

        return Several(root, make, batches, **changes)

    return begin


@pytest.fixture
def begin(begin_in, make_root):
    """Begins a session of one and the same study."""
    return functools.partial(begin_in, make_root())


@pytest.fixture
def begin_timed(begin_in, make_root, make_timed_bench):
    """Begins a session of one and the same study, in which everything takes time."""
    return functools.partial(begin_in, make_root(), kind=make_timed_bench)


@pytest.fixture(scope="module")
def best(begin_in, make_root):
    """A finished search for the best batch, and its answer."""
    several = begin_in(make_root())
    return several, several.run()
