import math
from dataclasses import replace

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.figures import Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer import answer_lines, answer_sentences, runners_up
from autorecompute.tuning.confirmation import TELLING, Confirmer
from autorecompute.tuning.race import ROUND_EFFORT
from autorecompute.tuning.throughput_curve import TunedBatch, draw
from autorecompute.units import GIB, MIB
from stand_ins.formula import FormulaBench, instead, let_baseline_hold, stop
from stand_ins.sharing import measured
from unit.conftest import build_measurement, build_trial

SAVINGS = tuple(round(mib * MIB) for mib in (6, 4, 2.6, 0.5, 0.3))


def break_processes(tuning, outcome, *, first=math.inf):
    """Lets the first fresh processes of a tuning, or all of them, end badly."""

    def watch_or_break(watch, *args):
        measurement = watch(*args)
        return build_measurement(outcome) if len(tuning.bench.watched) <= first else measurement

    instead(tuning.bench, "watch", watch_or_break)


@pytest.fixture
def begin_holding(make_tuning):
    """Begins a tuning in which processes hold so much beyond their tensors: that without recompute, and all others."""

    def begin(baseline_bytes, others_bytes, bench=None, **settings):
        tuning = make_tuning(bench, **{"max_trials": 30, **settings})
        tuning.bench.every_life_bytes = others_bytes
        let_baseline_hold(tuning.bench, baseline_bytes)
        return tuning

    return begin


def test_a_process_that_was_lost_is_started_once_more(make_tuning):
    tuning = make_tuning(max_trials=12)
    break_processes(tuning, Outcome.LOST, first=1)
    best = tuning.run().best
    assert tuning.bench.watched[:2] == [(best.config, 32)] * 2
    assert not any("not confirmed" in note for note in tuning.watcher.notes)


@pytest.mark.parametrize("oom_bytes", [None, 930 * MIB])
def test_a_baseline_that_fails_its_confirmation_makes_room_for_recompute(make_tuning, oom_bytes):
    tuning = make_tuning(FormulaBench(oom_bytes=oom_bytes), limit_bytes=920 * MIB, max_trials=12)
    tuning.bench.life_bytes[Config()] = 50 * MIB
    best = tuning.run().best
    assert not best.config.is_none
    assert best.peak_bytes < tuning.bench.peak_bytes(Config(), 32)
    # The search for it aimed lower; what is kept was held against the limit that was asked for.
    trials = measured(tuning)
    assert all(trial.fits == (trial.measurement.peak_bytes <= 920 * MIB) for trial in trials)


def test_what_two_processes_need_too_much_is_expected_of_the_others(make_tuning):
    tuning = make_tuning(max_trials=30)
    tuning.bench.every_life_bytes = 150 * MIB
    best = tuning.run().best
    told = [note.startswith("not confirmed") for note in tuning.watcher.notes]
    below = next(at for at, note in enumerate(tuning.watcher.notes) if "searching below" in note)
    assert sum(told[:below]) == TELLING
    assert best.confirmed
    assert best.peak_bytes <= best.limit_bytes
    # Whatever the others are given for it, those two are no longer what the next trial has to beat.
    held = {trial.config: trial for trial in Confirmer(tuning.context).hold(measured(tuning))}
    rejected = [known.config for known in tuning.folder.rejections()]
    assert len(rejected) >= TELLING
    assert not any(held[config].fits for config in rejected)


def test_what_glibc_keeps_by_chance_is_not_left_for_all(begin_holding):
    """Of a baseline that held a third more than its tensors, a twentieth of the limit is taken for the rule."""
    tuning = begin_holding(300 * MIB, 0)
    room = tuning.run().best.limit_bytes // 20 // MIB
    assert sum(f"leaving {room} MiB of the limit" in note for note in tuning.watcher.notes) == 1


