import pytest

from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.studies import Problem
from autorecompute.trials.effort import Effort
from autorecompute.tuning.answer.rivals import measure_rival_batch
from autorecompute.units import MIB

RESTING, LIMIT, BATCH = 100 * MIB, 600 * MIB, 32
EFFORT = Effort()


@pytest.fixture
def problem(make_detection):
    return Problem.of(make_detection(batch=BATCH), LIMIT)


@pytest.fixture
def bench(make_bench):
    return make_bench()


class Watched:
    def __init__(self, peak_bytes, outcome=Outcome.OK):
        self.peak_bytes, self.outcome, self.batches = peak_bytes, outcome, []

    def watch(self, environment, _effort, batch):
        assert environment == {}
        self.batches.append(batch)
        peak = self.peak_bytes(batch)
        if peak is None:
            return Measurement(outcome=Outcome.OOM)
        return Measurement(outcome=self.outcome, peak_bytes=peak, step_seconds=(0.1,), samples=batch, batch=batch)


def test_where_memory_is_proportional_the_first_guess_is_the_largest(bench, problem):
    peak = bench.peak_bytes(Config(), BATCH)
    rival = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=peak).found
    assert (rival.batch, rival.outcome) == (20, Outcome.OK)
    assert bench.watched == [(Config(), 20)]


def test_a_baseline_out_of_memory_begins_at_half_and_goes_up_from_there(bench, problem):
    rival = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=None).found
    assert rival.batch == 20
    assert [batch for _, batch in bench.watched] == [16, 20]


def test_a_baseline_out_of_memory_begins_at_what_is_forecast_to_fit(problem):
    bench = Watched(lambda batch: RESTING + 125 * MIB * batch if batch <= 4 else None)
    search = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=None, forecast_batch=4)
    assert (search.found.batch, bench.batches) == (4, [4])


def test_what_fits_stands_where_nothing_larger_does(problem):
    bench = Watched(lambda batch: RESTING + 25 * MIB * batch if batch <= 16 else None)
    assert measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=None).found.batch == 16
    bench = Watched(lambda batch: RESTING + 30 * MIB * batch)
    assert measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=None).found.batch == 16
    assert bench.batches == [16]


def test_without_time_for_more_the_first_that_fits_is_the_rival(bench, problem):
    rival = measure_rival_batch(
        bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=None, has_time=lambda: not bench.watched
    ).found
    assert rival.batch == 16


@pytest.mark.parametrize("peak_bytes", [900 * MIB, None])
@pytest.mark.parametrize("growth", [lambda batch: LIMIT + batch * MIB, lambda batch: None if batch > 4 else 9 * LIMIT])
def test_a_guess_that_does_not_fit_shrinks(problem, peak_bytes, growth):
    bench = Watched(growth)
    search = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=peak_bytes)
    assert (search.found, search.none_fits) == (None, False)
    assert bench.batches == sorted(set(bench.batches), reverse=True)
    assert 1 <= len(bench.batches) <= 3
    assert all(1 <= batch < BATCH for batch in bench.batches)


def test_a_guess_learns_from_the_last_one(problem):
    bench = Watched(lambda batch: RESTING + batch * 25 * MIB + 50 * MIB)
    rival = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=900 * MIB).found
    assert rival.peak_bytes <= LIMIT
    assert bench.batches[0] == 20
    assert rival.batch == 18


@pytest.mark.parametrize(
    ("peak_bytes", "batches", "is_first"),
    [
        (lambda batch: RESTING + batch * 25 * MIB, [20], True),
        (lambda batch: RESTING + batch * 30 * MIB, [20, 16], False),
        (lambda batch: RESTING + batch * 20 * MIB, [20, 25], False),
        (lambda batch: RESTING + batch * 20 * MIB if batch <= 20 else None, [20, 25], True),
    ],
    ids=["one process", "the second fits", "the second is larger", "the second fails"],
)
def test_it_is_known_whether_the_rival_ran_first(problem, peak_bytes, batches, is_first):
    bench = Watched(peak_bytes)
    search = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=900 * MIB)
    assert (bench.batches[:2], search.is_first) == (batches, is_first)


def test_processes_with_others_between_them_are_no_pair(make_tuning, monkeypatch):
    tuning = make_tuning()
    peak_bytes = tuning.bench.peak_bytes
    monkeypatch.setattr(
        tuning.bench, "peak_bytes", lambda config, batch: peak_bytes(config, batch) + (60 * MIB if batch < 32 else 0)
    )
    result = tuning.run()
    batches = [batch for _, batch in tuning.bench.watched]
    rival = result.rival.batch
    assert batches[:3] == [32, 20, rival]
    assert batches[3:] == [32, rival, rival, 32]
    assert result.comparison.pairs == 2


def test_a_run_that_failed_is_no_rival(problem):
    bench = Watched(lambda batch: batch, Outcome.DIVERGED)
    search = measure_rival_batch(bench, EFFORT, problem, resting_bytes=1, peak_bytes=900 * MIB)
    assert (search.found, search.none_fits) == (None, False)
    assert bench.batches == sorted(set(bench.batches), reverse=True)


@pytest.mark.parametrize(("batch", "resting_bytes", "peak_bytes"), [(1, RESTING, None), (32, LIMIT + 1, 900 * MIB)])
def test_where_no_smaller_batch_exists_nothing_is_started(make_detection, batch, resting_bytes, peak_bytes):
    problem, bench = Problem.of(make_detection(batch=batch), LIMIT), Watched(lambda _: 0)
    search = measure_rival_batch(bench, EFFORT, problem, resting_bytes=resting_bytes, peak_bytes=peak_bytes)
    assert (search.found, search.none_fits) == (None, True)
    assert bench.batches == []


@pytest.mark.parametrize(("outcome", "none_fits"), [(Outcome.OK, True), (Outcome.CRASH, False)])
def test_that_none_fits_is_known_once_a_single_sample_did_not(problem, outcome, none_fits):
    bench = Watched(lambda batch: LIMIT + 50 * MIB * batch, outcome)
    search = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=40 * LIMIT)
    assert (search.found, search.none_fits, bench.batches) == (None, none_fits, [1])


@pytest.mark.parametrize("peak_bytes", [LIMIT, LIMIT - 10 * MIB])
def test_a_rival_is_smaller_even_where_the_baseline_nearly_fits(problem, peak_bytes):
    bench = Watched(lambda batch: batch)
    rival = measure_rival_batch(bench, EFFORT, problem, resting_bytes=RESTING, peak_bytes=peak_bytes).found
    assert rival.batch < BATCH
