"""A config to train with: a study's answer in each format of ``emit``, or a config that was only planned.

Comments that shell, dotenv and Python files share say where a config and its figures come from. Every format raises
``NothingFitsError`` where the study has no config to train with.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from autorecompute import __version__, codec
from autorecompute.backends import registry
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.figures import Figures, KnobFigures, Verdict
from autorecompute.files import open_named, shown
from autorecompute.plans import Config
from autorecompute.ranges import INLINED
from autorecompute.result import Best
from autorecompute.studies.checked import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.folder import require_plain, stale, write_files
from autorecompute.training_job import Device
from autorecompute.units import format_bytes, format_samples, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder

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


def hand_out(folder: StudyFolder, result: Result) -> Emission:
    """Render the answer to train with: the files that the variables name hold its plans.

    Raises:
        NothingFitsError: the study has no config to train with.
        UsageError: the study was imported and not confirmed here, or the config cannot be written for its version.
    """
    best = require_best(result)
    if not is_confirmed_here(folder, best):
        raise UsageError(describe_unconfirmed(folder.name))
    rendered = registry.render(best.config, best.knobs, result.versions, folder.best, best.lengths)
    if missing := stale(rendered.files):
        require_plain(folder)
        write_files(missing)
    return rendered


def hand_out_if_any(folder: StudyFolder, result: Result | None) -> Emission | None:
    """Render the answer to train with; return ``None`` if nothing may be trained with.

    Raises:
        UsageError: the config cannot be written for its version.
    """
    if result is None or result.best is None or not is_confirmed_here(folder, result.best):
        return None
    return hand_out(folder, result)


def stray_variables(rendered: Emission) -> list[str]:
    """Return the variables of every backend that must not be set beside the config's own."""
    return [name for name in registry.variables() if name not in rendered.variables]


def comment_lines(result: Result, rendered: Emission, how: Mapping[str, str] | None = None) -> list[str]:
    """Return the provenance as comments, each on one line whatever its values hold.

    They tell ``how`` it is used; where that is not given, what these variables need.
    """
    best, device = require_best(result), result.device
    facts = {
        "written by": f"autorecompute {__version__}",
        "recompute": f"{best.description} (config {best.config.hash})",
        **{f"up to {bucket.length} tokens": bucket.what for bucket in best.buckets},
        best.size: "give it to the script yourself, this chooses only what is recomputed",
        "must not be set": ", ".join(stray_variables(rendered)),
    }
    if turned := [knob for knob in result.knobs if knob.kept]:
        facts["other settings"] = "; ".join(f"{knob.name} {knob.sentence}" for knob in turned)
    if how is not None:
        facts |= how
    elif rendered.variables:
        reader = registry.backend_of(result.versions).READ_BY
        facts |= rendered.notes
        facts["without 'autorecompute run'"] = f"the variables have an effect only in {reader}"
    else:
        facts |= {"nothing has to be set": "the batch trains without recompute", **rendered.notes}
    facts |= _describe_measurement(best, result) | {
        "study": result.study,
        "problem": result.problem,
        "verdict": result.verdict_sentence,
        "tuned command": shlex.join(result.command),
        "device": ", ".join(filter(None, [device.kind, device.name, device.uuid, format_bytes(device.total_bytes)])),
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
    }
    # A line break in a value, a script's argument for instance, would end the comment and run what follows.
    return [
        "# " + "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)
        for line in (f"{label}: {text}" for label, text in facts.items())
    ]


def as_shell(result: Result, rendered: Emission) -> str:
    """Return comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable.

    It is for ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value
    holds.
    """
    # A variable that an earlier study left in the same shell may overrule the config without a word.
    unsets = [f"unset {name}" for name in stray_variables(rendered)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *unsets, *exports]) + "\n"


def as_dotenv(result: Result, rendered: Emission) -> str:
    """Return comments and a ``NAME=value`` line for each variable.

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
    headline: Annotated[str, "The answer beside what people do by hand; empty where nothing was compared."]
    baseline: Annotated[Figures, "The figures without recompute."]
    rival: Annotated[Figures | None, "Largest batch to fit without recompute, if sought; the fastest of several."]
    knobs: Annotated[tuple[KnobFigures, ...], "What other settings did to the winner; empty where they were not tried."]
    device: Annotated[Device, "Where it was measured."]
    versions: Annotated[dict[str, str], "Software it was measured with."]
    command: Annotated[tuple[str, ...], "The command line that was tuned."]
    autorecompute: Annotated[str, "The version that wrote this."]


def as_json(result: Result, rendered: Emission) -> str:
    """Return all that the others say, for programs: ``null`` is not measured, and units are bytes and seconds."""
    best = require_best(result)
    own = {"best", "command"}  # a study's answer has these names, too, and other forms of it
    same = {name: getattr(result, name) for name in Emitted.__slots__ if name not in own and hasattr(result, name)}
    document = Emitted(
        environment=rendered.variables,
        unset=tuple(stray_variables(rendered)),
        best=best,
        config_hash=best.config.hash,
        command=tuple(result.command),
        autorecompute=__version__,
        **same,
    )
    return f"{codec.dumps(document)}\n"


def as_python(result: Result, rendered: Emission) -> str:
    """Return comments and the source of a function to call with the model; it imports the training system alone.

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


