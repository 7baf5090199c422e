"""How plain values become the fields of records: nothing is converted, and what is out of its range is refused.

Left to itself, cattrs makes ``1`` of ``1.7``, text of a list and a tuple of letters of a text.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import reprlib
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from cattrs import BaseValidationError, IterableValidationError, override
from cattrs.cols import is_mapping
from cattrs.errors import IterableValidationNote
from cattrs.gen import make_dict_structure_fn

from autorecompute.errors import UsageError
from autorecompute.jsontext import UnreadableError
from autorecompute.plans import Choice, Config
from autorecompute.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from cattrs import Converter

    Hook = Callable[[Any, Any], Any]

MOST_ENTRIES = 100_000
"""No step has more operations, and no study more trials."""

MOST_NAMES = 1_000
"""What has a name in a record, such as a dimension, a version or a preset, is printed line by line, and compared so."""

LONGEST_TEXT = 1 << 20
NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""The numbers that JSON has no word for, as :func:`autorecompute.jsontext.write` writes them."""

_INT64 = Range(-(1 << 63), (1 << 63) - 1)
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Halves of characters, which nothing can print, but for those that stand for a byte of a name that is no UTF-8."""


def register(converter: Converter) -> None:
    """Have the converter read records this way."""
    for kind, hook in ((str, _read_text), (bool, _read_flag), (int, _read_int64), (float, _read_float)):
        converter.register_structure_hook(kind, hook)
    # An enum of texts would be read as a text: cattrs takes the hook of the nearest base class.
    converter.register_structure_hook(enum.StrEnum, _read_member)
    converter.register_structure_hook(enum.IntEnum, _read_member)
    converter.register_structure_hook_factory(lambda kind: _range_of(kind) is not None, _range_hook)
    for is_kind, hook_for in (
        (dataclasses.is_dataclass, _record_hook),
        (is_mapping, _mapping_hook),
        (_is_list, _list_hook),
    ):
        converter.register_structure_hook_factory(is_kind, functools.partial(hook_for, converter))
    converter.register_structure_hook(Choice, _read_choice)
    converter.register_structure_hook(Config, _config_hook(converter))


def _read_text(plain: Any, _: Any) -> str:
    if not isinstance(plain, str):
        raise UnreadableError(f"is {_show(plain)}, not a text")
    if len(plain) > LONGEST_TEXT:
        raise UnreadableError(f"is a text of {len(plain)} characters, {LONGEST_TEXT} is the most")
    if not plain.isascii() and _HALVES.search(plain):
        raise UnreadableError("holds half a character")
    return plain


def _read_flag(plain: Any, _: Any) -> bool:
    if not isinstance(plain, bool):
        raise UnreadableError(f"is {_show(plain)}, not true or false")
    return plain


def _read_member(plain: Any, kind: Any) -> Any:
    members = {member.value: member for member in kind}
    if not isinstance(plain, str | int) or isinstance(plain, bool) or plain not in members:
        raise UnreadableError(f"is {_show(plain)}, none of {', '.join(map(str, members))}")
    return members[plain]


def _read_int64(plain: Any, _: Any) -> int:
    return int(_within(_INT64, _read_int(plain)))


def _read_int(plain: Any) -> int:
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise UnreadableError(f"is {_show(plain)}, not a whole number")
    return plain


def _read_float(plain: Any, _: Any = None) -> float:
    if isinstance(plain, float):
        return plain
    if isinstance(plain, str) and plain in NOT_FINITE:
        return float(plain)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise UnreadableError(f"is {_show(plain)}, not a number")
    return float(_within(_INT64, plain))


def _within(limits: Range, number: Any) -> Any:
    if number not in limits:
        raise UnreadableError(f"is {_show(number)}, not {limits}")
    return number


def _range_of(kind: Any) -> Range | None:
    found = (entry for entry in getattr(kind, "__metadata__", ()) if isinstance(entry, Range))
    return next(found, None) if get_origin(kind) is Annotated else None


def _range_hook(kind: Any) -> Hook:
    limits = _range_of(kind)
    assert limits is not None, "the predicate of this hook"
    read = _read_int if get_args(kind)[0] is int else _read_float
    return lambda plain, _: _within(limits, read(plain))


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or get_origin(kind) is tuple


def _list_hook(converter: Converter, kind: Any) -> Hook:
    origin, (entry, *others) = get_origin(kind), get_args(kind)
    # A tuple of a fixed length has entries of one type here.
    length = None if origin is list or others == [Ellipsis] else 1 + len(others)
    hook = converter.get_structure_hook(entry)

    def read(plain: Any, _: Any) -> Any:
        if not isinstance(plain, list | tuple):
            raise UnreadableError(f"is {_show(plain)}, not a list")
        _require_length(len(plain), length)
        return origin(_read_entry(hook, entry, place, value) for place, value in enumerate(plain))

    return read


def _mapping_hook(converter: Converter, kind: Any) -> Hook:
    entry = get_args(kind)[1]
    hook = converter.get_structure_hook(entry)

    def read(plain: Any, _: Any) -> Any:
        _require_length(len(_read_object(plain)), None, MOST_NAMES)
        return {_read_text(name, str): _read_entry(hook, entry, name, value) for name, value in plain.items()}

    return read


def _record_hook(converter: Converter, kind: Any) -> Hook:
    types = get_type_hints(kind, include_extras=True)
    hooks: dict[str, Any] = {
        field.name: override(struct_hook=_hook_of(converter, types[field.name])) for field in dataclasses.fields(kind)
    }
    # What a record does not know would be lost, or believed by a later version.
    structure = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **hooks)
    return lambda plain, _: structure(_read_object(plain), kind)


def _hook_of(converter: Converter, kind: Any) -> Hook:
    hook = converter.get_structure_hook(kind)
    # Left to itself, cattrs hands over the type of the field without its range.
    return lambda plain, _: hook(plain, kind)


def _config_hook(converter: Converter) -> Hook:
    read_texts = converter.get_structure_hook(list[str])

    def read(plain: Any, _: Any) -> Config:
        try:
            return Config.parse(read_texts(plain, list[str]))
        except UsageError as error:
            raise UnreadableError(f"holds what is no choice: {error}") from error

    return read


def _read_choice(plain: Any, _: Any) -> Choice:
    try:
        return Choice.parse(_read_text(plain, str))
    except UsageError as error:
        raise UnreadableError(f"holds what is no choice: {error}") from error


def _read_object(plain: Any) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise UnreadableError(f"is {_show(plain)}, not an object")
    return plain


def _read_entry(hook: Hook, kind: Any, place: int | str, plain: Any) -> Any:
    try:
        return hook(plain, kind)
    except (BaseValidationError, ValueError) as error:
        # The first one alone: an error for each wrong entry would take far more memory than the text did.
        error.add_note(IterableValidationNote(f"at {place}", place, kind))
        raise IterableValidationError("while reading entries", [error], kind) from error


def _require_length(length: int, wanted: int | None, most: int = MOST_ENTRIES) -> None:
    if wanted is not None and length != wanted:
        raise UnreadableError(f"has {length} entries, not {wanted}")
    if length > most:
        raise UnreadableError(f"has {length} entries, {most} is the most")


def _show(plain: Any) -> str:
    return "null" if plain is None else reprlib.repr(plain)[:60]
