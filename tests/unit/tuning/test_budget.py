import contextlib
import random

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.tuning.budget import Budget, Task
from autorecompute.units import MIB
from autorecompute.verdict import Verdict

START, TRIAL = 15.0, 5.0
LEAST = START + TRIAL + START + TRIAL
"""What one start, one trial and one confirmation take."""


@pytest.fixture
def make_budget(clock):
    def make(timeout_seconds):
        budget = Budget(timeout_seconds, clock.now)
        for task, seconds in ((Task.START, START), (Task.TRIAL, TRIAL)):
            with budget.timing(task):
                clock.advance(seconds)
        return budget

    return make


def test_a_task_is_expected_to_take_what_it_took(make_budget, clock):
    budget = make_budget(100.0)
    assert budget.expect(Task.START, Task.TRIAL) == START + TRIAL
    for seconds in (7.0, 6.0):
        with budget.timing(Task.TRIAL):
            clock.advance(seconds)
    assert budget.expect(Task.TRIAL) == 7.0


def test_what_was_never_seen_takes_what_its_parts_took(make_budget):
    assert make_budget(100.0).expect(Task.CONFIRMATION) == START + TRIAL


def test_the_end_is_left_what_it_needs_and_half_of_the_rest(make_budget):
    needed, wished = (Task.CONFIRMATION,), (Task.CONFIRMATION,) * 3
    assert make_budget(1000.0).reserve_seconds(needed, wished) == 80.0
    assert make_budget(75.0).reserve_seconds(needed, wished) == 20.0 + (75.0 - START - 20.0) / 2
    assert make_budget(30.0).reserve_seconds(needed, wished) == 20.0


