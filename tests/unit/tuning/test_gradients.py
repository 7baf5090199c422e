"""A whole tuning gives out nothing that trains something else."""

from __future__ import annotations

import pytest

from autorecompute.errors import NothingFitsError
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