def test_a_baseline_that_was_lost_leaves_the_next_one_to_tell(make_tuning, begin_holding):
    first = stop(make_tuning(limit_bytes=540 * MIB), interrupt_at=0)
    first.folder.begin_trial(build_trial(number=0, outcome=Outcome.LOST))
    tuning = begin_holding(25 * MIB, 25 * MIB, limit_bytes=540 * MIB)
    best = tuning.run().best
    assert not tuning.folder.rejections()
    assert best.peak_bytes <= best.limit_bytes


def test_a_guess_that_leaves_room_for_nothing_is_replaced_by_what_the_leanest_needs(begin_holding):
    bench = FormulaBench(costs=(0.04, 0.03, 0.05, 0.01, 0.1))
    tuning = begin_holding(25 * MIB, 10 * MIB, bench, limit_bytes=455 * MIB)
    best = tuning.run().best
    assert best.confirmed
    assert not tuning.folder.rejections()
    assert best.peak_bytes == min(bench.peak_bytes(config, 32) for config in tuning.tried) + 10 * MIB


def test_little_time_goes_to_the_leanest_where_the_guess_left_room_for_nothing(make_timed_bench, begin_holding, clock):
    """The fastest of those within the limit breaks it as a whole process, and there is no time for a third."""
    bench = make_timed_bench(savings=SAVINGS, costs=(0.01, 0.01, 0.01, 0.3, 0.3), start_seconds=10.0)
    settings = {"limit_bytes": 488 * MIB, "max_trials": 40, "timeout_seconds": 90.0, "began_seconds": clock.now}
    best = begin_holding(25 * MIB, 10 * MIB, bench, **settings).run().best
    assert best.config == bench.detection.space.all_on
    assert best.peak_bytes == bench.peak_bytes(best.config, 32) + 10 * MIB
    assert [config for config, _ in bench.watched] == [best.config]


def test_a_worker_that_has_ended_is_not_started_for_a_config_that_needs_too_much(make_tuning):
    tuning = make_tuning(max_trials=12)
    tuning.bench.every_life_bytes = 100 * MIB

    def watch_alone(watch, *args):
        tuning.bench.is_live = False
        return watch(*args)

    instead(tuning.bench, "watch", watch_alone)
    best = tuning.run().best
    rejected = [known.config for known in tuning.folder.rejections()]
    assert len(rejected) > 1
    assert set(rejected[1:]).isdisjoint(tuning.bench.checked)
    assert tuning.bench.checked[-1] == best.config
    assert best.gradients.agrees


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.HANG, Outcome.LOST, Outcome.TIMEOUT])
def test_failures_that_may_pass_are_no_final_answer(make_tuning, outcome):
    first, second = make_tuning(max_trials=12), make_tuning(max_trials=12)
    break_processes(first, outcome)
    with pytest.raises(NothingFitsError):
        first.run()
    assert first.folder.result().search_end.is_early
    assert first.folder.rejections() == []
    assert second.run().best.confirmed
    assert second.tried == []


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.TIMEOUT, Outcome.CRASH])
def test_who_fails_in_the_race_is_confirmed_where_nobody_else_is_left(make_tuning, outcome):
    tuning = make_tuning(max_trials=12, limit_bytes=450 * MIB)

    def fail_in_rounds(measure, config, effort):
        measurement = measure(config, effort)
        return build_measurement(outcome) if effort == ROUND_EFFORT and not config.is_none else measurement

    instead(tuning.bench, "measure", fail_in_rounds)
    assert tuning.run().best.peak_bytes <= 450 * MIB


@pytest.fixture
def crowd_out(tune_in, make_root):
    """A tuning in whose race the fastest config that fits is over the limit; as a whole process it is what is told."""

    def make(extra_bytes=0):
        fastest = tune_in(make_root(), max_trials=12).run().best.config
        tuning = tune_in(make_root(), max_trials=12)
        tuning.bench.life_bytes = {fastest: extra_bytes}

        def be_over_in_rounds(measure, config, effort):
            measurement = measure(config, effort)
            if effort != ROUND_EFFORT or config.is_none:
                return measurement
            if config == fastest:
                return replace(measurement, peak_bytes=measurement.peak_bytes + GIB)
            return replace(measurement, step_seconds=tuple(1.1 * step for step in measurement.step_seconds))

        instead(tuning.bench, "measure", be_over_in_rounds)
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
    trials = measured(tuning)
    name = next(trial.description for trial in trials if trial.config == fastest)
    told = [line[-1] for line in answer_lines(result, trials) if line[1] == name]
    assert set(told) <= {"over_limit"}
    assert f"not taken: {name}: over_limit in its own process" in answer_sentences(result, trials)


