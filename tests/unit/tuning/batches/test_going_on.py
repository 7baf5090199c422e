import functools

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.figures import Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies.records import read_batches, study_of_batch
from autorecompute.tuning.session import LEAST_TRIALS
from autorecompute.tuning.throughput_curve import NO_FIT, NOT_IN_TIME, TOO_FEW_TRIALS
from autorecompute.units import MIB
from stand_ins.emitted import choices_of
from stand_ins.formula import instead, stop

LARGEST = 20  # the largest batch that fits in 600 MiB without recompute, by the formula


class Interrupted:
    """Loses patience in the nth process of a whole tuning."""

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


@pytest.mark.parametrize("process", [1, 45])
def test_an_interrupted_comparison_goes_on_where_it_stopped(best, begin, process):
    several, undisturbed = best
    first, second = stop(begin(adapt=Interrupted(process))), begin()
    result = second.run()
    plain = [point.batch for point in undisturbed.curve if point.fits_without]
    left = max(len(plain) - len(first.watched), 0)
    assert first.watched + second.watched[:left] == several.watched[: len(first.watched) + left]
    assert (result.best.config, result.best.batch) == (undisturbed.best.config, undisturbed.best.batch)
    assert result.trials == undisturbed.trials
    assert result.curve == undisturbed.curve


def test_who_is_interrupted_has_the_best_so_far(begin):
    so_far = stop(begin(adapt=Interrupted(4))).folder.result()
    assert (so_far.best.batch, so_far.best.config, so_far.search_end) == (LARGEST, Config(), SearchEnd.INTERRUPTED)
    assert begin().run().best.batch > LARGEST


def test_going_on_and_stopping_again_loses_no_answer(begin):
    result = begin((16, 24), max_trials=LEAST_TRIALS).run()
    assert stop(begin((16, 24), max_trials=20, adapt=Interrupted(1))).folder.result() == result


def test_another_list_uses_what_was_measured(begin):
    begin((8, 16, 24)).run()
    wider = begin((4, 8, 16, 24))
    wider.run()
    assert wider.watched[0] == 4
    assert not set(wider.watched[1:]) & {8, 16}
    assert wider.benches == {}


def test_the_answer_to_another_list_is_not_taken_for_an_answer_and_stays(begin):
    old = begin((8, 16)).run()
    for _ in range(2):
        stopped = stop(begin((24, 32), adapt=Interrupted(1)))
        assert stopped.tuner.so_far is None
        assert stopped.folder.result() == old


def test_a_limit_that_only_whole_processes_break_is_told_as_such(begin):
    def live_long(bench):
        bench.every_life_bytes = 600 * MIB
        return bench

    with pytest.raises(NothingFitsError, match="but its whole process did not") as failed:
        begin((1,), adapt=live_long, max_trials=8).run()
    assert "smaller batch" not in str(failed.value)


def test_a_shorter_list_is_answered_though_more_was_known_before(begin):
    begin((4, 8, 12, 16)).run()
    stopped = stop(begin((8, 64), adapt=Interrupted(1)))
    so_far = stopped.tuner.so_far
    assert so_far == stopped.folder.result()
    assert (so_far.best.batch, so_far.search_end) == (8, SearchEnd.INTERRUPTED)


@pytest.mark.parametrize("timeout_seconds", [60.0, 400.0])
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


def test_who_stops_in_a_batch_has_what_was_confirmed_there(begin_timed):
    several = stop(begin_timed((8, 24)), after=160.0)
    so_far = several.tuner.so_far
    assert so_far == several.folder.result()
    assert (so_far.search_end, so_far.best.batch) == (SearchEnd.INTERRUPTED, 24)
    assert choices_of(several.folder) == so_far.best.config.texts
    assert begin_timed((8, 24)).run().best.samples_per_second >= so_far.best.samples_per_second


def test_a_comparison_that_the_time_ended_is_gone_on_with(begin_timed):
    first = begin_timed((8, LARGEST, 24), timeout_seconds=250.0)
    result = first.run()
    assert study_of_batch(first.folder, 24).require_result().search_end is SearchEnd.NOTHING_LEFT
    assert (result.comparison.pairs, result.comparison.is_clear) == (1, False)
    assert (result.verdict, result.compared, result.search_end) == (Verdict.UNDECIDED, False, SearchEnd.TIME)
    more = begin_timed((8, LARGEST, 24)).run()
    assert more.comparison.is_clear
    assert (more.verdict, more.compared) == (Verdict.DOES_NOT_PAY, True)


