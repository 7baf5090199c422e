"""Bytes and seconds as people write and read them, and text as a terminal may have it."""

from __future__ import annotations

import math
import re
import signal
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
SECONDS_PER_MINUTE = 60
TWO_DIGITS = 10

_BYTES_PER_UNIT = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_BYTES_PER_UNIT |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES_PER_UNIT |= {"k": KIB, "m": MIB, "g": GIB, "t": TIB}  # as Docker, Slurm and the JVM mean them
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing them, and those that turn the direction of reading around."""

_BYTES = re.compile("[\udc80-\udcff]+")
"""Bytes that are no UTF-8, as Python took them in and gives them out: together they may be some."""

_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")
_SPAN = re.compile(r"(?:(\d+(?:\.\d+)?)\s*h)?\s*(?:(\d+(?:\.\d+)?)\s*m)?\s*(?:(\d+(?:\.\d+)?)\s*s)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Read bytes written as ``900MiB``, ``40GiB``, ``24G`` (GiB), ``16GB`` or a plain number of bytes, one at least."""
    match = _QUANTITY.fullmatch(text.strip())
    unit = (match["unit"].lower() or "b") if match else ""
    if match is None or unit not in _BYTES_PER_UNIT:
        raise UsageError(f"'{printable(text, '')}' cannot be read as a quantity. Write it like 900MiB, 40GiB or 16GB.")
    number_of_bytes = float(match["number"]) * _BYTES_PER_UNIT[unit]
    if not 1 <= number_of_bytes < math.inf:
        raise UsageError(
            f"'{printable(text, '')}' is no amount of memory that there can be. Write it like 900MiB or 40GiB."
        )
    return int(number_of_bytes)


def parse_seconds(text: str) -> float:
    """Read seconds written as ``90s``, ``30m``, ``1.5h``, ``1h30m`` or a plain number of seconds, above 0."""
    is_number = text.strip().replace(".", "").isdigit()
    match = _SPAN.fullmatch(f"{text.strip()}s" if is_number else text.strip())
    if match is None or not any(match.groups()):
        raise UsageError(f"'{printable(text, '')}' cannot be read as a time. Write it like 90s, 30m or 1h30m.")
    hours, minutes, rest = (float(number or 0) for number in match.groups())
    seconds = 3600 * hours + 60 * minutes + rest
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"'{printable(text, '')}' is no time in which anything can be done. Write it like 90s, 30m or 1h30m."
        )
    return seconds


def signal_name(number: int) -> str:
    """``SIGSEGV``; ``signal 39`` where Python has no name for it, as for those of real time."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_bytes(number_of_bytes: float | None) -> str:
    """``1.25 GiB``, ``735 MiB``, ``12 KiB``: in the unit that suits; a dash where nothing was measured."""
    if number_of_bytes is None:
        return "-"
    size = abs(number_of_bytes)
    for unit, digits, name in ((TIB, 2, "TiB"), (GIB, 2, "GiB"), (MIB, 0, "MiB")):
        if size >= unit:
            return f"{number_of_bytes / unit:.{digits}f} {name}"
    return f"{number_of_bytes / KIB:.0f} KiB" if size else "0 MiB"


def format_scaled(number: float, unit: str) -> str:
    """``989.5 TFLOP/s``, ``3.35 TB``: with the decimal prefix that suits."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000:  # noqa: PLR2004 (the step from one prefix to the next)
            return f"{number:.4g} {prefix}{unit}"
        number /= 1000
    return f"{number:.4g} E{unit}"


def format_seconds(seconds: float | None) -> str:
    """``350 ms``, ``12.4 s`` or ``4 min 05 s``; a dash where nothing was measured."""
    if seconds is None:
        return "-"
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), SECONDS_PER_MINUTE)
    return f"{minutes} min {rest:02d} s"


def format_samples(samples_per_second: float | None) -> str:
    """``51.3``, ``8.27``, ``0.00333``: three digits at least; a dash where it was not measured."""
    if samples_per_second is None:
        return "-"
    return f"{samples_per_second:.1f}" if samples_per_second >= TWO_DIGITS else f"{samples_per_second:#.3g}"


def format_rate(samples_per_second: float | None) -> str:
    """Return the same with its unit, ``51.3 samples/s``."""
    return "-" if samples_per_second is None else f"{format_samples(samples_per_second)} samples/s"


def format_count(number: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str, keeps: str = "\n") -> str:
    """Return the text with its control characters as Python writes them, but for those to keep."""

    def write_out(found: re.Match[str]) -> str:
        return found[0] if found[0] in keeps else found[0].encode("unicode_escape").decode()

    def decode(found: re.Match[str]) -> str:
        return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")

    return _CONTROL.sub(write_out, _BYTES.sub(decode, text))


def describe_software(versions: Mapping[str, str]) -> str:
    """Return the packages that train and their versions, in words."""
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name not in {"python", "backend"})
