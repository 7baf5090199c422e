import dataclasses
import itertools

import pytest

from autorecompute.figures import CurvePoint, Figures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search import BatchChooser
from autorecompute.search.fastest_batch import MOST_TUNED, START
from autorecompute.search.micro_batches import MicroBatchChooser, divisors

RESTING, LIMIT = 1000, 11000
LIMITS = LIMIT, RESTING


@dataclasses.dataclass
class Device:
    """A device on which batches are measured as a chooser asks."""

    sample_bytes: int = 100  # what a sample takes without recompute
    least_bytes: int = 40  # what it takes at least with recompute
    start_bytes: int = 0  # what a whole process takes beyond that
    start_seconds: float = 1.0  # of a step, whatever its batch
    sample_seconds: float = 0.01
    cost: float = 0.2  # what full recompute adds to a step, as a share; less recompute costs in proportion
    tells_peaks: bool = True  # whether a batch that is too large has a peak, or dies
    curve: list[CurvePoint] = dataclasses.field(default_factory=list)
    tuned: list[int] = dataclasses.field(default_factory=list)

    def explore(self, chooser):
        for _ in range(40):
            if (batch := chooser.without(self.curve)) is not None:
                self._keep(CurvePoint(batch=batch, without=self._without(batch)))
            elif (batch := chooser.recomputed(self.curve)) is not None:
                self.tuned.append(batch)
                self._keep(CurvePoint(batch=batch, without=self._without(batch), recomputed=self._with(batch)))
            else:
                return self
        raise AssertionError(f"no end: {[point.batch for point in self.curve]}")

    @property
    def plain(self):
        return [point.batch for point in self.curve if point.recomputed is None]

    @property
    def largest(self):
        return (LIMIT - RESTING - self.start_bytes) // self.sample_bytes

    def _keep(self, point):
        known = {entry.batch: entry for entry in self.curve}
        assert known.get(point.batch) is None or known[point.batch].recomputed is None, "measured before"
        assert point.recomputed is not None or point.batch not in known, "measured before"
        known[point.batch] = point
        self.curve = [known[batch] for batch in sorted(known)]

    def _without(self, batch):
        peak = RESTING + self.start_bytes + batch * self.sample_bytes
        speed = batch / (self.start_seconds + batch * self.sample_seconds)
        if peak <= LIMIT:
            return Figures(outcome=Outcome.OK, batch=batch, peak_bytes=peak, samples_per_second=speed)
        if not self.tells_peaks:
            return Figures(outcome=Outcome.OOM, batch=batch)
        return Figures(outcome=Outcome.OVER_LIMIT, batch=batch, peak_bytes=peak, samples_per_second=speed)

    def _with(self, batch):
        least = RESTING + batch * self.least_bytes
        if least + self.start_bytes > LIMIT:
            return Recomputed(study="s", description="none", figures=Figures(), least_peak_bytes=least)
        share = (self.sample_bytes - (LIMIT - RESTING) / batch) / (self.sample_bytes - self.least_bytes)
        speed = batch / (self.start_seconds + batch * self.sample_seconds) / (1 + self.cost * max(share, 0))
        figures = Figures(outcome=Outcome.OK, batch=batch, peak_bytes=LIMIT, samples_per_second=speed)
        return Recomputed(study="s", description="x", figures=figures, least_peak_bytes=least, config=Config())


def point_of(batch, outcome=Outcome.OK, **figures):
    return CurvePoint(batch=batch, without=Figures(outcome=outcome, batch=batch, **figures))


def speed_of(point):
    recomputed = point.recomputed.figures.samples_per_second if point.fits_with else None
    return max(recomputed or 0, point.without.samples_per_second if point.fits_without else 0)


@pytest.mark.parametrize("tells_peaks", [True, False])
@pytest.mark.parametrize(("sample_bytes", "start_bytes"), [(100, 0), (100, 800), (7, 300), (900, 100), (2000, 0)])
def test_the_largest_batch_that_fits_is_found_in_a_few_processes(sample_bytes, start_bytes, tells_peaks):
    device = Device(sample_bytes, start_bytes=start_bytes, tells_peaks=tells_peaks).explore(BatchChooser(*LIMITS))
    largest = max(point.batch for point in device.curve if point.fits_without)
    assert 0.95 * device.largest - 1 <= largest <= device.largest
    assert len(device.plain) <= 9


def test_no_batch_is_far_beyond_what_was_seen_to_fit_and_the_answer_is_near_the_best_there_is():
    device = Device(sample_bytes=1).explore(BatchChooser(*LIMITS))
    without = sorted(device.plain)
    assert without[0] == START
    assert all(after <= 8 * before for before, after in itertools.pairwise(without))
    for start_seconds, cost in itertools.product([0.2, 1.0, 5.0], [0.05, 0.2, 0.5]):
        device = Device(start_seconds=start_seconds, cost=cost).explore(BatchChooser(*LIMITS))
        found = max(speed_of(point) for point in device.curve)
        every = [
            CurvePoint(batch=batch, without=device._without(batch), recomputed=device._with(batch))
            for batch in range(1, 251)
        ]
        assert found >= 0.96 * max(map(speed_of, every))