def test_a_list_whose_trials_are_used_up_is_not_decided(begin):
    several = begin((16, 24, 28), max_trials=LEAST_TRIALS)
    result = several.run()
    assert {point.batch for point in result.curve if point.recomputed is not None} == {24}
    assert (result.verdict, result.compared, result.search_end) == (Verdict.UNDECIDED, False, SearchEnd.TRIALS)
    (note,) = [note for note in several.watcher.notes if "--max-trials" in note]
    assert "batch 28 was not tuned" in note
    assert "with a higher --max-trials" in result.verdict_sentence
    same = begin((16, 24, 28), max_trials=LEAST_TRIALS)
    assert same.run() == result
    assert not same.has_measured
    more = begin((16, 24, 28), max_trials=40).run()
    assert (more.verdict, more.compared) == (Verdict.RECOMPUTE_PAYS, True)


@pytest.mark.parametrize("batches", [(16, 24, 28), ()])
def test_a_batch_that_had_too_few_trials_is_not_said_to_be_too_large(begin, batches):
    several = begin(batches, max_trials=1)
    result = several.run()
    assert [point.recomputed.description for point in result.curve if point.recomputed is not None] == [TOO_FEW_TRIALS]
    assert (result.verdict, result.compared, result.best.config) == (Verdict.UNDECIDED, False, Config())
    assert "with a higher --max-trials" in result.verdict_sentence
    assert begin(batches, max_trials=40).run().verdict is Verdict.RECOMPUTE_PAYS


def test_a_list_that_none_was_found_for_in_so_few_trials_has_no_verdict(begin):
    several = begin((24, 28), max_trials=1)
    with pytest.raises(NothingFitsError, match=r"No batch that holds 600 MiB was found in 1 trial.*--max-trials"):
        several.run()
    assert several.folder.result().verdict is None
    assert begin((24, 28)).run().best is not None


@pytest.mark.parametrize(
    ("batches", "max_trials", "told", "verdict"),
    [
        ((16, 64, 96), LEAST_TRIALS + 1, {64: NO_FIT, 96: TOO_FEW_TRIALS}, Verdict.DOES_NOT_PAY),
        ((16, 24, 64, 96), 2 * LEAST_TRIALS, {64: NO_FIT}, Verdict.RECOMPUTE_PAYS),
    ],
)
def test_a_batch_above_one_that_no_config_holds_leaves_nothing_open(begin, batches, max_trials, told, verdict):
    result = begin(batches, max_trials=max_trials).run()
    large = {point.batch: point.recomputed.description for point in result.curve if point.batch >= 64}
    assert large == told
    assert (result.verdict, result.compared) == (verdict, True)


def test_what_is_taken_over_takes_no_trials(make_root, begin_in, tune_in, make_detection):
    root = make_root()
    detection = make_detection(batch=24, resting_bytes=100 * MIB)
    known = tune_in(root, name="alone", batch=24, detection=detection).run()
    assert known.trials > LEAST_TRIALS
    several = begin_in(root, (16, 24, 28), max_trials=LEAST_TRIALS)
    result = several.run()
    assert several.benches[24].measured == []
    assert len(several.benches[28].measured) > 0
    assert {point.batch for point in result.curve if point.recomputed is not None} == {24, 28}


def test_a_batch_whose_processes_were_lost_is_measured_again(begin, make_measurement):
    first = begin(max_trials=LEAST_TRIALS)
    lost = make_measurement(Outcome.LOST)
    instead(first.bench, "watch", lambda watch, *args: watch(*args) and lost if args[-1] == LARGEST else watch(*args))
    assert first.run().rival.batch < LARGEST
    assert first.watched.count(LARGEST) == 2
    assert any(f"batch {LARGEST}: its processes were lost" in note for note in first.watcher.notes)
    second = begin(max_trials=LEAST_TRIALS)
    assert second.run().rival.batch == LARGEST
    assert begin(max_trials=LEAST_TRIALS).run() == second.folder.result()


def test_where_no_trial_has_a_peak_none_is_told(begin):
    several = begin((48, 64), max_trials=8, formula={"oom_bytes": 200 * MIB})
    with pytest.raises(NothingFitsError, match="none of its trials ran to its end"):
        several.run()


def test_too_little_time_for_a_batch_tells_what_is_kept(begin_timed):
    stopped = stop(begin_timed((24, 28)), after=50.0)
    assert read_batches(stopped.folder, (24, 28)).without
    with pytest.raises(NothingFitsError, match=r"before another batch was done.*kept in .*Rerun the command"):
        begin_timed((24, 28), timeout_seconds=5.0).run()


def test_too_little_time_for_a_batch_takes_no_better_answer_away(begin_timed, clock):
    first = begin_timed((8, 16, 24, 64))

    def note_and_stop(note, text):
        note(text)
        if text.startswith("batch 64: tuning"):
            clock.stop_at = clock.now + 8.0

    instead(first.watcher, "note", note_and_stop)
    left = stop(first).folder.result()
    assert left.best.batch == 24
    result = begin_timed((8, 16, 24, 64), timeout_seconds=30.0).run()
    assert (result.best, result.curve, result.search_end) == (left.best, left.curve, SearchEnd.TIME)
    assert first.folder.result() == result
    assert choices_of(first.folder) == left.best.config.texts
