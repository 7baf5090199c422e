"""Records as JSON: read within bounds, checked against the types of their fields, and written.

A study's folder or an archive may come from somebody else.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import re
import reprlib
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from cattrs import BaseValidationError, ForbiddenExtraKeysError, IterableValidationError, override, transform_error
from cattrs.cols import is_mapping
from cattrs.errors import IterableValidationNote
from cattrs.gen import make_dict_structure_fn
from cattrs.preconf.json import make_converter

from autorecompute.errors import UsageError
from autorecompute.plans import Choice, Config
from autorecompute.ranges import Range
from autorecompute.units import MIB, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cattrs import Converter

    Hook = Callable[[Any, Any], Any]


T = TypeVar("T")


class Document:
    """Base of the printed records that use one of those three things."""

    __slots__ = ()


class Absent(enum.Enum):
    """The type of :data:`ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""The value of a field that was not asked for."""

INLINED: Final = object()
"""Marks a record whose keys stand in the place of its own."""


class Entry(NamedTuple):
    """A field of a record, as its JSON has it."""

    name: str
    key: str
    kind: Any
    """Its type without its words; of an inlined record, the record."""
    words: str
    """Words about the field: the text that its type is annotated with."""
    is_inlined: bool


def entries_of(kind: type[Any]) -> Iterator[Entry]:
    """Yield the fields of a record, in their order."""
    types = get_type_hints(kind, include_extras=True)
    annotated: Any = Annotated
    for field in dataclasses.fields(kind):
        told, notes = types[field.name], getattr(types[field.name], "__metadata__", ())
        words = "".join(note for note in notes if isinstance(note, str))
        if others := [note for note in notes if not isinstance(note, str) and note is not INLINED]:
            told = annotated[get_args(told)[0], *others]
        elif notes:
            told = get_args(told)[0]
        yield Entry(field.name, field.name.rstrip("_"), told, words, INLINED in notes)


def _document_hook(converter: Converter, kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    entries = list(entries_of(kind))

    def to_dict(document: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for entry in entries:
            value = getattr(document, entry.name)
            if value is not ABSENT:
                told = converter.unstructure(value)
                plain |= told if entry.is_inlined else {entry.key: told}
        return plain

    return to_dict


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
        plain = json.loads(
            text.decode("utf-8"), parse_constant=_refuse_word, parse_int=_read_digits, parse_float=_read_decimals
        )
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


def _refuse_word(word: str) -> NoReturn:
    raise UnreadableError(f"holds {word}, which is no JSON")


def _read_digits(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise UnreadableError(f"holds a number of {len(digits)} digits")
    return int(digits)


def _read_decimals(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise UnreadableError(f"holds the number {text[:40]}, which is too large")
    return number


def _require_shallow(plain: Any) -> None:
    layer = [plain]
    for _ in range(DEEPEST):
        layer = [entry for value in layer for entry in _children(value)]
        if not layer:
            return
    raise UnreadableError(f"is nested deeper than {DEEPEST}")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


MOST_ENTRIES = 100_000
"""No step has more operations, and no study more trials."""

MOST_NAMES = 1_000
"""Most names in a mapping of a record, such as dimensions, versions or presets: it is printed and compared by lines."""

LONGEST_TEXT = 1 << 20
NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""The numbers that JSON has no word for, as :func:`autorecompute.codec.write` writes them."""

_INT64 = Range(-(1 << 63), (1 << 63) - 1)
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Halves of characters, which nothing can print, but for those that stand for a byte of a name that is no UTF-8."""


def _register_types(converter: Converter) -> None:
    for kind, hook in {
        str: _read_text,
        bool: lambda plain, _: _require(plain, bool, "true or false"),
        int: lambda plain, _: _within(_INT64, _require(plain, int, "a whole number")),
        float: _read_float,
        # An enum of texts would be read as a text: cattrs takes the hook of the nearest base class.
        enum.StrEnum: _read_member,
        enum.IntEnum: _read_member,
        Choice: lambda plain, _: _parsed(Choice.parse, _read_text(plain)),
        Config: lambda plain, _: _parsed(Config.parse, converter.structure(plain, list[str])),
    }.items():
        converter.register_structure_hook(kind, hook)
    for is_kind, hook_for in (
        (lambda kind: _range_of(kind) is not None, _range_hook),
        (dataclasses.is_dataclass, _record_hook),
        (is_mapping, _mapping_hook),
        (_is_list, _list_hook),
    ):
        converter.register_structure_hook_factory(is_kind, functools.partial(hook_for, converter))


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or get_origin(kind) is tuple


def _require(plain: Any, kinds: type[Any] | tuple[type[Any], ...], words: str) -> Any:
    if not isinstance(plain, kinds) or (isinstance(plain, bool) and kinds is not bool):
        raise UnreadableError(f"is {_show(plain)}, not {words}")
    return plain


def _read_text(plain: Any, _: Any = None) -> str:
    text: str = _require(plain, str, "a text")
    if len(text) > LONGEST_TEXT:
        raise UnreadableError(f"is a text of {len(text)} characters, {LONGEST_TEXT} is the most")
    if not text.isascii() and _HALVES.search(text):
        raise UnreadableError("holds half a character")
    return text


def _read_member(plain: Any, kind: Any) -> Any:
    members = {member.value: member for member in kind}
    if not isinstance(plain, str | int) or isinstance(plain, bool) or plain not in members:
        raise UnreadableError(f"is {_show(plain)}, none of {', '.join(map(str, members))}")
    return members[plain]


def _read_float(plain: Any, _: Any = None) -> float:
    if isinstance(plain, float):
        return plain
    if isinstance(plain, str) and plain in NOT_FINITE:
        return float(plain)
    return float(_within(_INT64, _require(plain, int, "a number")))


def _parsed(parser: Callable[[Any], T], plain: Any) -> T:
    try:
        return parser(plain)
    except UsageError as error:
        raise UnreadableError(f"holds what is no choice: {error}") from error


def _within(limits: Range, number: Any) -> Any:
    if number not in limits:
        raise UnreadableError(f"is {_show(number)}, not {limits}")
    return number


def _range_of(kind: Any) -> Range | None:
    found = (entry for entry in getattr(kind, "__metadata__", ()) if isinstance(entry, Range))
    return next(found, None) if get_origin(kind) is Annotated else None


def _range_hook(_: Converter, kind: Any) -> Hook:
    limits = _range_of(kind)
    assert limits is not None, "the predicate of this hook"
    if get_args(kind)[0] is int:
        return lambda plain, _: _within(limits, _require(plain, int, "a whole number"))
    return lambda plain, _: _within(limits, _read_float(plain))


def _list_hook(converter: Converter, kind: Any) -> Hook:
    origin, (entry, *others) = get_origin(kind), get_args(kind)
    # A tuple of a fixed length has entries of one type here.
    length = None if origin is list or others == [Ellipsis] else 1 + len(others)
    hook = converter.get_structure_hook(entry)

    def read(plain: Any, _: Any) -> Any:
        _require_length(len(_require(plain, (list, tuple), "a list")), length)
        return origin(_read_entry(hook, entry, place, value) for place, value in enumerate(plain))

    return read


def _mapping_hook(converter: Converter, kind: Any) -> Hook:
    entry = get_args(kind)[1]
    hook = converter.get_structure_hook(entry)

    def read(plain: Any, _: Any) -> Any:
        _require_length(len(_require(plain, dict, "an object")), None, MOST_NAMES)
        return {_read_text(name): _read_entry(hook, entry, name, value) for name, value in plain.items()}

    return read


def _record_hook(converter: Converter, kind: Any) -> Hook:
    hooks: dict[str, Any] = {
        entry.name: override(struct_hook=_hook_of(converter, entry.kind)) for entry in entries_of(kind)
    }
    # What a record does not know would be lost, or believed by a later version.
    structure = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **hooks)
    return lambda plain, _: structure(_require(plain, dict, "an object"), kind)


def _hook_of(converter: Converter, kind: Any) -> Hook:
    hook = converter.get_structure_hook(kind)
    # Left to itself, cattrs hands over the type of the field without its range.
    return lambda plain, _: hook(plain, kind)


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


LONGEST_NAME = 80
"""Letters of a name that stands in a file, and in a message about it."""

_UNKNOWN = "unknown field "


def to_plain(value: object) -> Any:
    """Return the value as dicts, lists, strings and numbers."""
    return _converter().unstructure(value)


def from_plain(plain: Any, kind: type[T]) -> T:
    """Return the value of that kind which ``to_plain`` made ``plain`` of.

    Raises:
        UnreadableError: the plain value does not describe one.
    """
    try:
        return _converter().structure(plain, kind)
    except (BaseValidationError, ValueError) as error:
        raise UnreadableError(_describe(error, getattr(kind, "__name__", str(kind)))) from error


def encode(value: object) -> bytes:
    """Return the value as JSON."""
    return write(to_plain(value)).encode()


def decode(text: bytes | str, kind: type[T]) -> T:
    """Return the value of that kind which ``encode`` wrote.

    Raises:
        UnreadableError: the text does not describe one.
    """
    return from_plain(parse(text.encode() if isinstance(text, str) else text), kind)


def dumps(document: object) -> str:
    """Return the document as verbs print it, for people and programs; what is no finite number is null."""
    return write(to_plain(document), indent=2, keeps_not_finite=False)


def _describe(error: Exception, kind: str) -> str:
    """Name the record and the field that are not described, as far as that can be told."""
    what, _, place = transform_error(error, format_exception=_say)[0].rpartition(" @ $")
    if what.startswith(_UNKNOWN):
        place, what = f"{place}.{what.removeprefix(_UNKNOWN)}", "is unknown"
    return f"describes no {kind}: " + (f"'{place.removeprefix('.')}' {what}" if place else f"it {what}")


def _say(error: BaseException, _: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        return f"{_UNKNOWN}{printable(min(error.extra_fields)[:LONGEST_NAME], '')}"
    return "is missing" if isinstance(error, KeyError) else str(error) or "is wrong"


@functools.cache
def _converter() -> Converter:
    converter = make_converter()
    converter.register_unstructure_hook(Choice, str)
    converter.register_unstructure_hook(Config, lambda config: config.texts)
    converter.register_unstructure_hook_factory(
        lambda kind: isinstance(kind, type) and issubclass(kind, Document), functools.partial(_document_hook, converter)
    )
    _register_types(converter)
    return converter
