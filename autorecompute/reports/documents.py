"""An answer as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute.codec import Absent
from autorecompute.measurement import Trial
from autorecompute.ranges import INLINED
from autorecompute.reports.answer import RunnerUp, Summary, runners_up, summarise
from autorecompute.result import Best, Result
from autorecompute.studies.problem import Difference, Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.backends.interface import Emission


@dataclass(frozen=True, slots=True, kw_only=True)
class BestConfig:
    """The config to train with."""

    best: Annotated[Best, INLINED]
    env: Annotated[dict[str, str] | None, "Variables that switch it on; ``None`` if imported and not checked here."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a study."""

    result: Annotated[Result, INLINED]
    best: Annotated[BestConfig | None, "The config to train with; ``None`` where none fits."]
    runners_up: Annotated[tuple[RunnerUp, ...], "The fastest others that fit, at the batch of ``best``."]
    predictions: Annotated[Summary | None, "Errors of predictions at the batch of ``best``; ``None`` without any."]

    @classmethod
    def of(cls, result: Result, trials: Sequence[Trial], rendered: Emission | None) -> Answer:
        """Return the answer, with all figures of the last screen. ``trials`` are those that it was chosen from."""
        env = None if rendered is None else rendered.variables
        return cls(
            result=result,
            best=None if result.best is None else BestConfig(best=result.best, env=env),
            runners_up=tuple(runners_up(result, trials)),
            predictions=summarise(trials),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestStudy:
    """A stored study that another is like."""

    study: Annotated[str, "Its name."]
    is_shipped: Annotated[bool, "True if it comes with autorecompute."]
    has_same_plans: Annotated[bool, "True if a tuning starts from it: its plans are the same."]
    differences: Annotated[tuple[Difference, ...], "Differences of their problems; empty where there are none."]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStudy:
    """A study with all its trials."""

    provenance: Annotated[Provenance, "The study's problem, and where it was tuned."]
    identity: Annotated[dict[str, str], "Parts of what makes two tunings the same, in words."]
    result: Annotated[Answer | None, "Its answer; ``None`` as long as it has none."]
    trials: Annotated[tuple[Trial, ...], "Every trial, in the order they ended."]
    nearest: Annotated[NearestStudy | Absent | None, "With ``--why``: the study most like it, if there is any."]