def _describe_measurement(best: Best, result: Result) -> dict[str, str]:
    share = best.relative_throughput
    facts = {
        "samples/s": _if_measured(best.samples_per_second, format_samples),
        "throughput relative to no recompute": NOT_MEASURED if share is None else best.relative_sentence,
        "peak": f"{format_bytes(best.peak_bytes)}, limit {format_bytes(best.limit_bytes)}",
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


def _describe_figures(figures: Figures) -> str:
    if figures.outcome is None:
        return NOT_MEASURED
    batch = "" if figures.batch is None else f" at batch {figures.batch}"
    speed = _if_measured(figures.samples_per_second, format_samples)
    peak = _if_measured(figures.peak_bytes, format_bytes)
    return f"{figures.outcome.value}{batch}, samples/s {speed}, peak {peak}"


def _if_measured(figure: float | None, write: Callable[[float], str]) -> str:
    return NOT_MEASURED if figure is None else write(figure)


RENDERERS: dict[str, Callable[[Result, Emission], str]] = {
    "shell": as_shell,
    "dotenv": as_dotenv,
    "json": as_json,
    "python": as_python,
}
"""By the name of the format."""

UNMEASURED_FORMATS = ("json", "python")  # formats that need no study's folder for a file to lie in
BEST = "best"  # names the config of the frontier that recomputes least among those that should hold the limit
SHORTEST_HASH = 6  # digits of a config's hash, as tables print it

ADVICE = "Give the file that 'autorecompute plans SCRIPT --fake --json' printed."

T = TypeVar("T")


def render_unmeasured(file: Path, name: str, kind: str) -> str:
    """Return a config that ``plans --json`` printed into a file, in a format that says that it is unmeasured.

    Its name is that of a preset, ``best``, or of one of the frontier its hash or the six digits that tables have.

    Raises:
        UsageError: the file cannot be read, or holds no such config; there is nothing to switch on, no such format, or
            the training system has no such form for it.
    """
    config, peak_bytes, versions = _read_planned(file, name)
    if config.is_none:
        raise UsageError(f"'{printable(name, '')}' recomputes nothing, so there is nothing to give out.")
    if kind not in UNMEASURED_FORMATS:
        raise UsageError(
            f"--format {kind} names a file of a study, and an unmeasured config has none. "
            f"Take {' or '.join(UNMEASURED_FORMATS)}."
        )
    backend = registry.backend_of(versions)
    if kind == "json":
        return backend.unmeasured(config, versions)
    peak = f"{format_bytes(peak_bytes)}, predicted" if isinstance(peak_bytes, int) else "not predicted"
    head = [
        f"# written by: autorecompute {__version__}",
        f"# unmeasured: no step was run with config {config.hash}; tune measures it",
        f"# peak: {peak}",
    ]
    return "\n".join([*head, "", backend.script(config, versions)])


def _read_planned(file: Path, name: str) -> tuple[Config, Any, dict[str, str]]:
    """Return the config of this name, its predicted peak, and the software that the model was looked at with."""
    with open_named(file, ADVICE) as stream:
        text = stream.read(codec.LARGEST_TEXT + 1)
    try:
        plain = codec.parse(text)
        presets = _read(plain, "presets", dict[str, Config])
        versions = _read(plain, "versions", dict[str, str])
        peaks: dict[Config, dict[str, Any]] = {}
        for one in _listed(plain):
            peaks.setdefault(_read(one, "choices", Config), {}).update(one)
    except codec.UnreadableError as error:
        raise UsageError(f"{shown(file)} {error}. {ADVICE}") from error
    config = _best(peaks) if name == BEST else _named(name, presets, peaks)
    return config, peaks.get(config, {}).get("peak_bytes"), versions


def _read(plain: Any, key: str, kind: type[T]) -> T:
    if not isinstance(plain, dict) or key not in plain:
        raise codec.UnreadableError(f"has no '{key}'")
    return codec.from_plain(plain[key], kind)


def _listed(plain: Any) -> list[dict[str, Any]]:
    """Return the forecasts in the file, those of the frontier last; none where no peak was asked for."""
    peak = plain.get("peak", {}) if isinstance(plain, dict) else {}
    lists = [peak.get(key, []) for key in ("forecasts", "frontier")] if isinstance(peak, dict) else []
    return [one for each in lists if isinstance(each, list) for one in each if isinstance(one, dict)]


def _best(peaks: dict[Config, dict[str, Any]]) -> Config:
    fitting = []
    for config, one in peaks.items():
        # Bytes of tensors and what a card's allocator reserves hold their limits, as far as both are told.
        told = [held for key in ("holds_limit", "reserved_holds_limit") if (held := one.get(key)) is not None]
        if told and all(held is True for held in told):
            share = one.get("recompute_share")
            fitting.append((float(share) if isinstance(share, (int, float)) else 1.0, config.hash, config))
    if not fitting:
        raise UsageError(
            "No config of the file holds a limit. Run plans --fake again with --memory-limit, or a higher one."
        )
    return min(fitting, key=lambda entry: entry[:2])[-1]


def _named(name: str, presets: dict[str, Config], known: dict[Config, dict[str, Any]]) -> Config:
    if name in presets:
        return presets[name]
    found = [config for config in known if len(name) >= SHORTEST_HASH and config.hash.startswith(name)]
    if len(found) != 1:
        raise UsageError(
            f"The file has no config '{printable(name, '')}'. Name {BEST}, the hash of a config of its frontier, or "
            f"one of: {', '.join(presets)}."
        )
    return found[0]