def test_peaks_that_bend_are_followed_and_smaller_batches_measured_where_throughput_falls():
    """Two peaks around the limit tell more than the first one, in which the start of a process hides samples."""

    class Bent(Device):
        def _without(self, batch):
            return dataclasses.replace(super()._without(batch), peak_bytes=max(8000, RESTING + batch * 100))

    device = Bent().explore(BatchChooser(*LIMITS))
    assert max(point.batch for point in device.curve if point.fits_without) >= 0.95 * device.largest
    assert len(device.plain) <= 7

    class Slower(Device):
        def _without(self, batch):
            speed = max(100 - abs(batch - 20), 5)
            return dataclasses.replace(super()._without(batch), samples_per_second=speed)

    device = Slower(start_seconds=0.01).explore(BatchChooser(*LIMITS))
    fastest = max((point for point in device.curve if point.fits_without), key=speed_of)
    assert 10 <= fastest.batch <= 40
    assert len(device.tuned) <= 1


def test_growing_throughput_is_followed_to_the_largest_batch_that_pays():
    device = Device(start_seconds=100.0, cost=0.05).explore(BatchChooser(*LIMITS))
    assert device.tuned == sorted(device.tuned)
    assert device.tuned[0] > device.largest
    assert max(device.tuned) >= 0.85 * (LIMIT - RESTING) / device.least_bytes
    assert all(point.fits_with for point in device.curve if point.recomputed is not None)


@pytest.mark.parametrize("outcome", [Outcome.DIVERGED, Outcome.HANG, Outcome.TIMEOUT, Outcome.LOST])
@pytest.mark.parametrize(("fitting", "fastest", "failed"), [((8, 64, 76), 64, 32), ((4, 8, 100), 8, 16)])
def test_a_neighbour_that_failed_is_not_asked_for_again(fitting, fastest, failed, outcome):
    limits = RESTING + 100 * fitting[-1], RESTING
    curve = [
        point_of(batch, peak_bytes=RESTING + 100 * batch, samples_per_second=100.0 - abs(batch - fastest))
        for batch in fitting
    ]
    assert BatchChooser(*limits).without(curve) == failed
    tried = sorted([*curve, point_of(failed, outcome)], key=lambda point: point.batch)
    assert BatchChooser(*limits).without(tried) is None


def test_the_first_batch_that_may_fit_has_all_trials_and_a_list_is_measured_as_it_is():
    """Nothing fits so far, so that an answer comes first; later a third is for each. A listed batch alone may be it."""
    failed = point_of(8, Outcome.OOM)
    assert BatchChooser(*LIMITS).expected([failed]) == 1
    assert BatchChooser(*LIMITS).expected([point_of(4), failed]) > 1
    device = Device(sample_bytes=100).explore(BatchChooser(*LIMITS, listed=(10, 90, 110, 200, 400)))
    assert [point.batch for point in device.curve] == [10, 90, 110, 200, 400]
    assert device.tuned == [110, 200, 400]
    assert [point.fits_with for point in device.curve] == [False, False, True, True, False]
    assert BatchChooser(*LIMITS, listed=(8, 16)).may_answer(8)
    assert not BatchChooser(*LIMITS, listed=(8, 16)).may_answer(12)
    assert BatchChooser(*LIMITS).may_answer(12)


def test_where_nothing_fits_without_recompute_batches_begin_with_it_and_end_where_none_fits():
    device = Device(sample_bytes=12000, least_bytes=3000, start_seconds=100.0).explore(BatchChooser(*LIMITS))
    assert not any(point.fits_without for point in device.curve)
    assert any(point.fits_with for point in device.curve)
    assert len(device.tuned) <= MOST_TUNED
    device = Device(sample_bytes=90000, least_bytes=50000).explore(BatchChooser(*LIMITS))
    assert not any(point.fits_with for point in device.curve)
    assert len(device.curve) <= 8


def micro(listed, **more):
    return MicroBatchChooser(*LIMITS, listed=listed, **more)


def test_the_largest_micro_batch_that_fits_is_found_at_once_and_one_below_tells_the_rest():
    """100 samples fit: a pass is short beside what each takes of its own, so that more samples are faster."""
    device = Device(start_seconds=0.3)
    device.explore(micro(divisors(256), start=32))
    assert device.plain[:2] == [32, 64]
    assert max(point.batch for point in device.curve if point.fits_without) == 64


def test_micro_batches_with_recompute_are_tuned_as_long_as_they_may_win_and_the_smallest_where_none_fits_without():
    device = Device(start_seconds=3.0).explore(micro(divisors(256), start=64))
    assert device.tuned[0] in {128, 256}
    best = max(device.curve, key=speed_of)
    assert best.batch in device.tuned
    device = Device(sample_bytes=20_000, least_bytes=4_000, start_seconds=1.0).explore(micro((1, 2, 4), start=1))
    assert device.plain == []
    assert device.tuned == [1, 2, 4]
    assert max(device.curve, key=speed_of).batch == 2


@pytest.mark.parametrize(
    ("start_seconds", "total", "overheads", "tuned"),
    [(0.0, 256, {128: 0.2, 256: 0.3}, []), (3.0, 512, {128: 0.1}, [128])],
    ids=["a pass costs nothing of its own", "nothing fits the others"],
)
def test_only_what_may_pay_and_is_forecast_to_fit_is_tuned(start_seconds, total, overheads, tuned):
    device = Device(start_seconds=start_seconds).explore(micro(divisors(total), start=64, overheads=overheads))
    assert device.tuned == tuned