def test_without_a_timeout_everything_is_allowed(make_budget):
    budget = make_budget(None)
    assert budget.allows(*Task, reserve_seconds=budget.reserve_seconds(tuple(Task), tuple(Task)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("timeout", [45.0, 90.0, 300.0])
def test_a_timeout_is_kept_and_ends_with_a_confirmed_answer(make_tuning, make_timed_bench, clock, timeout, seed):
    chance, advance = random.Random(seed), clock.advance
    clock.advance = lambda seconds: advance(seconds * chance.uniform(0.9, 1.1))
    began = clock.now
    result = make_tuning(make_timed_bench(start_seconds=10.0), timeout_seconds=timeout, began_seconds=began).run()
    assert clock.now - began <= 1.1 * timeout
    assert result.best.confirmed
    assert result.best.peak_bytes <= 600 * MIB
    assert result.search_end is SearchEnd.TIME or result.best.ranking is not None


def test_the_least_timeout_confirms_the_first_config_that_fits(make_tuning, make_timed_bench, clock):
    bench = make_timed_bench()
    trial = bench.SWAP_SECONDS + 7 * bench.seconds(Config(), 32)
    tuning = make_tuning(bench, limit_bytes=1000 * MIB, timeout_seconds=30.0 + 2 * trial, began_seconds=clock.now)
    assert tuning.run().verdict is Verdict.NOT_NEEDED


@pytest.mark.parametrize(("timeout", "advice"), [(5.0, "--timeout"), (20.0, "about --timeout 60s at least")])
def test_too_little_time_ends_at_once_and_says_so(make_tuning, make_timed_bench, clock, timeout, advice):
    began, tuning = clock.now, make_tuning(make_timed_bench(), timeout_seconds=timeout, began_seconds=clock.now)
    with pytest.raises(NothingFitsError, match=f"before the first trial.*{advice}"):
        tuning.run()
    assert clock.now - began <= 1.1 * timeout
    assert tuning.bench.measured == []


@pytest.mark.parametrize("timeout", [5.0, 20.0])
def test_too_little_time_for_more_tells_what_is_kept(make_tuning, make_timed_bench, clock, timeout):
    first = make_tuning(limit_bytes=200 * MIB)
    first.bench.interrupt_at = 4
    with pytest.raises(KeyboardInterrupt):
        first.run()
    count = len(first.folder.kept_trials())
    bench = make_timed_bench()
    if timeout > bench.start_seconds:
        bench.detect = lambda: clock.advance(1000.0)
    again = make_tuning(bench, limit_bytes=200 * MIB, timeout_seconds=timeout, began_seconds=clock.now)
    with pytest.raises(NothingFitsError, match=f"before another trial.*{count} trials kept in .*same command goes on"):
        again.run()


def test_time_that_ends_with_a_fitting_config_tells_of_it(make_tuning, make_timed_bench, clock):
    tuning = make_tuning(make_timed_bench(), timeout_seconds=60.0, began_seconds=clock.now)
    tuning.bench.watch = lambda *_: clock.advance(1000.0)
    with pytest.raises(NothingFitsError, match=r"over before a config was confirmed.*not confirmed: .*--timeout"):
        tuning.run()
    assert tuning.folder.result().search_end is SearchEnd.TIME
    assert tuning.folder.result().best is None


def test_a_rival_that_there_is_no_time_for_is_not_measured(make_tuning, make_timed_bench, clock):
    first = make_tuning(make_timed_bench(), timeout_seconds=60.0, began_seconds=clock.now)
    result = first.run()
    assert (result.rival, result.compared, result.search_end) == (None, False, SearchEnd.TIME)
    second = make_tuning(make_timed_bench())
    assert second.run().compared


def test_a_hanging_script_does_not_outlast_the_time(make_tuning, make_timed_bench, clock):
    began, bench = clock.now, make_timed_bench()
    tuning = make_tuning(bench, timeout_seconds=800.0, began_seconds=began)
    measure = bench.measure

    def hang_in_the_end(config, effort):
        if bench.watched:
            clock.advance(10_000.0)
        return measure(config, effort)

    bench.measure = hang_in_the_end
    bench.step_seconds = 1.0
    result = tuning.run()
    assert (result.search_end, result.best.confirmed) == (SearchEnd.TIME, True)
    assert clock.now - began <= 1.1 * 800.0


def test_waiting_for_the_device_counts(make_tuning, make_timed_bench, clock, monkeypatch):
    tuning = make_tuning(make_timed_bench(), timeout_seconds=60.0, began_seconds=clock.now)
    monkeypatch.setattr("autorecompute.tuning.resources.hold_device", lambda *_: clock.advance(10_000.0))
    with pytest.raises(NothingFitsError, match="--timeout"):
        tuning.run()
    assert tuning.bench.measured == []


def test_a_device_that_is_free_too_late_is_what_took_the_time(make_tuning, make_timed_bench, clock, monkeypatch):
    tuning = make_tuning(make_timed_bench(start_seconds=5.0), timeout_seconds=60.0, began_seconds=clock.now)

    @contextlib.contextmanager
    def hold_late(_device, _purpose, on_wait):
        on_wait("waiting for the device")
        clock.advance(54.0)
        yield

    monkeypatch.setattr("autorecompute.tuning.resources.hold_device", hold_late)
    with pytest.raises(NothingFitsError, match=r"54\.0 s of it went into waiting for the device") as told:
        tuning.run()
    assert "20s" not in str(told.value)
    assert tuning.bench.measured == []


def test_time_that_ends_after_the_search_is_no_proof_that_nothing_fits(make_tuning, make_timed_bench, clock):
    began = clock.now
    first = make_tuning(make_timed_bench(start_seconds=5.0), max_trials=3, timeout_seconds=90.0, began_seconds=began)
    keep_trial = first.folder.keep_trial

    def lose_time(trial, *args):
        keep_trial(trial, *args)
        if trial.number == 2:
            clock.now = began + 89.0

    first.folder.keep_trial = lose_time
    with pytest.raises(NothingFitsError, match="over before a config was confirmed"):
        first.run()
    assert (len(first.tried), first.bench.watched) == (3, [])
    second = make_tuning(make_timed_bench(), max_trials=3)
    assert (second.run().best.confirmed, second.tried) == (True, [])
