from dataclasses import replace
from types import SimpleNamespace

import pytest

from autorecompute.figures import Verdict
from autorecompute.measurement import Measurement, Outcome
from autorecompute.tuning import rivals
from autorecompute.tuning.rivals import measure_rival_batch
from autorecompute.units import MIB
from stand_ins.formula import instead, look_over_batch
from unit.conftest import build_detection

RESTING, LIMIT, BATCH = 100 * MIB, 600 * MIB, 32


class Watched:
    """Runs whose peak grows as the test says; where that is ``None`` it runs out of memory."""

    def __init__(self, peak_bytes, outcome=Outcome.OK):
        self.peak_bytes, self.outcome, self.batches = peak_bytes, outcome, []

    def measure(self, batch):
        self.batches.append(batch)
        peak = self.peak_bytes(batch)
        if peak is None:
            return Measurement(outcome=Outcome.OOM)
        return Measurement(outcome=self.outcome, peak_bytes=peak, step_seconds=(0.1,), samples=batch, batch=batch)


def take(mib, up_to=BATCH):
    """A peak that each sample adds so much to, up to a batch that is too large."""
    return lambda batch: RESTING + mib * MIB * batch if batch <= up_to else None


def look(bench, peak_bytes, *, batch=BATCH, resting_bytes=RESTING, **more):
    """Looks for the rival of a batch of 32 in 600 MiB, whose own peak may be known."""
    found, none_fits, is_first = measure_rival_batch(
        bench.measure, batch, LIMIT, resting_bytes=resting_bytes, peak_bytes=peak_bytes, **more
    )
    return SimpleNamespace(found=found, none_fits=none_fits, is_first=is_first)


GROWTHS = {
    "the first guess is the largest": (900 * MIB, take(25), [20], True),
    "the second fits": (900 * MIB, take(30), [20, 16], False),
    "the second fits what the first told": (900 * MIB, lambda batch: take(25)(batch) + 50 * MIB, [20, 18], False),
    "the second is larger": (900 * MIB, take(20), [20, 25], False),
    "the second fails": (900 * MIB, take(20, up_to=20), [20, 25], True),
    "half the batch, and up": (None, take(25), [16, 20], False),
    "half the batch, and nothing larger": (None, take(25, up_to=16), [16, 20], True),
    "half the batch, and what is barely larger is not tried": (None, take(30), [16], True),
}


@pytest.mark.parametrize(("baseline", "peak_bytes", "batches", "is_first"), GROWTHS.values(), ids=GROWTHS)
def test_the_largest_batch_that_fits_is_the_rival_and_it_is_known_whether_it_ran_first(
    baseline, peak_bytes, batches, is_first
):
    """What ran after other processes of the search is minutes away from the confirmation of the winner."""
    bench = Watched(peak_bytes)
    search = look(bench, baseline)
    assert (bench.batches[:2], search.is_first) == (batches, is_first)
    assert search.found.batch == (batches[0] if is_first else batches[1])


def test_the_first_batch_is_what_is_forecast_to_fit_and_stays_where_there_is_no_time_for_more():
    bench = Watched(take(125, up_to=4))
    assert (look(bench, None, forecast_batch=4).found.batch, bench.batches) == (4, [4])
    bench = Watched(take(25))
    assert look(bench, None, has_time=lambda: not bench.batches).found.batch == 16


@pytest.mark.parametrize("baseline", [900 * MIB, None])
@pytest.mark.parametrize(
    ("growth", "outcome"),
    [
        (lambda batch: LIMIT + batch * MIB, Outcome.OK),
        (lambda batch: None if batch > 4 else 9 * LIMIT, Outcome.OK),
        (lambda batch: batch, Outcome.DIVERGED),
    ],
)
def test_a_guess_that_does_not_fit_or_fails_within_the_limit_shrinks(baseline, growth, outcome):
    bench = Watched(growth, outcome)
    search = look(bench, baseline)
    assert (search.found, search.none_fits) == (None, False)
    assert bench.batches == sorted(set(bench.batches), reverse=True)
    assert 1 <= len(bench.batches) <= 3
    assert all(1 <= batch < BATCH for batch in bench.batches)


def test_processes_with_others_between_them_are_no_pair(make_tuning):
    """Where the first guess did not fit, both sides of each pair run anew, one right after the other."""
    tuning = make_tuning()
    instead(tuning.bench, "peak_bytes", lambda peak, config, batch: peak(config, batch) + 60 * MIB * (batch < 32))
    result = tuning.run()
    rival = result.rival.batch
    assert [batch for _, batch in tuning.bench.watched] == [32, 20, rival, 32, rival, rival, 32]
    assert result.comparison.pairs == 2


