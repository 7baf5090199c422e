import itertools
from dataclasses import replace

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer import answer_lines, answer_sentences
from autorecompute.studies.storage import read_trials
from autorecompute.tuning.answer.confirmation import TELLING
from autorecompute.tuning.answer.race import ROUND_EFFORT
from autorecompute.units import GIB, MIB


@pytest.fixture
def break_processes(monkeypatch, make_measurement):
    def break_processes(tuning, outcome, *, first=None):
        watch, numbers = tuning.bench.watch, itertools.count()

        def watch_or_break(*args):
            measurement = watch(*args)
            return measurement if first is not None and next(numbers) >= first else make_measurement(outcome)

        monkeypatch.setattr(tuning.bench, "watch", watch_or_break)

    return break_processes


def test_a_process_that_was_lost_is_started_once_more(make_tuning, break_processes):
    tuning = make_tuning(max_trials=12)
    break_processes(tuning, Outcome.LOST, first=1)
    best = tuning.run().best
    assert tuning.bench.watched[:2] == [(best.config, 32)] * 2
    assert not any("not confirmed" in note for note in tuning.watcher.notes)


def test_a_baseline_that_runs_out_of_memory_as_a_whole_makes_room_for_recompute(make_tuning, make_bench):
    tuning = make_tuning(make_bench(oom_bytes=930 * MIB), limit_bytes=920 * MIB, max_trials=12)
    tuning.bench.life_bytes[Config()] = 50 * MIB
    best = tuning.run().best
    assert not best.config.is_none
    assert best.peak_bytes < tuning.bench.peak_bytes(Config(), 32)


def test_what_two_processes_need_too_much_is_expected_of_the_others(make_tuning):
    tuning = make_tuning(max_trials=30)
    tuning.bench.every_life_bytes = 150 * MIB
    best = tuning.run().best
    told = [note.startswith("not confirmed") for note in tuning.watcher.notes]
    below = next(at for at, note in enumerate(tuning.watcher.notes) if "searching below" in note)
    assert sum(told[:below]) == TELLING
    assert best.confirmed
    assert best.peak_bytes <= best.limit_bytes


def test_what_the_baseline_holds_beyond_its_tensors_is_left_for_all(make_tuning, let_baseline_hold):
    tuning = make_tuning(max_trials=30)
    tuning.bench.every_life_bytes = 25 * MIB
    let_baseline_hold(tuning.bench, 25 * MIB)
    best = tuning.run().best
    assert not tuning.folder.rejections()
    assert best.peak_bytes <= best.limit_bytes
    assert not any("searching below" in note for note in tuning.watcher.notes)
    assert sum("leaving 25 MiB of the limit" in note for note in tuning.watcher.notes) == 1


def test_a_baseline_that_was_lost_leaves_the_next_one_to_tell(make_tuning, make_trial, let_baseline_hold):
    first = make_tuning(max_trials=30, limit_bytes=540 * MIB)
    first.bench.interrupt_at = 0
    with pytest.raises(KeyboardInterrupt):
        first.run()
    first.folder.begin_trial(make_trial(number=0, outcome=Outcome.LOST))
    tuning = make_tuning(max_trials=30, limit_bytes=540 * MIB)
    tuning.bench.every_life_bytes = 25 * MIB
    let_baseline_hold(tuning.bench, 25 * MIB)
    best = tuning.run().best
    assert not tuning.folder.rejections()
    assert best.peak_bytes <= best.limit_bytes


def test_a_guess_that_leaves_room_for_nothing_is_replaced_by_what_the_leanest_needs(
    make_tuning, make_bench, let_baseline_hold
):
    bench = make_bench(costs=(0.04, 0.03, 0.05, 0.01, 0.1))
    tuning = make_tuning(bench, max_trials=30, limit_bytes=455 * MIB)
    tuning.bench.every_life_bytes = 10 * MIB
    let_baseline_hold(tuning.bench, 25 * MIB)
    best = tuning.run().best
    assert best.confirmed
    assert not tuning.folder.rejections()
    assert best.peak_bytes == min(tuning.bench.peak_bytes(config, 32) for config in tuning.tried) + 10 * MIB


def test_little_time_goes_to_the_leanest_where_the_guess_left_room_for_nothing(
    make_tuning, make_timed_bench, let_baseline_hold, clock
):
    savings = tuple(round(mib * MIB) for mib in (6, 4, 2.6, 0.5, 0.3))
    bench = make_timed_bench(savings=savings, costs=(0.01, 0.01, 0.01, 0.3, 0.3), start_seconds=10.0)
    bench.every_life_bytes = 10 * MIB
    let_baseline_hold(bench, 25 * MIB)
    tuning = make_tuning(bench, limit_bytes=488 * MIB, timeout_seconds=90.0, began_seconds=clock.now)
    best = tuning.run().best
    assert best.config == bench.detection.space.all_on
    assert best.peak_bytes == bench.peak_bytes(best.config, 32) + 10 * MIB
    assert [config for config, _ in bench.watched] == [best.config]


