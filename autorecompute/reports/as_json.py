"""The answer as the one object that ``tune --json`` prints."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from autorecompute import codec
from autorecompute.reports.answer import runners_up
from autorecompute.reports.curve import curve_as_plain
from autorecompute.reports.predictions import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.backends.interface import Emission
    from autorecompute.measurement import Trial
    from autorecompute.result import Result


def result_as_plain(result: Result, trials: Sequence[Trial], rendered: Emission | None) -> dict[str, Any]:
    """The contract's object, with all figures of the last screen; what was not measured is ``None``.

    Args:
        result: The answer.
        trials: The trials that it was chosen from.
        rendered: What to train with; ``None`` where there is nothing.
    """
    plain: dict[str, Any] = codec.to_plain(result)
    plain["curve"] = curve_as_plain(result.curve)
    others = runners_up(result, trials)
    plain["runners_up"] = [{"description": name, **codec.to_plain(figures)} for name, figures in others]
    plain["predictions"] = codec.to_plain(summarise(trials))
    best = plain["best"]
    if best is not None:
        config, variables = best.pop("config"), rendered.variables if rendered is not None else None
        plain["best"] = {"config": config, "env": variables, **best}
    return plain


def trials_as_plain(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Every trial with all its samples, and the figures derived from them."""
    return [
        {
            **codec.to_plain(trial),
            "hash": trial.config.hash,
            "relative_throughput": trial.relative_throughput,
            "samples_per_second": trial.measurement.samples_per_second,
        }
        for trial in trials
    ]


def dumps(plain: object) -> str:
    """The value as JSON for people and programs; what is no finite number is null, as JSON has no word for it."""
    return json.dumps(_finite(plain), indent=2, allow_nan=False)


def _finite(plain: object) -> object:
    if isinstance(plain, dict):
        return {name: _finite(value) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
