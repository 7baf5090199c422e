from dataclasses import replace

import pytest

from autorecompute.plans import Config
from autorecompute.ranking import RaceEnd
from autorecompute.result import SearchEnd
from autorecompute.units import MIB
from stand_ins.emitted import choices_of

NO_REFERENCE = {"oom_bytes": 800 * MIB}
"""The batch does not run without recompute."""


def test_a_study_that_was_answered_keeps_what_it_knows(make_slow, clock):
    answer = make_slow(max_trials=8).run()
    again = make_slow(max_trials=40)
    clock.stop_at = clock.now + 7.0
    with pytest.raises(KeyboardInterrupt):
        again.run()
    kept = again.folder.result()
    assert (kept.best, kept.rival, kept.search_end) == (answer.best, answer.rival, SearchEnd.INTERRUPTED)
    assert choices_of(again.folder) == answer.best.config.texts


def test_however_often_it_is_stopped_an_answer_keeps_what_it_knows(make_slow, clock):
    answer = make_slow(max_trials=8).run()
    assert answer.comparison is not None
    for _ in range(2):
        again = make_slow(max_trials=40)
        clock.stop_at = clock.now + 20.0
        with pytest.raises(KeyboardInterrupt):
            again.run()
    kept = again.folder.result()
    assert (kept.best, kept.rival, kept.comparison) == (answer.best, answer.rival, answer.comparison)
    assert (kept.compared, kept.verdict, kept.search_end) == (True, answer.verdict, SearchEnd.INTERRUPTED)
    assert kept.trials > answer.trials


@pytest.fixture
def stop_while_compared(clock):
    def stop(tuning):
        note = tuning.watcher.note

        def note_and_stop(text):
            note(text)
            if "largest batch that fits" in text:
                clock.stop_at = clock.now + 3.0

        tuning.watcher.note = note_and_stop
        with pytest.raises(KeyboardInterrupt):
            tuning.run()
        return tuning.folder

    return stop


@pytest.fixture(params=[{}, NO_REFERENCE], ids=["with a reference", "without"])
def begin_tie(request, make_tuning, make_timed_bench):
    def begin(max_trials):
        bench = make_timed_bench(start_seconds=5.0, step_seconds=0.4, **request.param)
        return make_tuning(bench, max_trials=max_trials)

    return begin


def test_who_won_a_tie_stays_the_answer_while_it_is_compared(begin_tie, stop_while_compared):
    folder = stop_while_compared(begin_tie(16))
    left, confirmed = folder.result(), folder.confirmed()
    assert left.best.ranking.end is RaceEnd.TIE
    others = [best for best in confirmed if best.config != left.best.config]
    assert any(best.samples_per_second > left.best.samples_per_second for best in others)
    assert all(best.peak_bytes > left.best.peak_bytes for best in others)
    answer = begin_tie(16).run()
    assert answer.best.config == left.best.config


def test_an_answer_stays_where_nothing_better_was_confirmed_since(begin_tie, clock):
    answer = begin_tie(16).run()
    assert len(begin_tie(16).folder.confirmed()) > 1
    again = begin_tie(40)
    clock.stop_at = clock.now + 7.0
    with pytest.raises(KeyboardInterrupt):
        again.run()
    kept = again.folder.result()
    assert (kept.best, kept.verdict, kept.comparison) == (answer.best, answer.verdict, answer.comparison)
    assert (kept.compared, kept.search_end) == (True, SearchEnd.INTERRUPTED)


def test_an_answer_that_was_not_compared_stays_as_well(begin_tie, stop_while_compared, clock):
    left = stop_while_compared(begin_tie(16)).result()
    again = begin_tie(40)
    clock.stop_at = clock.now + 7.0
    with pytest.raises(KeyboardInterrupt):
        again.run()
    assert again.folder.result().best == left.best


def test_what_was_confirmed_early_is_known_by_the_race_from_then_on(make_slow, make_space):
    lucky = Config.of(make_space().plans[:2])
    tuning = make_slow(max_trials=16)
    measure = tuning.bench.measure

    def measure_by_luck(config, effort):
        measured = measure(config, effort)
        factor = 1.0 if config != lucky else 0.975 if effort == tuning.effort else 1.05
        return replace(measured, step_seconds=tuple(step * factor for step in measured.step_seconds))

    tuning.bench.measure = measure_by_luck
    result = tuning.run()
    assert result.best.config != lucky
    known = {best.config.hash: best.relative_throughput for best in tuning.folder.confirmed()}
    assert known[lucky.hash] == result.raced[lucky.hash]
    trial = next(trial for trial in tuning.watcher.trials if trial.config == lucky)
    assert known[lucky.hash] < trial.relative_throughput / 1.05