def test_one_process_that_held_more_by_chance_says_nothing_of_the_others(make_tuning, make_bench, let_baseline_hold):
    savings = tuple(round(mib * MIB) for mib in (6, 4, 2.6, 0.5, 0.3))
    bench = make_bench(savings=savings, costs=(0.04, 0.03, 0.05, 0.1, 0.01))
    tuning = make_tuning(bench, max_trials=30, limit_bytes=495 * MIB)
    leanest = bench.detection.space.all_on
    bench.life_bytes[leanest], bench.every_life_bytes = 27 * MIB, 3 * MIB
    let_baseline_hold(bench, 70 * MIB)
    best = tuning.run().best
    assert [known.config for known in tuning.folder.rejections()] == [leanest]
    able = [config for config in tuning.tried if bench.peak_bytes(config, 32) + 3 * MIB <= best.limit_bytes]
    assert best.config == min({*able} - {leanest}, key=lambda config: bench.seconds(config, 32))


def test_a_baseline_that_fits_after_all_is_the_answer(make_tuning, let_baseline_hold):
    tuning = make_tuning(max_trials=30, limit_bytes=910 * MIB)
    let_baseline_hold(tuning.bench, 25 * MIB)
    best = tuning.run().best
    assert best.config.is_none
    assert best.peak_bytes <= best.limit_bytes
    assert len({config for config, _ in tuning.bench.watched}) > 1


def test_what_glibc_keeps_by_chance_is_not_left_for_all(make_tuning, let_baseline_hold):
    tuning = make_tuning(max_trials=30)
    let_baseline_hold(tuning.bench, 300 * MIB)
    room = tuning.run().best.limit_bytes // 20 // MIB
    assert sum(f"leaving {room} MiB of the limit" in note for note in tuning.watcher.notes) == 1


def test_a_worker_that_has_ended_is_not_started_for_a_config_that_needs_too_much(make_tuning):
    tuning = make_tuning(max_trials=12)
    tuning.bench.every_life_bytes = 100 * MIB
    watch = tuning.bench.watch

    def watch_alone(*args):
        tuning.bench.is_live = False
        return watch(*args)

    tuning.bench.watch = watch_alone
    best = tuning.run().best
    rejected = [known.config for known in tuning.folder.rejections()]
    assert len(rejected) > 1
    assert set(rejected[1:]).isdisjoint(tuning.bench.checked)
    assert tuning.bench.checked[-1] == best.config
    assert best.gradients.agrees


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.HANG, Outcome.LOST])
def test_failures_that_may_pass_are_no_final_answer(make_tuning, break_processes, outcome):
    first, second = make_tuning(max_trials=12), make_tuning(max_trials=12)
    break_processes(first, outcome)
    with pytest.raises(NothingFitsError):
        first.run()
    assert first.folder.result().search_end.is_early
    assert second.run().best.confirmed
    assert second.tried == []


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.TIMEOUT, Outcome.CRASH])
def test_who_fails_in_the_race_is_confirmed_where_nobody_else_is_left(make_tuning, make_measurement, outcome):
    tuning = make_tuning(max_trials=12, limit_bytes=450 * MIB)
    measure = tuning.bench.measure

    def fail_in_rounds(config, effort):
        measurement = measure(config, effort)
        return make_measurement(outcome) if effort == ROUND_EFFORT and not config.is_none else measurement

    tuning.bench.measure = fail_in_rounds
    assert tuning.run().best.peak_bytes <= 450 * MIB


@pytest.fixture
def crowd_out(tune_in, make_root):
    def make(extra_bytes=0):
        plain = tune_in(make_root(), max_trials=12)
        fastest = plain.run().best.config
        tuning = tune_in(make_root(), max_trials=12)
        tuning.bench.life_bytes = dict.fromkeys([fastest], extra_bytes)
        measure = tuning.bench.measure

        def be_over_in_rounds(config, effort):
            measurement = measure(config, effort)
            if effort != ROUND_EFFORT or config.is_none:
                return measurement
            if config == fastest:
                return replace(measurement, peak_bytes=measurement.peak_bytes + GIB)
            return replace(measurement, step_seconds=tuple(1.1 * step for step in measurement.step_seconds))

        tuning.bench.measure = be_over_in_rounds
        return tuning, fastest

    return make


def test_who_is_over_the_limit_in_the_race_and_faster_gets_its_own_process(crowd_out):
    tuning, fastest = crowd_out()
    result = tuning.run()
    first, second = (config for config, batch in tuning.bench.watched[:2])
    assert first != fastest == second == result.best.config
    assert result.best.ranking is None
    assert any("its own process decides" in note for note in tuning.watcher.notes)


def test_who_is_over_the_limit_there_and_as_a_process_is_never_told_as_ok(crowd_out):
    tuning, fastest = crowd_out(extra_bytes=GIB)
    result = tuning.run()
    assert fastest in [config for config, _ in tuning.bench.watched]
    assert result.best.config != fastest
    assert (result.raced_over_limit, result.rejected) == ((fastest.hash,), {fastest.hash: Outcome.OVER_LIMIT})
    trials = read_trials(tuning.folder.database, tuning.folder.name_in_database)
    name = next(trial.description for trial in trials if trial.config == fastest)
    told = [line.outcome for line in answer_lines(result, trials) if line.config == name]
    assert set(told) <= {"over_limit"}
    assert f"not taken: {name}: over_limit in its own process" in answer_sentences(result, trials)
