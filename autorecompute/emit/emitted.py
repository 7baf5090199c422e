"""Record that ``emit --format json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute import __version__
from autorecompute.codec import INLINED, Document
from autorecompute.emit.provenance import require_best, stray_variables
from autorecompute.figures import Figures, KnobFigures, Verdict
from autorecompute.result import Best
from autorecompute.training_job import Device

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted(Document):
    """Answer to train with.

    Attributes:
        environment: The variables that switch it on in an unmodified run.
        unset: Variables that must not be set while it trains.
        best: The config and its figures.
        config_hash: Twelve hexadecimal digits, the same for equal configs.
        study: Name of the study.
        problem: Digest of the problem it solves.
        verdict: What was found out about recompute.
        verdict_sentence: The same in words, as everywhere.
        baseline: The figures without recompute.
        rival: The largest batch measured to fit without recompute, where it was looked for; of several batches that fit
            without, the fastest.
        knobs: What other settings did to the winner; empty where they were not tried.
        device: Where it was measured.
        versions: Software it was measured with.
        command: The command line that was tuned.
        autorecompute: The version that wrote this.
    """

    environment: dict[str, str]
    unset: tuple[str, ...]
    best: Annotated[Best, INLINED]
    config_hash: str
    study: str
    problem: str
    verdict: Verdict | None
    verdict_sentence: str
    baseline: Figures
    rival: Figures | None
    knobs: tuple[KnobFigures, ...]
    device: Device
    versions: dict[str, str]
    command: tuple[str, ...]
    autorecompute: str

    @classmethod
    def of(cls, result: Result, rendered: Emission) -> Emitted:
        """Return the document of a study's answer and its rendering.

        Raises:
            NothingFitsError: the study has no config to train with.
        """
        best = require_best(result)
        return cls(
            environment=rendered.variables,
            unset=tuple(stray_variables(rendered)),
            best=best,
            config_hash=best.config.hash,
            study=result.study,
            problem=result.problem,
            verdict=result.verdict,
            verdict_sentence=result.verdict_sentence,
            baseline=result.baseline,
            rival=result.rival,
            knobs=result.knobs,
            device=result.device,
            versions=result.versions,
            command=tuple(result.command),
            autorecompute=__version__,
        )
