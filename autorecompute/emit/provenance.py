"""Provenance of a config and its figures, as comments that shell, dotenv and Python files share."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from autorecompute import __version__
from autorecompute.backends import registry
from autorecompute.errors import NothingFitsError
from autorecompute.units import format_bytes, format_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.backends.interface import Emission
    from autorecompute.figures import Figures
    from autorecompute.result import Best, Result

NOT_MEASURED = "not measured"


def require_best(result: Result) -> Best:
    """Return the config to train with.

    Raises:
        NothingFitsError: the study found none, or none yet.
    """
    if result.best is None and result.verdict is None:
        raise NothingFitsError(
            f"Study '{result.study}' has no answer yet: no config was confirmed so far. Its tune command goes on, with "
            "more time or a higher --max-trials."
        )
    if result.best is None:
        raise NothingFitsError(
            f"No config of study '{result.study}' holds the memory limit. "
            "Tune again with a higher --memory-limit or a lower --target-batch."
        )
    return result.best


def stray_variables(rendered: Emission) -> list[str]:
    """Return the variables of every backend that must not be set beside the config's own."""
    return [name for name in registry.variables() if name not in rendered.variables]


def comment_lines(result: Result, rendered: Emission, how: Mapping[str, str] | None = None) -> list[str]:
    """Return the provenance as comments, each on one line whatever its values hold.

    Args:
        result: The answer.
        rendered: The variables to set.
        how: What else has to be done, by what it is about; where it is not given, what these variables need.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    best = require_best(result)
    facts = {
        "written by": f"autorecompute {__version__}",
        **_describe_use(best, result, rendered),
        **(_describe_variables(result, rendered) if how is None else how),
        **_describe_measurement(best, result),
        **_describe_origin(result),
    }
    return [f"# {_on_one_line(f'{label}: {text}')}" for label, text in facts.items()]


def _describe_use(best: Best, result: Result, rendered: Emission) -> dict[str, str]:
    facts = {
        "recompute": f"{best.description} (config {best.config.hash})",
        f"batch {best.batch}": "give it to the script yourself, this chooses only what is recomputed",
        "must not be set": ", ".join(stray_variables(rendered)),
    }
    turned = [knob for knob in result.knobs if knob.kept]
    if turned:
        facts["other settings"] = "; ".join(f"{knob.name} {knob.sentence}" for knob in turned)
    return facts


def _describe_variables(result: Result, rendered: Emission) -> dict[str, str]:
    facts = {} if rendered.variables else {"nothing has to be set": "the batch trains without recompute"}
    facts |= rendered.notes
    if rendered.variables:
        reader = registry.backend_of(result.versions).READ_BY
        facts["without 'autorecompute run'"] = f"the variables have an effect only in {reader}"
    return facts


def _describe_measurement(best: Best, result: Result) -> dict[str, str]:
    share = best.relative_throughput
    facts = {
        "samples/s": _format_speed(best.samples_per_second),
        "throughput relative to no recompute": NOT_MEASURED if share is None else best.relative_sentence,
        "peak": f"{_format_bytes(best.peak_bytes)}, limit {_format_bytes(best.limit_bytes)}",
        "confirmed in a fresh process": "yes" if best.confirmed else "no",
        "without recompute": _describe_figures(result.baseline),
    }
    if result.rival is not None:
        facts["largest batch without recompute"] = _describe_figures(result.rival)
    elif not result.compared:
        facts["largest batch without recompute"] = NOT_MEASURED
    if result.comparison is not None:
        facts["recompute gives"] = result.comparison.sentence
    return facts


def _describe_origin(result: Result) -> dict[str, str]:
    device = result.device
    return {
        "study": result.study,
        "problem": result.problem,
        "verdict": result.verdict_sentence,
        "tuned command": shlex.join(result.command),
        "device": ", ".join(filter(None, [device.kind, device.name, device.uuid, format_bytes(device.total_bytes)])),
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
    }


def _describe_figures(figures: Figures) -> str:
    if figures.outcome is None:
        return NOT_MEASURED
    batch = "" if figures.batch is None else f" at batch {figures.batch}"
    speed, peak = _format_speed(figures.samples_per_second), _format_bytes(figures.peak_bytes)
    return f"{figures.outcome.value}{batch}, samples/s {speed}, peak {peak}"


def _format_speed(samples_per_second: float | None) -> str:
    return NOT_MEASURED if samples_per_second is None else format_samples(samples_per_second)


def _format_bytes(number_of_bytes: int | None) -> str:
    return NOT_MEASURED if number_of_bytes is None else format_bytes(number_of_bytes)


def _on_one_line(text: str) -> str:
    # A line break in a value, a script's argument for instance, would end the comment and run what follows.
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
