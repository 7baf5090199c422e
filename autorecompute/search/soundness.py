"""Which plans work at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.measurement import Outcome
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Space
    from autorecompute.search.candidates import Candidates


def sound_space(space: Space, trials: Sequence[Trial]) -> Space:
    """Return the space without the plans that failed alone, and not for want of memory: they would fail in company."""
    outcomes = {trial.config: trial.measurement.outcome for trial in trials}
    failed = {config for config, outcome in outcomes.items() if _blames_config(outcome)}
    return replace(space, plans=tuple(plan for plan in space.plans if Config.of([plan]) not in failed))


def chance_to_work(candidates: Candidates, trials: Sequence[Trial]) -> np.ndarray:
    """Return how likely each candidate comes to its end, by those that failed, and not for want of memory.

    A choice that was measured works as far as it was on. Of a config that failed one of its other choices is to blame:
    those that most of such configs have are equally likely to be the one. Where nothing else was on in it, no more than
    what was measured is.

    Args:
        candidates: The configs.
        trials: All that was measured.
    """
    switches = candidates.switches
    places = [(candidates.places.get(trial.config), trial.measurement.outcome) for trial in trials]
    works = [switches[place] for place, outcome in places if place is not None and outcome.is_measured]
    failed = [place for place, outcome in places if place is not None and _blames_config(outcome)]
    most = np.max([np.zeros(switches.shape[1]), *works], axis=0)
    suspects = switches[failed] > most
    often = suspects.sum(axis=0)
    chance = np.ones(len(candidates))
    for place, own in zip(failed, suspects, strict=True):
        if not own.any():
            chance[candidates.supersets(place)] = 0
            continue
        likely = own & (often == often[own].max())
        chance *= 1 - (switches[:, likely] > most[likely]).mean(axis=1)
    return chance


def _blames_config(outcome: Outcome) -> bool:
    return not outcome.is_measured and not outcome.is_about_memory and outcome is not Outcome.LOST
