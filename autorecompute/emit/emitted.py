"""Record that ``emit --format json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autorecompute.codec import INLINED
from autorecompute.figures import Figures, KnobFigures, Verdict
from autorecompute.result import Best
from autorecompute.training_job import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Answer to train with."""

    environment: Annotated[dict[str, str], "The variables that switch it on in an unmodified run."]
    unset: Annotated[tuple[str, ...], "Variables that must not be set while it trains."]
    best: Annotated[Best, INLINED]
    config_hash: Annotated[str, "Twelve hexadecimal digits, the same for equal configs."]
    study: Annotated[str, "Name of the study."]
    problem: Annotated[str, "Digest of the problem it solves."]
    verdict: Annotated[Verdict | None, "What was found out about recompute."]
    verdict_sentence: Annotated[str, "The same in words, as everywhere."]
    baseline: Annotated[Figures, "The figures without recompute."]
    rival: Annotated[
        Figures | None,
        "The largest batch measured to fit without recompute, where it was looked for; of several batches that fit "
        "without, the fastest.",
    ]
    knobs: Annotated[tuple[KnobFigures, ...], "What other settings did to the winner; empty where they were not tried."]
    device: Annotated[Device, "Where it was measured."]
    versions: Annotated[dict[str, str], "Software it was measured with."]
    command: Annotated[tuple[str, ...], "The command line that was tuned."]
    autorecompute: Annotated[str, "The version that wrote this."]


SAME = ("study", "problem", "verdict", "verdict_sentence", "baseline", "rival", "knobs", "device", "versions")
"""Keys that a study's answer has under the same names."""
