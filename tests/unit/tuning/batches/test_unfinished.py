import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies import load_result
from autorecompute.studies.batch_studies import read_batches
from autorecompute.tuning.batches.batch_tuner import LEAST_TRIALS
from autorecompute.tuning.batches.throughput_curve import NO_FIT, TOO_FEW_TRIALS
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from stand_ins.emitted import choices_of

LARGEST = 20
"""The largest batch that fits in 600 MiB without recompute, by the formula."""


def test_a_comparison_that_the_time_ended_is_gone_on_with(begin_timed):
    first = begin_timed((8, LARGEST, 24), timeout_seconds=250.0)
    result = first.run()
    assert load_result("bert-b24", first.folder.path.parent).search_end is SearchEnd.NOTHING_LEFT
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


def test_a_batch_above_one_that_no_config_holds_is_not_open(begin):
    several = begin((16, 64, 96), max_trials=LEAST_TRIALS + 1)
    result = several.run()
    described = {point.batch: point.recomputed.description for point in result.curve if point.recomputed is not None}
    assert described == {64: NO_FIT, 96: TOO_FEW_TRIALS}
    assert (result.verdict, result.compared) == (Verdict.DOES_NOT_PAY, True)


def test_a_batch_above_one_that_no_config_holds_needs_no_trials(begin):
    result = begin((16, 24, 64, 96), max_trials=2 * LEAST_TRIALS).run()
    assert {point.batch for point in result.curve if point.recomputed is not None} == {24, 64}
    assert (result.compared, result.verdict) == (True, Verdict.RECOMPUTE_PAYS)


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
    watch = first.lead.watch

    def watch_or_be_lost(environment, effort, batch):
        measured = watch(environment, effort, batch)
        return make_measurement(Outcome.LOST) if batch == LARGEST else measured

    first.lead.watch = watch_or_be_lost
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


def test_too_little_time_for_a_batch_tells_what_is_kept(begin_timed, clock):
    stopped = begin_timed((24, 28))
    clock.stop_at = clock.now + 50.0
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert read_batches(stopped.folder, (24, 28)).without
    with pytest.raises(NothingFitsError, match=r"before another batch was done.*kept in .*same command goes on"):
        begin_timed((24, 28), timeout_seconds=5.0).run()


def test_too_little_time_for_a_batch_takes_no_better_answer_away(begin_timed, clock):
    first = begin_timed((8, 16, 24, 64))
    note = first.watcher.note

    def note_and_stop(text):
        note(text)
        if text.startswith("batch 64: tuning"):
            clock.stop_at = clock.now + 8.0

    first.watcher.note = note_and_stop
    with pytest.raises(KeyboardInterrupt):
        first.run()
    left = first.folder.result()
    assert left.best.batch == 24
    result = begin_timed((8, 16, 24, 64), timeout_seconds=30.0).run()
    assert (result.best, result.curve, result.search_end) == (left.best, left.curve, SearchEnd.TIME)
    assert first.folder.result() == result
    assert choices_of(first.folder) == left.best.config.texts