def test_no_smaller_batch_is_compared_where_the_loss_is_over_the_batch(make_tuning):
    tuning = make_tuning()
    look_over_batch(tuning.bench)
    result = tuning.run()
    assert (result.rival, {batch for _, batch in tuning.bench.watched}) == (None, {32})
    assert result.verdict_sentence.endswith("fits only with it, and a smaller one trains to other weights")
    assert any("no smaller batch is compared" in text for text in tuning.watcher.notes)


def test_a_smaller_batch_is_told_to_train_to_other_weights_where_a_layer_mixes_samples(make_tuning):
    detection = build_detection(resting_bytes=RESTING, unsplittable="it has BatchNorm")
    result = make_tuning(detection=detection).run()
    assert result.rival is not None
    assert any("it has BatchNorm: a smaller batch trains to other weights" in text for text in result.warnings)


def test_a_loss_is_looked_at_in_the_first_trial_and_not_where_no_batch_was_asked_for(make_tuning):
    for batch, count in ((32, 1), (None, 0)):
        tuning = make_tuning(batch=batch)
        tuning.context.job = replace(tuning.context.job, batch_flag=None)
        tuning.run()
        assert sum(effort.looks_at_loss for _, effort in tuning.bench.measured) == count


@pytest.mark.parametrize(("batch", "resting_bytes", "baseline"), [(1, RESTING, None), (32, LIMIT + 1, 900 * MIB)])
def test_where_no_smaller_batch_exists_nothing_is_started(batch, resting_bytes, baseline):
    bench = Watched(lambda _: 0)
    search = look(bench, baseline, batch=batch, resting_bytes=resting_bytes)
    assert (search.found, search.none_fits, bench.batches) == (None, True, [])


@pytest.mark.parametrize(("outcome", "none_fits"), [(Outcome.OK, True), (Outcome.CRASH, False)])
def test_that_none_fits_is_known_once_a_single_sample_did_not(outcome, none_fits):
    """Estimates alone do not rule a batch of one out, and a crash says nothing about memory."""
    bench = Watched(lambda batch: LIMIT + 50 * MIB * batch, outcome)
    search = look(bench, 40 * LIMIT)
    assert (search.found, search.none_fits, bench.batches) == (None, none_fits, [1])


@pytest.mark.parametrize("baseline", [LIMIT, LIMIT - 10 * MIB])
def test_a_rival_is_smaller_even_where_the_baseline_nearly_fits(baseline):
    assert look(Watched(lambda batch: batch), baseline).found.batch < BATCH


@pytest.fixture
def tuning(make_tuning, monkeypatch):
    """Of a training system that swaps in no time."""
    monkeypatch.setattr(rivals, "takes_turns", lambda _: True)
    return make_tuning()


def test_where_swaps_take_no_time_a_smaller_batch_is_compared_in_the_process_that_lives(tuning):
    result = tuning.run()
    assert [batch for _, batch in tuning.bench.watched] == [32]
    assert (result.rival.batch, result.comparison.is_clear, result.compared) == (20, True, True)
    batches = [effort.batch for _, effort in tuning.bench.measured if effort.warmup == 0]
    assert batches[:5] == [None, None, 20, 20, None]
    assert batches[-1] is None, "gradients are compared at the target batch"


def test_a_smaller_batch_that_is_faster_is_confirmed_in_a_fresh_process(tuning):
    """It is what the answer says to train with."""
    tuning.bench.step_seconds = 0.0001
    result = tuning.run()
    assert result.verdict is Verdict.DOES_NOT_PAY
    assert [batch for _, batch in tuning.bench.watched] == [32, result.rival.batch]


def test_a_smaller_batch_that_does_not_fit_a_fresh_process_gives_way_to_one_that_does(tuning):
    tuning.bench.step_seconds = 0.0001

    def need_too_much_at_20(watch, *args):
        return replace(watch(*args), peak_bytes=2 * LIMIT) if args[-1] == 20 else watch(*args)

    instead(tuning.bench, "watch", need_too_much_at_20)
    result = tuning.run()
    assert result.rival.batch < 20
    assert result.comparison.is_clear


def test_a_script_whose_batch_cannot_be_changed_is_compared_in_fresh_processes(tuning):
    refused = Measurement(outcome=Outcome.WRONG_BATCH)
    instead(tuning.bench, "measure", lambda run, config, effort: refused if effort.batch else run(config, effort))
    result = tuning.run()
    assert len(tuning.bench.watched) > 2
    assert result.comparison.pairs >= 2
