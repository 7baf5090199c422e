import functools
from dataclasses import replace

import pytest

from autorecompute import waiting
from autorecompute.errors import NothingFitsError, TooLittleTimeError
from autorecompute.figures import RaceEnd
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Rejection, SearchEnd
from autorecompute.tuning.confirmation import GROWTH, USABLE_STEPS
from autorecompute.units import MIB
from stand_ins.emitted import choices_of
from stand_ins.formula import instead, let_baseline_hold, stop
from stand_ins.timed import Clock, TimedBench

SLOW = {"start_seconds": 5.0, "step_seconds": 0.4}


def note_times(tuning):
    """Gives the seconds after which each process of a whole tuning was done, which are filled in as it runs."""
    times, clock, began = [], tuning.bench.clock, tuning.bench.clock.now

    def watch_and_note(watch, *args):
        measurement = watch(*args)
        times.append(clock.now - began)
        return measurement

    instead(tuning.bench, "watch", watch_and_note)
    return times


@pytest.fixture(scope="module")
def undisturbed(make_root, tune_in):
    """The answer of an undisturbed tuning, and when each of its processes was done."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autorecompute.waiting.time.monotonic", clock.monotonic)
        patch.setitem(waiting._stood, "seconds", 0.0)
        tuning = tune_in(make_root(), TimedBench(clock, **SLOW))
        times = note_times(tuning)
        return tuning.run(), times


@pytest.fixture
def begin_slow(make_root, tune_in, make_timed_bench):
    """Begins such a tuning, whose steps take most of a second, in a folder of its own or in one that is given."""

    def begin(root=None, *, formula=None, **settings):
        return tune_in(root or make_root(), make_timed_bench(**SLOW, **(formula or {})), **settings)

    return begin


@pytest.fixture
def make_slow(make_root, begin_slow):
    """Begins a session of one such study."""
    return functools.partial(begin_slow, make_root())


@pytest.fixture
def begin_guessing(begin_slow):
    """Begins one in which the process without recompute holds 25 MiB beyond its tensors, others 10 MiB."""

    def begin(**formula):
        tuning = begin_slow(formula=formula)
        tuning.bench.every_life_bytes = 10 * MIB
        let_baseline_hold(tuning.bench, 25 * MIB)
        return tuning

    return begin


def test_the_best_so_far_is_confirmed_while_the_search_goes_on(undisturbed):
    result, times = undisturbed
    assert result.search_end is SearchEnd.NOTHING_LEFT
    assert times[0] < times[-1] * 2 / 3
    assert len(times) <= 2 + GROWTH


def test_where_trials_are_held_against_a_guess_a_whole_process_runs_sooner_and_is_soon_replaced(
    begin_guessing, undisturbed
):
    """It is not that of a preset, which may be far from the limit, and the next is due as if it were the first."""
    guessing, first_confirmation = begin_guessing(), undisturbed[1][0]
    times = note_times(guessing)
    guessing.run()
    assert times[0] < first_confirmation
    assert guessing.bench.watched[0][0] not in guessing.bench.detection.space.presets.values()
    assert times[1] < first_confirmation + 30.0


class FirstHoldsMore(dict):
    """By config, so that a process that runs again holds as much."""

    def get(self, config, _default=None):
        return self.setdefault(config, 10 * MIB if self else 35 * MIB)


def test_one_process_that_held_more_by_chance_does_not_rule_the_search(begin_guessing):
    tuning = begin_guessing(costs=(0.04, 0.03, 0.2, 0.1, 0.1))
    tuning.bench.life_bytes = FirstHoldsMore()
    best = tuning.run().best
    peaks = {config: tuning.bench.peak_bytes(config, 32) for config in tuning.tried}
    able = [config for config in tuning.tried if peaks[config] <= best.limit_bytes - 10 * MIB]
    assert best.config == min(able, key=lambda config: tuning.bench.seconds(config, 32))
    assert peaks[best.config] > best.limit_bytes - 35 * MIB


def test_whoever_stops_after_a_confirmation_has_an_answer(begin_slow, undisturbed):
    first, *_, end = undisturbed[1]
    for share in (0.0, 0.6, 1.0):
        tuning = stop(begin_slow(), after=first + 0.1 + share * (end - first - 0.2))
        result = tuning.folder.result()
        assert result == tuning.tuner.so_far
        assert (result.search_end, result.best.confirmed) == (SearchEnd.INTERRUPTED, True)
        assert result.best.peak_bytes <= 600 * MIB
        assert choices_of(tuning.folder) == result.best.config.texts


def test_the_same_command_goes_on_and_confirms_nothing_twice(make_slow, undisturbed):
    expected, times = undisturbed
    first, second = stop(make_slow(), after=times[0] + 5.0), make_slow()
    result = second.run()
    assert (result.best.config, result.search_end) == (expected.best.config, SearchEnd.NOTHING_LEFT)
    confirmed = [config for config, batch in (*first.bench.watched, *second.bench.watched) if batch == 32]
    # Beside the first, each pair of the comparison has a run of the winner's.
    assert len(confirmed) == len(set(confirmed)) + result.comparison.pairs - 1
    assert not set(first.tried) & set(second.tried)


@pytest.fixture
def measure_one_more(make_slow, clock):
    """Goes on with a study by one trial, after which the time is over but for what takes no process."""

    def measure_one_more():
        tuning = make_slow(max_trials=9, timeout_seconds=900.0, began_seconds=clock.now)
        end_seconds = clock.now + 899.0

        def lose_time(keep_trial, *trial):
            keep_trial(*trial)
            clock.now = end_seconds

        instead(tuning.folder, "keep_trial", lose_time)
        result = tuning.run()
        assert len(tuning.tried) == 1
        return tuning, result

    return measure_one_more


def test_no_time_to_compare_again_leaves_the_comparison_of_the_same_winner(make_slow, measure_one_more):
    answer = make_slow(max_trials=8).run()
    assert answer.comparison is not None
    tuning, result = measure_one_more()
    assert result.best.config == answer.best.config
    assert (result.rival, result.comparison, result.verdict) == (answer.rival, answer.comparison, answer.verdict)
    assert (result.compared, result.search_end) == (True, SearchEnd.TRIALS)
    assert tuning.folder.result().comparison == answer.comparison


def test_no_time_to_compare_leaves_nothing_that_is_of_another_winner(make_slow, measure_one_more, make_space):
    first = make_slow(max_trials=8)
    answer = first.run()
    another = replace(answer.best, config=Config.of(make_space().plans))
    first.folder.finish(replace(answer, best=another))
    _, result = measure_one_more()
    assert (result.comparison, result.compared, result.search_end) == (None, False, SearchEnd.TIME)


@pytest.fixture
def trained(make_tuning):
    """What a training found, which no fresh process has confirmed; its study lies there to be tuned."""
    tuning = make_tuning(max_trials=12)
    result = tuning.run()
    found = replace(result, best=replace(result.best, confirmed=False))
    tuning.folder.keep_confirmed([])
    tuning.folder.finish(found)
    return found


@pytest.fixture
def begin_late(make_tuning, make_timed_bench, clock):
    """Begins a session of that study that has so many seconds."""
    settings = {"began_seconds": clock.now, "max_trials": 12}
    return lambda timeout_seconds: make_tuning(make_timed_bench(), timeout_seconds=timeout_seconds, **settings)


@pytest.mark.parametrize("timeout_seconds", [20.0, 32.0])
@pytest.mark.parametrize("is_rejected", [False, True])
def test_little_time_takes_away_nothing_that_a_training_found_unless_it_was_rejected(
    trained, begin_late, clock, timeout_seconds, is_rejected
):
    tuning = begin_late(timeout_seconds)
    tuning.bench.watch = lambda *_: clock.advance(1000.0)
    if is_rejected:
        rejection = Rejection(config=trained.best.config, outcome=Outcome.WRONG_GRADIENT, reason="it is wrong")
        tuning.folder.keep_rejections([rejection])
    with pytest.raises(NothingFitsError):
        tuning.run()
    left = tuning.folder.result()
    assert left.best is None if is_rejected else left == trained


def test_what_a_training_found_is_no_answer_where_the_device_is_free_too_late(trained, begin_late, clock, monkeypatch):
    tuning = begin_late(60.0)
    monkeypatch.setattr("autorecompute.tuning.context.hold_device", lambda *_: clock.advance(10_000.0))
    with pytest.raises(TooLittleTimeError, match="What a training found is not confirmed yet: "):
        tuning.run()
    assert (tuning.tuner.so_far, tuning.folder.result()) == (None, trained)


def test_however_often_it_is_stopped_an_answer_keeps_what_it_knows(make_slow):
    answer = make_slow(max_trials=8).run()
    assert answer.comparison is not None
    for _ in range(2):
        again = stop(make_slow(max_trials=40), after=20.0)
    kept = again.folder.result()
    assert (kept.best, kept.rival, kept.comparison) == (answer.best, answer.rival, answer.comparison)
    assert (kept.compared, kept.verdict, kept.search_end) == (True, answer.verdict, SearchEnd.INTERRUPTED)
    assert kept.trials > answer.trials
    assert choices_of(again.folder) == answer.best.config.texts


@pytest.mark.parametrize("formula", [{}, {"oom_bytes": 800 * MIB}], ids=["with a reference", "without"])
def test_who_won_a_tie_stays_the_answer_though_its_comparison_is_stopped(make_slow, clock, formula):
    """The faster config that was confirmed early lost the tie by its peak: it does not come back, now or later."""
    begin_tie = functools.partial(make_slow, formula=formula)
    tuning = begin_tie(max_trials=16)

    def note_and_stop(note, text):
        note(text)
        if "largest batch that fits" in text:
            clock.stop_at = clock.now + 3.0

    instead(tuning.watcher, "note", note_and_stop)
    folder = stop(tuning).folder
    left, confirmed = folder.result(), folder.confirmed()
    assert left.best.ranking.end is RaceEnd.TIE
    others = [best for best in confirmed if best.config != left.best.config]
    assert any(best.samples_per_second > left.best.samples_per_second for best in others)
    assert all(best.peak_bytes > left.best.peak_bytes for best in others)
    assert stop(begin_tie(max_trials=40), after=7.0).folder.result().best == left.best
    assert begin_tie(max_trials=16).run().best.config == left.best.config


def test_what_was_confirmed_early_is_known_by_the_race_from_then_on(make_slow, make_space):
    lucky = Config.of(make_space().plans[:2])
    tuning = make_slow(max_trials=16)

    def measure_by_luck(measure, config, effort):
        measured = measure(config, effort)
        factor = 1.0 if config != lucky else 0.975 if effort == tuning.effort else 1.05
        return replace(measured, step_seconds=tuple(step * factor for step in measured.step_seconds))

    instead(tuning.bench, "measure", measure_by_luck)
    result = tuning.run()
    assert result.best.config != lucky
    known = {best.config.hash: best.relative_throughput for best in tuning.folder.confirmed()}
    assert known[lucky.hash] == result.raced[lucky.hash]
    trial = next(trial for trial in tuning.watcher.trials if trial.config == lucky)
    assert known[lucky.hash] < trial.relative_throughput / 1.05


def test_after_forty_steps_there_is_an_answer_that_may_be_used(make_tuning):
    tuning, steps = make_tuning(), []

    def count(measure, config, effort):
        tuning.bench.steps += effort.warmup + effort.steps
        return measure(config, effort)

    def count_process(watch, environment, effort, batch):
        tuning.bench.steps += effort.watched_steps
        steps.append(tuning.bench.steps)
        return watch(environment, effort, batch)

    instead(tuning.bench, "measure", count)
    instead(tuning.bench, "watch", count_process)
    tuning.run()
    assert steps[0] <= USABLE_STEPS
    (usable,) = tuning.watcher.usable
    assert (usable.config, usable.confirmed) == (tuning.bench.watched[0][0], True)
