"""An effective batch of 96, of which 20 samples fit in a pass without recompute, by the formula."""

import dataclasses
from types import SimpleNamespace

import pytest

from autorecompute.errors import NothingFitsError, UsageError, WrongBatchError
from autorecompute.figures import Verdict
from autorecompute.measurement import Measurement, Outcome
from autorecompute.tuning.context import TuningContext
from autorecompute.units import MIB
from fake_backend import controller
from stand_ins.formula import RESTING, instead, look_over_batch

EFFECTIVE = 96
LARGEST = 16  # the largest divisor that fits in 600 MiB without recompute


@pytest.fixture
def begin_effective(begin):
    def begin_effective(effective=EFFECTIVE, **options):
        several = begin((), **options)
        job = dataclasses.replace(several.context.job, global_batch=effective, accumulation_flag="--accum")
        several.context.job = job
        return several

    return begin_effective


def test_one_answer_has_micro_batch_accumulation_and_config_and_leads_with_what_people_would_do_by_hand(
    begin_effective, monkeypatch
):
    monkeypatch.setattr(controller, "USUAL_PRESET", "light")
    several = begin_effective()
    result = several.run()
    best = result.best
    assert best.batch * best.accumulation == EFFECTIVE
    assert not best.config.is_none
    assert best.batch > LARGEST == result.rival.batch
    assert result.verdict is Verdict.RECOMPUTE_PAYS
    assert result.command[-4:] == ["--bs", str(best.batch), "--accum", str(best.accumulation)]
    assert all(EFFECTIVE % point.batch == 0 for point in result.curve)
    assert len(several.benches) <= 3
    usual, plain = result.headline.split(", ")
    assert "x gradient checkpointing" in usual
    assert plain.endswith(f"x micro-batch {LARGEST} x {EFFECTIVE // LARGEST} without recompute")
    again = begin_effective()
    assert again.run() == result
    assert not again.has_measured


def test_gradient_checkpointing_has_its_own_best_micro_batch(begin_effective, monkeypatch):
    """By forecast 48 samples fit with it; its whole process needs more, and 32 fit."""
    monkeypatch.setattr(controller, "USUAL_PRESET", "light")
    forecasts = SimpleNamespace(
        base_bytes=lambda _: RESTING,
        largest_batch=lambda config, *_: LARGEST if config.is_none else 48,
        forecasts=lambda _: [SimpleNamespace(peak_bytes=0, recompute_share=0.1)],
    )
    monkeypatch.setattr(TuningContext, "memory", property(lambda _: forecasts))
    several = begin_effective(formula={"step_seconds": 0.0})
    result = several.run()
    assert [batch for config, batch in several.bench.watched if not config.is_none] == [48, 32]
    assert result.checkpointing.batch == 32
    assert result.headline == f"~{result.beside_checkpointing.ratio:.2f}x gradient checkpointing at micro-batch 32 x 3"


def test_where_a_pass_costs_nothing_no_recompute_is_the_answer(begin_effective):
    several = begin_effective(formula={"step_seconds": 0.0})
    result = several.run()
    assert result.best.config.is_none
    assert result.best.batch * result.best.accumulation == EFFECTIVE
    assert "without recompute is" in result.verdict_sentence


def test_a_prime_that_does_not_fit_in_one_pass_is_trained_a_sample_at_a_time(begin_effective):
    result = begin_effective(effective=97).run()
    assert (result.best.batch, result.best.accumulation) == (1, 97)


def test_a_model_that_no_divisor_fits_is_told_so(begin_effective):
    several = begin_effective(limit_bytes=101 * MIB)
    with pytest.raises(NothingFitsError, match="Try a higher --memory-limit"):
        several.run()


def with_batch_norm(bench):
    bench.detection = dataclasses.replace(
        bench.detection, unsplittable="BatchNorm (bn) takes its statistics over one pass"
    )
    return bench


def contrastive(bench):
    look_over_batch(bench)
    return bench


@pytest.mark.parametrize(
    ("adapt", "why"), [(with_batch_norm, "BatchNorm (bn)"), (contrastive, "as a contrastive one")], ids=["norm", "loss"]
)
def test_a_batch_that_cannot_be_split_is_tuned_as_it_is(begin_effective, adapt, why):
    several = begin_effective(effective=24, adapt=adapt)
    result = several.run()
    assert (result.best.batch, result.best.accumulation) == (24, 1)
    assert any(why in note for note in several.watcher.notes)
    again = begin_effective(effective=24, adapt=adapt)
    assert again.run() == result
    assert not again.has_measured, "why is in the study"


def ranked(world):
    def adapt(bench):
        bench.detect_ranks = lambda: (bench.detection,) * world
        return bench

    return adapt


def test_ranks_share_the_effective_batch(begin_effective):
    best = begin_effective(adapt=ranked(2)).run().best
    assert 2 * best.batch * best.accumulation == EFFECTIVE


def test_an_effective_batch_that_the_ranks_cannot_share_is_refused(begin_effective):
    with pytest.raises(UsageError, match="5 ranks cannot share"):
        begin_effective(adapt=ranked(5)).run()


def test_a_script_that_does_not_accumulate_ends_the_command(begin_effective):
    several = begin_effective()
    instead(several.bench, "watch", lambda *_: Measurement(outcome=Outcome.WRONG_BATCH, message="one pass, not 6"))
    with pytest.raises(WrongBatchError, match="one pass, not 6"):
        several.run()
