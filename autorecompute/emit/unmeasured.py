"""Gives out a config that was only planned: no step has been measured with it, and what is given out says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from autorecompute import __version__, codec
from autorecompute.backends.registry import backend_of
from autorecompute.errors import UsageError
from autorecompute.files import open_named, shown
from autorecompute.plans import Config
from autorecompute.units import format_bytes, printable

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("json", "python")
"""Those that need no study's folder for a file to lie in."""

BEST = "best"
"""Names the config of the frontier that recomputes least among those that should hold the limit."""

SHORTEST_HASH = 6
"""Digits of a config's hash, as tables print it."""

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
    if kind not in FORMATS:
        raise UsageError(
            f"--format {kind} names a file of a study, and an unmeasured config has none. Take {' or '.join(FORMATS)}."
        )
    backend = backend_of(versions)
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
    fitting = [config for config, one in peaks.items() if _should_fit(one)]
    if not fitting:
        raise UsageError(
            "No config of the file holds a limit. Run plans --fake again with --memory-limit, or a higher one."
        )
    return min(fitting, key=lambda config: (_share(peaks[config]), config.hash))


def _should_fit(one: dict[str, Any]) -> bool:
    """Tell whether bytes of tensors and what a card's allocator reserves hold their limits, as far as both are told."""
    told = [held for key in ("holds_limit", "reserved_holds_limit") if (held := one.get(key)) is not None]
    return bool(told) and all(held is True for held in told)


def _share(one: dict[str, Any]) -> float:
    share = one.get("recompute_share")
    return float(share) if isinstance(share, (int, float)) else 1.0


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
