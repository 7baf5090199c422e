"""A whole tuning gives out nothing that trains something else."""

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.units import MIB


def test_a_winner_was_checked_for_its_gradients(finished):
    """What is recommended trains as without recompute, and the answer says over how many steps that was seen."""
    tuning, result = finished
    assert result.best.config in tuning.bench.checked
    assert (result.best.gradients.agrees, result.best.gradients.steps) == (True, 3)


def test_a_winner_with_wrong_gradients_gives_way_and_its_plan_is_named(finished, make_tuning):
    """A config that trains something else is never recommended, however fast, and its culprit is told."""
    _, undisturbed = finished
    tuning = make_tuning()
    culprit = tuning.bench.detection.space.plans[1]
    assert undisturbed.best.config.has(culprit)
    tuning.bench.wrong = (culprit,)
    best = tuning.run().best
    assert not best.config.has(culprit)
    assert best.peak_bytes <= 600 * MIB
    (note, *_) = [note for note in tuning.watcher.notes if note.startswith("wrong_gradient")]
    assert f"by {culprit.label}" in note
    assert not any(config.has(culprit) for config, _ in tuning.bench.watched)


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_plan_that_could_not_be_compared_is_not_called_wrong(make_tuning, make_measurement, is_measured):
    """What kept its check from being made says nothing of its gradients, nor that plans are wrong together only."""
    tuning = make_tuning()
    plans = tuning.bench.detection.space.plans
    check, alone = tuning.bench.check, [Config.of([plan]) for plan in (plans if not is_measured else plans[2:])]

    def check_or_run_out(config):
        return make_measurement(Outcome.OOM, message="no memory") if config in alone else check(config)

    tuning.bench.wrong, tuning.bench.check = plans[1:2], check_or_run_out
    tuning.run()
    (note, *_) = [note for note in tuning.watcher.notes if note.startswith("wrong_gradient")]
    named = note.partition("wrong gradients")[2].partition(":")[0]
    assert named == (f", by {plans[1].label}" if is_measured else "")


def test_where_all_gradients_are_wrong_memory_is_not_blamed(make_tuning):
    """When every config that fits trains something else, the sentence says that, and suggests no other limit."""
    tuning = make_tuning()
    tuning.bench.wrong = tuning.bench.detection.space.plans
    with pytest.raises(NothingFitsError, match="gradients") as caught:
        tuning.run()
    assert "--memory-limit" not in str(caught.value)


def test_no_recompute_needs_no_check(make_tuning):
    """Where the answer is to set nothing, there is nothing to compare."""
    tuning = make_tuning(limit_bytes=1000 * MIB)
    assert tuning.run().best.gradients is None
    assert tuning.bench.checked == []
