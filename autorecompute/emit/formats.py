"""A study's answer as variables to train with, in each format of ``emit``.

Comments that shell, dotenv and Python files share say where a config and its figures come from. Every format raises
``NothingFitsError`` where the study has no config to train with.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute import __version__
from autorecompute.backends import registry
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.units import format_bytes, format_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autorecompute.backends.interface import Emission
    from autorecompute.figures import Figures
    from autorecompute.result import Best, Result

NOT_MEASURED = "not measured"
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_@%+:,./=-]+")


def require_best(result: Result) -> Best:
    """Return the config to train with, if the study found one."""
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

    They tell ``how`` it is used; where that is not given, what these variables need.
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


def as_shell(result: Result, rendered: Emission) -> str:
    """Comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable.

    It is for ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value
    holds.
    """
    # A variable that an earlier study left in the same shell may overrule the config without a word.
    unsets = [f"unset {name}" for name in stray_variables(rendered)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *unsets, *exports]) + "\n"


def as_dotenv(result: Result, rendered: Emission) -> str:
    """Comments and a ``NAME=value`` line for each variable.

    It is for ``docker run --env-file``, Compose, systemd and python-dotenv. Their grammars differ in quotes, in ``$``
    and in ``export``: what is written here means the same to all of them.

    Raises:
        UsageError: a value has characters that the grammars disagree about.
    """
    for name, value in rendered.variables.items():
        if not _PLAIN_VALUE.fullmatch(value):
            raise UsageError(
                f"{name} has the value {value!r}, which dotenv readers do not agree how to read. "
                "Use --format shell, or keep the study in a folder whose path has only letters, digits and /._-."
            )
    lines = [f"{name}={value}" for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *lines]) + "\n"


def as_json(result: Result, rendered: Emission) -> str:
    """Return all that the others say, for programs: ``null`` is not measured, and units are bytes and seconds."""
    # --help asks for the formats, and must not import NumPy.
    from autorecompute import codec
    from autorecompute.emit.emitted import SAME, Emitted

    best = require_best(result)
    document = Emitted(
        environment=rendered.variables,
        unset=tuple(stray_variables(rendered)),
        best=best,
        config_hash=best.config.hash,
        command=tuple(result.command),
        autorecompute=__version__,
        **{name: getattr(result, name) for name in SAME},
    )
    return f"{codec.dumps(document)}\n"


def as_python(result: Result, rendered: Emission) -> str:
    """Comments, and the source of a function that a script calls with its model: it imports the training system alone.

    Raises:
        UsageError: the training system has no such form for the config.
    """
    backend = registry.backend_of(result.versions)
    source = backend.script(require_best(result).config, result.versions)
    # The variable that names the plans has no part in this, and neither has what it needs.
    variables = {name: value for name, value in rendered.variables.items() if name not in backend.VARIABLES}
    how = {"before the model trains": "call apply_recompute(model)"}
    if variables:
        how["to be set in the environment"] = " ".join(f"{name}={shlex.quote(variables[name])}" for name in variables)
    return "\n".join([*comment_lines(result, replace(rendered, variables=variables), how), "", source])


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


RENDERERS: dict[str, Callable[[Result, Emission], str]] = {
    "shell": as_shell,
    "dotenv": as_dotenv,
    "json": as_json,
    "python": as_python,
}
"""By the name of the format."""
