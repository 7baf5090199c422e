"""The config of a study in each form that a training can take."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from autorecompute import __version__
from autorecompute.backends import registry
from autorecompute.backends.registry import backend_of, render
from autorecompute.codec import INLINED, Document
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.figures import Figures, KnobFigures, Verdict
from autorecompute.result import Best
from autorecompute.studies.checked import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.folder import require_plain, stale, write_files
from autorecompute.training_job import Device
from autorecompute.units import format_bytes, format_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted(Document):
    """What to train with.

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
        """Return what a study found out, and what makes an unmodified run train so.

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


_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_@%+:,./=-]+")


def as_shell(result: Result, rendered: Emission) -> str:
    """Comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable.

    It is for ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value
    holds.

    Raises:
        NothingFitsError: the study has no config to train with.
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
        NothingFitsError: the study has no config to train with.
        UsageError: a value has characters that the grammars disagree about.
    """
    lines = [_assign(name, value) for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *lines]) + "\n"


def as_json(result: Result, rendered: Emission) -> str:
    """Return all that the other formats say, for programs: ``null`` is not measured, and units are bytes and seconds.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    # --help asks for the formats, and must import neither NumPy nor cattrs.
    from autorecompute import codec

    return f"{codec.dumps(Emitted.of(result, rendered))}\n"


def as_python(result: Result, rendered: Emission) -> str:
    """Comments, and the source of a function that a script calls with its model: it imports the training system alone.

    Raises:
        NothingFitsError: the study has no config to train with.
        UsageError: the training system has no such form for the config.
    """
    best, backend = require_best(result), backend_of(result.versions)
    source = backend.script(best.config, result.versions)
    turned = [knob.variables for knob in backend.KNOBS if knob.name in best.knobs]
    variables = {name: value for each in turned for name, value in each.items()}
    how = {"before the model trains": "call apply_recompute(model)"}
    if variables:
        how["to be set in the environment"] = " ".join(f"{name}={shlex.quote(variables[name])}" for name in variables)
    # The variable that names the plans has no part in this, and neither has what it needs.
    return "\n".join([*comment_lines(result, replace(rendered, variables=variables), how), "", source])


def _assign(name: str, value: str) -> str:
    if not _PLAIN_VALUE.fullmatch(value):
        raise UsageError(
            f"{name} has the value {value!r}, which dotenv readers do not agree how to read. "
            "Use --format shell, or keep the study in a folder whose path has only letters, digits and /._-."
        )
    return f"{name}={value}"


RENDERERS: dict[str, Callable[[Result, Emission], str]] = {
    "shell": as_shell,
    "dotenv": as_dotenv,
    "json": as_json,
    "python": as_python,
}
"""By the name of the format."""


def hand_out(folder: StudyFolder, result: Result) -> Emission:
    """Return what to train with, for whoever asks for it: the files that the variables name hold the answer's plans.

    Args:
        folder: The study, where it lies now.
        result: Its answer.

    Raises:
        NothingFitsError: the study has no config to train with.
        SetupError: no version that is known reads the config, or a file cannot be written, or something in the
            study's folder leads elsewhere.
        UsageError: the study was imported and not confirmed here, or the config cannot be written for its version.
    """
    best = require_best(result)
    if not is_confirmed_here(folder, best):
        raise UsageError(describe_unconfirmed(folder.name))
    rendered = render(best.config, best.knobs, result.versions, folder.best)
    if missing := stale(rendered.files):
        require_plain(folder)
        write_files(missing)
    return rendered


def hand_out_if_any(folder: StudyFolder, result: Result | None) -> Emission | None:
    """Return what to train with, for whoever is told of a study; ``None`` if there is nothing that may be trained with.

    Raises:
        SetupError: no version that is known reads the config, or a file cannot be written, or something in the
            study's folder leads elsewhere.
        UsageError: the config cannot be written for its version.
    """
    if result is None or result.best is None or not is_confirmed_here(folder, result.best):
        return None
    return hand_out(folder, result)