LIMIT, BEYOND = 903 * MIB, 25 * MIB


@pytest.fixture(scope="module")
def told(tune_in, make_root):
    """An answer whose processes hold 25 MiB beyond their tensors, and its trials; no recompute has 3 MiB left."""
    tuning = tune_in(make_root(), max_trials=30, limit_bytes=LIMIT)
    tuning.bench.every_life_bytes = BEYOND
    let_baseline_hold(tuning.bench, BEYOND)
    result = tuning.run()
    assert not tuning.folder.rejections()
    assert result.best.peak_bytes <= result.best.limit_bytes
    assert not any("searching below" in note for note in tuning.watcher.notes)
    assert sum("leaving 25 MiB of the limit" in note for note in tuning.watcher.notes) == 1
    return result, measured(tuning)


def test_no_table_calls_a_trial_over_the_limit_that_is_not_and_who_leaves_too_little_is_told_once(told):
    result, trials = told
    outcomes = {trial.config.hash: trial.measurement.outcome for trial in trials}
    assert result.baseline.outcome is outcomes[Config().hash] is Outcome.OK
    assert result.baseline.peak_bytes <= result.best.limit_bytes
    for figures in result.presets.values():
        if figures.outcome is not None:
            assert figures.outcome is (Outcome.OK if figures.peak_bytes <= LIMIT else Outcome.OVER_LIMIT)
    short = {trial.config.hash for trial in trials if LIMIT - BEYOND < trial.measurement.peak_bytes <= LIMIT}
    assert not result.best.config.is_none
    assert result.reserve_bytes == BEYOND
    assert set(result.short_of_reserve) == short > {Config().hash}
    others = [other.description for other in runners_up(result, trials)]
    assert others
    assert not {trial.description for trial in trials if trial.config.hash in short} & set(others)
    assert len([line for line in answer_lines(result, trials) if line[1] == "none"]) == 1
    sentences = [sentence for sentence in answer_sentences(result, trials) if "beyond its tensors" in sentence]
    who = f"{len(short)} configs, no recompute among them: within the limit, with less than 25 MiB left"
    assert sentences == [f"not taken: {who} for what a process holds beyond its tensors"]


def test_a_batch_whose_answer_recomputes_does_not_fit_without(told):
    result, _ = told
    tuned = TunedBatch(batch=32, result=result, least_peak_bytes=None, measured=1)
    assert not tuned.point.fits_without
    whole = replace(result.baseline, outcome=Outcome.OVER_LIMIT, peak_bytes=LIMIT + MIB, batch=32)
    assert draw([whole], [tuned])[-1].without == whole


def test_no_recompute_that_holds_the_limit_is_the_answer_though_others_look_as_fast(make_tuning):
    tuning = make_tuning(limit_bytes=912 * MIB)
    tuning.bench.every_life_bytes = 5 * MIB
    tuning.bench.pace = lambda number: 1.04 if number == 0 else 1.0
    let_baseline_hold(tuning.bench, 60 * MIB)
    result = tuning.run()
    assert result.verdict is Verdict.NOT_NEEDED
    assert (result.best.config, result.best.peak_bytes) == (Config(), 905 * MIB)


def test_where_the_process_of_no_recompute_needs_too_much_the_others_are_raced(make_tuning):
    tuning = make_tuning(limit_bytes=903 * MIB)
    tuning.bench.every_life_bytes = 5 * MIB
    result = tuning.run()
    assert tuning.bench.watched[0] == (Config(), 32)
    assert result.rejected[Config().hash] is Outcome.OVER_LIMIT
    assert result.best.ranking is not None
    assert result.best.config.hash in result.raced
