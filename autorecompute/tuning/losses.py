"""Trials that a machine took with it, and what a later session makes of them."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autorecompute.measurement import Measurement, Outcome, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.plans import Config
    from autorecompute.search import Proposal
    from autorecompute.studies import StudyFolder

LOSSES = 2
"""A machine may go away for reasons of its own, once; a config that it went away with twice is left alone."""


@contextmanager
def surviving_loss(folder: StudyFolder, number: int, proposal: Proposal, description: str) -> Iterator[None]:
    """Leaves a trial with the outcome ``lost`` in the folder where nobody is left to write down another one.

    Raises:
        SetupError: the folder cannot be written.
    """
    measurement = Measurement(
        outcome=Outcome.LOST, message="the machine or the tuner went away while this was measured"
    )
    folder.begin_trial(
        Trial(
            number=number,
            config=proposal.config,
            description=description,
            reason=proposal.reason,
            measurement=measurement,
        )
    )
    try:
        yield
    finally:
        folder.end_trial()


def settled(trials: Sequence[Trial]) -> list[Trial]:
    """The trials without the lost ones: a config that was lost too often has one to tell of all."""
    losses: Counter[Config] = Counter()
    decided = []
    for trial in trials:
        losses[trial.config] += trial.measurement.outcome is Outcome.LOST
        if trial.measurement.outcome is not Outcome.LOST or losses[trial.config] == LOSSES:
            decided.append(trial)
    return decided
