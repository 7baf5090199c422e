"""How a shared study keeps its trials in Optuna's: claimed while they run, ended with a measurement or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState, create_trial

from autorecompute import codec
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.studies.frozen import TRIAL_ATTRIBUTE, distributions_of, parameters_of
from autorecompute.studies.tuned import Tuned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optuna.trial import FrozenTrial

    from autorecompute.plans import Space

CLAIM = "claim"
"""The attribute of an Optuna trial that says who measures what."""

GIVEN_UP = "given up"
"""The attribute of one that was ended without a measurement by the worker that had claimed it."""

TUNED = "tuned"
"""The attribute of the first trial, and of it alone, that says what the study is about."""

WORKER_LOST = "the worker went away while it measured this"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A config that a worker measures, or measured.

    Attributes:
        session: The worker.
        token: Tells two claims of one worker apart.
        config: The config.
        description: The same in a few words.
        reason: Why the search wanted it.
    """

    session: str
    token: str
    config: Config
    description: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a storage held when it was read.

    Attributes:
        tuned: What the study is about, as its first trial says, without its plans; ``None`` before there is one.
        trials: Those that ended, by their numbers; of a worker that died with the outcome ``lost``.
        running: Those that are claimed, by their numbers.
    """

    tuned: Tuned | None
    trials: tuple[Trial, ...]
    running: dict[int, Claim]

    def holder_of(self, config: Config, *, before: int) -> int | None:
        """The number of a trial of this config that came first; a lost one holds nothing."""
        ended = (t.number for t in self.trials if t.config == config and t.measurement.outcome is not Outcome.LOST)
        claimed = (number for number, claim in self.running.items() if claim.config == config)
        return min((number for number in (*ended, *claimed) if number < before), default=None)

    def count_before(self, number: int) -> int:
        """How many trials ended with a measurement, or are claimed under a lower number."""
        ended = sum(trial.measurement.outcome is not Outcome.LOST for trial in self.trials)
        return ended + sum(claimed < number for claimed in self.running)


def frozen_claim(claim: Claim, space: Space, tuned: Tuned | None) -> FrozenTrial:
    """The running Optuna trial that a claim is, as the first of a study with what that is about."""
    attributes: dict[str, Any] = {
        CLAIM: codec.to_plain(claim),
        "config": claim.description,
        "hash": claim.config.hash,
    }
    if tuned is not None:
        attributes[TUNED] = codec.to_plain(tuned)
    return create_trial(
        state=TrialState.RUNNING,
        params=parameters_of(claim.config, space),
        distributions=distributions_of(space),
        user_attrs=attributes,
    )


def view(frozen: Iterable[FrozenTrial]) -> View:
    """What these Optuna trials say.

    Raises:
        UnreadableError: one of them was not made here.
    """
    tuned, trials, running = None, [], {}
    for trial in sorted(frozen, key=lambda trial: trial.number):
        if trial.number == 0:
            tuned = codec.from_plain(trial.user_attrs.get(TUNED), Tuned)
        claim = codec.from_plain(trial.user_attrs.get(CLAIM), Claim)
        if not trial.state.is_finished():
            running[trial.number] = claim
        elif TRIAL_ATTRIBUTE in trial.user_attrs:
            trials.append(codec.from_plain(trial.user_attrs[TRIAL_ATTRIBUTE], Trial))
        elif GIVEN_UP not in trial.user_attrs:
            trials.append(_lost(trial.number, claim))
    return View(tuned=tuned, trials=tuple(trials), running=running)


def _lost(number: int, claim: Claim) -> Trial:
    return Trial(
        number=number,
        config=claim.config,
        description=claim.description,
        reason=claim.reason,
        measurement=Measurement(outcome=Outcome.LOST, message=WORKER_LOST),
    )
