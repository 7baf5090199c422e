import functools

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies import load_result
from autorecompute.tuning.batches.batch_tuner import LEAST_TRIALS
from autorecompute.tuning.batches.throughput_curve import NOT_IN_TIME
from autorecompute.units import MIB
from stand_ins.emitted import choices_of

LARGEST = 20
"""The largest batch that fits in 600 MiB without recompute, by the formula."""


class Interrupted:
    def __init__(self, process):
        self._left = process

    def __call__(self, bench):
        for name in ("measure", "watch"):
            setattr(bench, name, functools.partial(self._count, getattr(bench, name)))
        return bench

    def _count(self, method, *arguments):
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return method(*arguments)


@pytest.mark.parametrize("process", [1, 20, 45])
def test_an_interrupted_comparison_goes_on_where_it_stopped(best, begin, process):
    several, undisturbed = best
    first = begin(adapt=Interrupted(process))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = begin()
    result = second.run()
    plain = [point.batch for point in undisturbed.curve if point.fits_without]
    left = max(len(plain) - len(first.watched), 0)
    assert first.watched + second.watched[:left] == several.watched[: len(first.watched) + left]
    assert (result.best.config, result.best.batch) == (undisturbed.best.config, undisturbed.best.batch)
    assert result.trials == undisturbed.trials
    assert result.curve == undisturbed.curve


def test_who_is_interrupted_has_the_best_so_far(begin):
    first = begin(adapt=Interrupted(4))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    so_far = load_result("bert", first.folder.path.parent)
    assert (so_far.best.batch, so_far.best.config, so_far.search_end) == (LARGEST, Config(), SearchEnd.INTERRUPTED)
    assert begin().run().best.batch > LARGEST


def test_more_trials_go_on(begin):
    first = begin((16, 24, 32), max_trials=LEAST_TRIALS)
    result = first.run()
    assert (result.search_end, result.trials) == (SearchEnd.TRIALS, LEAST_TRIALS)
    same = begin((16, 24, 32), max_trials=LEAST_TRIALS)
    assert same.run() == result
    assert not same.has_measured
    more = begin((16, 24, 32), max_trials=20).run()
    assert more.trials > LEAST_TRIALS
    assert {point.batch for point in more.curve if point.recomputed is not None} == {24, 32}


def test_going_on_and_stopping_again_loses_no_answer(begin):
    result = begin((16, 24), max_trials=LEAST_TRIALS).run()
    with pytest.raises(KeyboardInterrupt):
        begin((16, 24), max_trials=20, adapt=Interrupted(1)).run()
    assert load_result("bert", begin((16, 24)).folder.path.parent) == result


def test_another_list_uses_what_was_measured(begin):
    begin((8, 16, 24)).run()
    wider = begin((4, 8, 16, 24))
    wider.run()
    assert wider.watched[0] == 4
    assert not set(wider.watched[1:]) & {8, 16}
    assert wider.benches == {}


def test_the_answer_to_another_list_is_not_taken_for_an_answer(begin):
    old = begin((8, 16)).run()
    for _ in range(2):
        stopped = begin((24, 32), adapt=Interrupted(1))
        with pytest.raises(KeyboardInterrupt):
            stopped.run()
        assert stopped.tuner.so_far is None
        assert stopped.folder.result() == old


def test_a_timeout_before_any_batch_of_another_list_is_told(begin_timed):
    begin_timed((8, 16)).run()
    with pytest.raises(NothingFitsError, match="--timeout"):
        begin_timed((24, 32), timeout_seconds=30.0).run()


def test_what_fits_of_another_list_is_no_answer(begin):
    begin((8, 16)).run()
    with pytest.raises(NothingFitsError, match="from 48 on"):
        begin((48, 64), max_trials=8).run()


def test_a_limit_that_only_whole_processes_break_is_told_as_such(begin):
    def live_long(bench):
        bench.every_life_bytes = 600 * MIB
        return bench

    with pytest.raises(NothingFitsError, match="but its whole process did not") as failed:
        begin((1,), adapt=live_long, max_trials=8).run()
    assert "smaller batch" not in str(failed.value)


def test_a_shorter_list_is_answered_though_more_was_known_before(begin):
    begin((4, 8, 12, 16)).run()
    stopped = begin((8, 64), adapt=Interrupted(1))
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    so_far = stopped.tuner.so_far
    assert so_far == stopped.folder.result()
    assert (so_far.best.batch, so_far.search_end) == (8, SearchEnd.INTERRUPTED)


def test_the_time_is_one_for_all_batches(begin, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autorecompute.tuning.batches.batch_tuner.time.monotonic", lambda: now[0])

    def adapt(bench):
        for name in ("measure", "watch"):
            method = getattr(bench, name)

            def slow(*arguments, method=method):
                now[0] += 10.0
                return method(*arguments)

            setattr(bench, name, slow)
        return bench

    several = begin(timeout_seconds=100.0, adapt=adapt)
    result = several.run()
    monkeypatch.undo()
    assert result.search_end is SearchEnd.TIME
    assert result.best is not None
    more = begin().run()
    assert more.search_end is not SearchEnd.TIME
    assert more.trials > result.trials


@pytest.mark.parametrize("timeout_seconds", [60.0, 150.0, 400.0])
def test_a_timeout_holds_for_all_batches_together(begin_timed, clock, timeout_seconds):
    began = clock.now
    result = begin_timed((8, 24, 28, 32), timeout_seconds=timeout_seconds).run()
    assert clock.now - began <= 1.1 * timeout_seconds
    assert result.best.confirmed
    assert result.search_end is SearchEnd.TIME
    more = begin_timed((8, 24, 28, 32)).run()
    assert {point.batch for point in more.curve if point.recomputed is not None} == {24, 28, 32}
    assert not more.search_end.is_early


def test_a_batch_that_had_no_time_is_not_said_to_be_too_large(begin_timed):
    result = begin_timed((8, 24), timeout_seconds=75.0).run()
    told = [point.recomputed.description for point in result.curve if point.recomputed is not None]
    assert told == [NOT_IN_TIME]
    assert (result.best.batch, result.compared) == (8, False)
    assert "so far" in result.verdict_sentence


def test_who_stops_in_a_batch_has_what_was_confirmed_there(begin_timed, clock):
    several = begin_timed((8, 24))
    clock.stop_at = clock.now + 160.0
    with pytest.raises(KeyboardInterrupt):
        several.run()
    so_far = several.tuner.so_far
    assert so_far == several.folder.result()
    assert (so_far.search_end, so_far.best.batch) == (SearchEnd.INTERRUPTED, 24)
    assert choices_of(several.folder) == so_far.best.config.texts
    assert begin_timed((8, 24)).run().best.samples_per_second >= so_far.best.samples_per_second
