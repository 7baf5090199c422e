import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from autorecompute.errors import NothingFitsError, TooLittleTimeError
from autorecompute.figures import Comparison, Figures
from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Rejection, SearchEnd
from autorecompute.studies import StudyFolder
from autorecompute.tuning.answer.early import GROWTH, EarlyAnswer
from autorecompute.tuning.answer.finalists import Finalist
from autorecompute.tuning.answer.rivals import Rival, recall_rival
from autorecompute.tuning.budget import Budget, Task
from autorecompute.units import MIB
from stand_ins.emitted import choices_of


def note_times(tuning, clock):
    times, began, watch = [], clock.now, tuning.bench.watch

    def watch_and_note(*args):
        measurement = watch(*args)
        times.append(clock.now - began)
        return measurement

    tuning.bench.watch = watch_and_note
    return times


@pytest.fixture
def undisturbed(make_slow, clock):
    tuning = make_slow()
    times = note_times(tuning, clock)
    result = tuning.run()
    return tuning, result, times


def test_the_best_so_far_is_confirmed_while_the_search_goes_on(undisturbed):
    _, result, times = undisturbed
    assert result.search_end is SearchEnd.NOTHING_LEFT
    assert times[0] < times[-1] * 2 / 3
    assert len(times) <= 2 + GROWTH


@pytest.fixture
def make_guessing(make_root, tune_in, make_timed_bench, let_baseline_hold):
    def make(**formula):
        tuning = tune_in(make_root(), make_timed_bench(start_seconds=5.0, step_seconds=0.4, **formula))
        tuning.bench.every_life_bytes = 10 * MIB
        let_baseline_hold(tuning.bench, 25 * MIB)
        return tuning

    return make


@pytest.fixture
def guessing(make_guessing):
    return make_guessing()


def test_where_trials_are_held_against_a_guess_a_whole_process_runs_sooner(guessing, clock, undisturbed):
    times = note_times(guessing, clock)
    guessing.run()
    assert times[0] < undisturbed[2][0]
    first, _ = guessing.bench.watched[0]
    assert first not in guessing.bench.detection.space.presets.values()


def test_the_answer_of_a_process_that_ran_to_learn_from_is_soon_replaced(guessing, clock, undisturbed):
    times = note_times(guessing, clock)
    guessing.run()
    assert times[1] < undisturbed[2][0] + 30.0


class FirstHoldsMore(dict):
    def get(self, config, _default=None):
        return self.setdefault(config, 10 * MIB if self else 35 * MIB)


def test_one_process_that_held_more_by_chance_does_not_rule_the_search(make_guessing):
    tuning = make_guessing(costs=(0.04, 0.03, 0.2, 0.1, 0.1))
    tuning.bench.life_bytes = FirstHoldsMore()
    best = tuning.run().best
    peaks = {config: tuning.bench.peak_bytes(config, 32) for config in tuning.tried}
    able = [config for config in tuning.tried if peaks[config] <= best.limit_bytes - 10 * MIB]
    assert best.config == min(able, key=lambda config: tuning.bench.seconds(config, 32))
    assert peaks[best.config] > best.limit_bytes - 35 * MIB


def test_where_whole_processes_fail_few_are_run_to_learn_from(make_guessing):
    tuning = make_guessing()
    watch = tuning.bench.watch

    def be_lost(*args):
        watch(*args)
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message="the port is taken")

    tuning.bench.watch = be_lost
    with pytest.raises(NothingFitsError):
        tuning.run()
    searching = itertools.takewhile(lambda note: "racing" not in note, tuning.watcher.notes)
    assert sum("confirming in a fresh process" in note for note in searching) <= 2


def test_whoever_stops_after_a_confirmation_has_an_answer(make_root, tune_in, make_timed_bench, clock, undisturbed):
    _, _, times = undisturbed
    end = times[-1]
    moments = [times[0] + 0.1 + share * (end - times[0] - 0.2) for share in (0.0, 0.4, 0.8, 1.0)]
    for moment in moments:
        tuning = tune_in(make_root(), make_timed_bench(start_seconds=5.0, step_seconds=0.4))
        clock.stop_at = clock.now + moment
        with pytest.raises(KeyboardInterrupt):
            tuning.tuner.run()
        result = tuning.folder.result()
        assert result == tuning.tuner.so_far
        assert (result.search_end, result.best.confirmed) == (SearchEnd.INTERRUPTED, True)
        assert result.best.peak_bytes <= 600 * MIB
        assert choices_of(tuning.folder) == result.best.config.texts


def test_whoever_stops_before_has_none(make_slow, clock):
    tuning = make_slow()
    clock.stop_at = clock.now + 12.0
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    assert (tuning.tuner.so_far, tuning.folder.result()) == (None, None)


def test_the_same_command_goes_on_and_confirms_nothing_twice(make_root, tune_in, make_timed_bench, clock, undisturbed):
    _, expected, times = undisturbed
    root = make_root()
    first, second = (tune_in(root, make_timed_bench(start_seconds=5.0, step_seconds=0.4)) for _ in range(2))
    clock.stop_at = clock.now + times[0] + 5.0
    with pytest.raises(KeyboardInterrupt):
        first.run()
    result = second.run()
    assert (result.best.config, result.search_end) == (expected.best.config, SearchEnd.NOTHING_LEFT)
    confirmed = [config for config, batch in (*first.bench.watched, *second.bench.watched) if batch == 32]
    # Beside the first, each pair of the comparison has a run of the winner's.
    assert len(confirmed) == len(set(confirmed)) + result.comparison.pairs - 1
    assert not set(first.tried) & set(second.tried)


