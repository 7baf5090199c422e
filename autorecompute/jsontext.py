"""JSON from anywhere, read within bounds: a study's folder or an archive may come from somebody else."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from autorecompute.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_TEXT = 32 * MIB
"""The largest part of a study is its profiled steps: 0.6 MiB for a BERT of two layers."""

MOST_VALUES = 2_000_000
"""An empty list takes two bytes of text and sixty in memory, so values are counted before they are made."""

DEEPEST = 40
MOST_DIGITS = 20
"""A whole number of 64 bits, with its sign."""


class UnreadableError(ValueError):
    """A text or a plain value does not describe what it should; the message says what is wrong with it."""


def parse(text: bytes) -> Any:
    """Parse a JSON text into dicts, lists, strings and numbers.

    Raises:
        UnreadableError: it is no JSON, larger than ``LARGEST_TEXT``, holds more than ``MOST_VALUES`` values, a number
            beyond 64 bits, or is nested deeper than ``DEEPEST``.
    """
    if len(text) > LARGEST_TEXT:
        raise UnreadableError(f"is larger than {LARGEST_TEXT // MIB} MiB")
    if count_values(text) > MOST_VALUES:
        raise UnreadableError(f"holds more than {MOST_VALUES} values")
    try:
        plain = json.loads(text.decode("utf-8"), parse_constant=_refuse, parse_int=_read_int, parse_float=_read_float)
    except UnicodeDecodeError as error:
        raise UnreadableError("is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise UnreadableError(f"is no JSON from {place}column {error.colno} on") from error
    except RecursionError as error:
        raise UnreadableError(f"is nested deeper than {DEEPEST}") from error
    _require_shallow(plain)
    return plain


def count_values(text: bytes) -> int:
    """Return no fewer than there are values in a JSON text, counted without reading it."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def read_file(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        UnreadableError: as for :func:`parse`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return parse(file.read(LARGEST_TEXT + 1))


def write(plain: object, *, indent: int | None = None, keeps_not_finite: bool = True) -> str:
    """Return the plain value as JSON in ASCII.

    A number that JSON has no word for, such as NaN, becomes a string if it is to be kept; else it is null.
    """
    separators = None if indent else (",", ":")
    return json.dumps(_finite(plain, keeps=keeps_not_finite), allow_nan=False, indent=indent, separators=separators)


def _finite(plain: object, *, keeps: bool) -> object:
    if isinstance(plain, dict):
        return {name: _finite(value, keeps=keeps) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value, keeps=keeps) for value in plain]
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain) if keeps else None
    return plain


def _refuse(word: str) -> NoReturn:
    raise UnreadableError(f"holds {word}, which is no JSON")


def _read_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise UnreadableError(f"holds a number of {len(digits)} digits")
    return int(digits)


def _read_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise UnreadableError(f"holds the number {text[:40]}, which is too large")
    return number


def _require_shallow(plain: Any) -> None:
    layer = [plain]
    for _ in range(DEEPEST):
        layer = [entry for value in layer for entry in _entries(value)]
        if not layer:
            return
    raise UnreadableError(f"is nested deeper than {DEEPEST}")


def _entries(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