@pytest.fixture
def measure_one_more(make_slow, clock):
    def measure_one_more():
        tuning = make_slow(max_trials=9, timeout_seconds=900.0, began_seconds=clock.now)
        end_seconds, keep_trial = clock.now + 899.0, tuning.folder.keep_trial

        def lose_time(*trial):
            keep_trial(*trial)
            clock.now = end_seconds

        tuning.folder.keep_trial = lose_time
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
    another = dataclasses.replace(answer.best, config=Config.of(make_space().plans))
    first.folder.finish(dataclasses.replace(answer, best=another))
    _, result = measure_one_more()
    assert (result.comparison, result.compared, result.search_end) == (None, False, SearchEnd.TIME)


@pytest.mark.parametrize(
    ("batch", "is_known"), [(None, True), (20, True), (19, False)], ids=["no rival yet", "the same", "another"]
)
def test_only_the_same_rival_counts(make_result, batch, is_known):
    fits = Figures(outcome=Outcome.OK, batch=20, samples_per_second=40.0, peak_bytes=600 * MIB)
    comparison = Comparison(ratio=1.1, low=1.05, high=1.15, pairs=2, is_clear=True)
    earlier = make_result(rival=fits, comparison=comparison)
    rival = Rival(dataclasses.replace(fits, batch=batch) if batch else None, is_complete=False)
    expected = Rival(fits, comparison) if is_known else rival
    assert recall_rival(earlier, earlier.best, rival) == expected
    unconfirmed = dataclasses.replace(earlier, best=dataclasses.replace(earlier.best, confirmed=False))
    assert recall_rival(unconfirmed, earlier.best, rival) == rival
    assert recall_rival(earlier, earlier.best, Rival(none_fits=True)) == Rival(none_fits=True)


@pytest.fixture
def trained(make_tuning):
    tuning = make_tuning(max_trials=12)
    result = tuning.run()
    found = dataclasses.replace(result, best=dataclasses.replace(result.best, confirmed=False))
    tuning.folder.keep_confirmed([])
    tuning.folder.finish(found)
    return found


@pytest.mark.parametrize("timeout_seconds", [20.0, 32.0])
@pytest.mark.parametrize("is_rejected", [False, True])
def test_little_time_takes_away_nothing_that_a_training_found(  # noqa: PLR0917  (two cases of two)
    trained, make_tuning, make_timed_bench, clock, timeout_seconds, is_rejected
):
    tuning = make_tuning(make_timed_bench(), timeout_seconds=timeout_seconds, began_seconds=clock.now, max_trials=12)
    tuning.bench.watch = lambda *_: clock.advance(1000.0)
    if is_rejected:
        tuning.folder.keep_rejections(
            [Rejection(config=trained.best.config, outcome=Outcome.WRONG_GRADIENT, reason="it is wrong")]
        )
    with pytest.raises(NothingFitsError):
        tuning.run()
    left = tuning.folder.result()
    assert left.best is None if is_rejected else left == trained


def test_what_a_training_found_is_no_answer_where_the_device_is_free_too_late(
    trained, make_tuning, make_timed_bench, clock, monkeypatch
):
    tuning = make_tuning(make_timed_bench(), timeout_seconds=60.0, began_seconds=clock.now, max_trials=12)
    monkeypatch.setattr("autorecompute.tuning.resources.hold_device", lambda *_: clock.advance(10_000.0))
    with pytest.raises(TooLittleTimeError, match="What a training found is not confirmed yet: "):
        tuning.run()
    assert (tuning.tuner.so_far, tuning.folder.result()) == (None, trained)


class Confirming:
    def __init__(self, best):
        self.best, self.asked = best, []

    def needs(self, _config):
        return (Task.CONFIRMATION,)

    def confirm(self, finalist):
        self.asked.append(finalist.trial.number)
        return self.best


@pytest.fixture
def ask(make_root, make_result, clock):
    def ask(trial, samples_per_second):
        result = make_result()
        folder = StudyFolder("bert", make_root())
        folder.prepare()
        best = dataclasses.replace(result.best, relative_throughput=None, samples_per_second=samples_per_second)
        confirming = Confirming(best)
        context = SimpleNamespace(folder=folder, budget=Budget(None, clock.now))
        early = EarlyAnswer(context, confirming, lambda: result)
        clock.advance(1000)
        early.confirm_if_due(Finalist(trial=trial), reserve_seconds=0.0)
        return confirming.asked

    return ask


@pytest.mark.parametrize(("speed", "expected"), [(0.9, []), (1.01, []), (1.1, [7])])
def test_without_a_reference_the_faster_is_news(ask, make_trial, make_space, speed, expected):
    trial = make_trial(Config.of(make_space().plans[:1]), number=7)
    assert ask(trial, trial.measurement.samples_per_second / speed) == expected
