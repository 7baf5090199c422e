"""Records as JSON: read within bounds, checked against the types of their fields, and written.

A study's folder or an archive may come from somebody else: whatever is read raises :class:`UnreadableError` where it
is not what it should be.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import math
import re
import reprlib
import types
from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from autorecompute.errors import UsageError
from autorecompute.plans import Choice, Config
from autorecompute.ranges import INLINED, PRIVATE, Range
from autorecompute.units import MIB, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Reader = Callable[[Any], Any]


T = TypeVar("T")


class Absent(enum.Enum):
    """The type of :data:`ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT  # the value of a field that was not asked for


class Entry(NamedTuple):
    """A field of a record, as its JSON has it."""

    name: str
    key: str
    kind: Any
    """Its type without its words; of an inlined record, the record."""
    words: str
    """Words about the field: the text that its type is annotated with."""
    is_inlined: bool
    is_required: bool
    """True if it has no default."""


@functools.cache
def entries_of(kind: Any, *, is_document: bool = False) -> tuple[Entry, ...]:
    """Return the fields of a record, in their order; of a document the public ones, then properties that have notes."""
    types_of, missing = get_type_hints(kind, include_extras=True), dataclasses.MISSING
    found = []
    for field in dataclasses.fields(kind):
        is_required = field.default is missing and field.default_factory is missing
        if not is_document or PRIVATE not in getattr(types_of[field.name], "__metadata__", ()):
            found.append(_entry(field.name, types_of[field.name], is_required=is_required))
    properties = inspect.getmembers_static(kind, lambda member: isinstance(member, property)) if is_document else []
    for name, member in properties:
        # Other properties may have types that are imported for a checker only.
        if "Annotated[" in str(member.fget.__annotations__.get("return")):
            told = get_type_hints(member.fget, include_extras=True)["return"]
            found.append(_entry(name, told, is_required=True))
    return tuple(found)


def _entry(name: str, kind: Any, *, is_required: bool) -> Entry:
    notes, annotated = getattr(kind, "__metadata__", ()), Annotated
    words = "".join(note for note in notes if isinstance(note, str))
    if notes:
        ranges = [note for note in notes if isinstance(note, Range)]
        kind = annotated[get_args(kind)[0], *ranges] if ranges else get_args(kind)[0]
    return Entry(name, name.rstrip("_"), kind, words, INLINED in notes, is_required)


LARGEST_TEXT = 32 * MIB  # the largest part of a study is its profiled steps: 0.6 MiB for a BERT of two layers

MOST_VALUES = 2_000_000
"""An empty list takes two bytes of text and sixty in memory, so values are counted before they are made."""

DEEPEST = 40
MOST_DIGITS = 20  # a whole number of 64 bits, with its sign


class UnreadableError(ValueError):
    """A text or a plain value does not describe what it should; the message says what is wrong with it."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.place = place
        """The part that is wrong, from the value on that is read: ``.rounds[2].step_seconds``."""


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
    """Parse a JSON file; an ``OSError`` says that it cannot be read."""
    with path.open("rb") as file:
        return parse(file.read(LARGEST_TEXT + 1))


def write(value: object, *, indent: int | None = None) -> str:
    """Return the value as JSON in ASCII; a number that JSON has no word for, such as NaN, becomes a string."""
    return _dump(_finite(to_plain(value), keeps=True), indent)


def dumps(document: object) -> str:
    """Return the document as verbs print it, for people and programs; what is no finite number is null."""
    return _dump(_finite(to_plain(document, is_document=True), keeps=False), indent=2)


def _dump(plain: object, indent: int | None) -> str:
    return json.dumps(plain, allow_nan=False, indent=indent, separators=None if indent else (",", ":"))


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


MOST_ENTRIES = 100_000  # no step has more operations, and no study more trials

MOST_NAMES = 1_000
"""Most names in a mapping of a record, such as dimensions, versions or presets: it is printed and compared by lines."""

LONGEST_TEXT = 1 << 20
NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""The numbers that JSON has no word for, as :func:`autorecompute.codec.write` writes them."""

_INT64 = Range(-(1 << 63), (1 << 63) - 1)
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Halves of characters, which nothing can print, but for those that stand for a byte of a name that is no UTF-8."""


@functools.cache
def _reader_of(kind: Any) -> Reader:
    """Return the function that reads plain values as of this type."""
    origin, parts = get_origin(kind), get_args(kind)
    reader: Reader
    if kind in _READERS:
        reader = _READERS[kind]
    elif dataclasses.is_dataclass(kind):
        reader = functools.partial(_read_record, kind)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        reader = functools.partial(_read_member, {member.value: member for member in kind})
    elif origin is Annotated and isinstance(limits := parts[1], Range):
        reader = functools.partial(_within, limits, _read_whole if parts[0] is int else _read_float)
    elif origin in {Union, types.UnionType}:
        (read,) = (_reader_of(part) for part in parts if part is not types.NoneType)
        reader = functools.partial(_read_optional, read)
    elif origin in {list, tuple}:
        # A tuple of a fixed length has entries of one type here.
        length = None if origin is list or parts[1:] == (Ellipsis,) else len(parts)
        reader = functools.partial(_read_list, origin, _reader_of(parts[0]), length)
    elif origin in {dict, Mapping}:
        reader = functools.partial(_read_mapping, _reader_of(parts[1]))
    else:
        raise TypeError(f"no reader is known for {kind}")
    return reader


def _require(plain: Any, kinds: type[Any] | tuple[type[Any], ...], words: str) -> Any:
    if not isinstance(plain, kinds) or (isinstance(plain, bool) and kinds is not bool):
        raise UnreadableError(f"is {_show(plain)}, not {words}")
    return plain


_read_whole = functools.partial(_require, kinds=int, words="a whole number")


def _read_text(plain: Any) -> str:
    text: str = _require(plain, str, "a text")
    if len(text) > LONGEST_TEXT:
        raise UnreadableError(f"is a text of {len(text)} characters, {LONGEST_TEXT} is the most")
    if not text.isascii() and _HALVES.search(text):
        raise UnreadableError("holds half a character")
    return text


def _read_member(members: dict[Any, Any], plain: Any) -> Any:
    if not isinstance(plain, str | int) or isinstance(plain, bool) or plain not in members:
        raise UnreadableError(f"is {_show(plain)}, none of {', '.join(map(str, members))}")
    return members[plain]


def _read_float(plain: Any) -> float:
    if isinstance(plain, float):
        return plain
    if isinstance(plain, str) and plain in NOT_FINITE:
        return float(plain)
    return float(_within(_INT64, functools.partial(_require, kinds=int, words="a number"), plain))


def _within(limits: Range, read: Reader, plain: Any) -> Any:
    if (number := read(plain)) not in limits:
        raise UnreadableError(f"is {_show(number)}, not {limits}")
    return number


def _read_choices(parse_plain: Reader, plain: Any) -> Any:
    try:
        return parse_plain(plain)
    except UsageError as error:
        raise UnreadableError(f"holds what is no choice: {error}") from error


def _read_optional(read: Reader, plain: Any) -> Any:
    return None if plain is None else read(plain)


def _read_list(origin: type[Any], read: Reader, length: int | None, plain: Any) -> Any:
    _require_length(len(_require(plain, (list, tuple), "a list")), length)
    return origin(_read_part(read, f"[{place}]", value) for place, value in enumerate(plain))


def _read_mapping(read: Reader, plain: Any) -> Any:
    _require_length(len(_require(plain, dict, "an object")), None, MOST_NAMES)
    return {_read_text(name): _read_part(read, f"[{name!r}]", value) for name, value in plain.items()}


def _read_record(kind: Any, plain: Any) -> Any:
    _require(plain, dict, "an object")
    values, entries = {}, entries_of(kind)
    for entry in entries:
        if entry.name in plain:
            values[entry.name] = _read_part(_reader_of(entry.kind), f".{entry.name}", plain[entry.name])
        elif entry.is_required:
            raise UnreadableError("is missing", f".{entry.name}")
    # What a record does not know would be lost, or believed by a later version.
    if unknown := plain.keys() - {entry.name for entry in entries}:
        raise UnreadableError("is unknown", f".{printable(min(unknown)[:LONGEST_NAME], '')}")
    try:
        return kind(**values)
    except Exception as error:
        raise UnreadableError(str(error) or "is wrong") from error


def _read_part(read: Reader, place: str, plain: Any) -> Any:
    try:
        return read(plain)
    except UnreadableError as error:
        error.place = f"{place}{error.place}"
        raise


def _require_length(length: int, wanted: int | None, most: int = MOST_ENTRIES) -> None:
    if wanted is not None and length != wanted:
        raise UnreadableError(f"has {length} entries, not {wanted}")
    if length > most:
        raise UnreadableError(f"has {length} entries, {most} is the most")


def _show(plain: Any) -> str:
    return "null" if plain is None else reprlib.repr(plain)[:60]


LONGEST_NAME = 80  # letters of a name that stands in a file, and in a message about it

_READERS: dict[Any, Reader] = {
    Any: lambda plain: plain,
    str: _read_text,
    bool: lambda plain: _require(plain, bool, "true or false"),
    int: functools.partial(_within, _INT64, _read_whole),
    float: _read_float,
    Choice: functools.partial(_read_choices, lambda plain: Choice.parse(_read_text(plain))),
    Config: functools.partial(_read_choices, lambda plain: Config.parse(_reader_of(list[str])(plain))),
}
_PRIMITIVES = frozenset({str, int, float, bool, types.NoneType})


def to_plain(value: Any, *, is_document: bool = False) -> Any:
    """Return the value as dicts, lists, strings and numbers, as it is stored or as a document has it."""
    if type(value) in _PRIMITIVES:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Config | Choice):
        return value.texts if isinstance(value, Config) else str(value)
    if dataclasses.is_dataclass(value):
        plain: dict[str, Any] = {}
        for entry in entries_of(cast("Any", type(value)), is_document=is_document):
            if (part := getattr(value, entry.name)) is not ABSENT:
                told = to_plain(part, is_document=is_document)
                plain |= told if entry.is_inlined else {entry.key: told}
        return plain
    if isinstance(value, Mapping):
        return {to_plain(name): to_plain(entry, is_document=is_document) for name, entry in value.items()}
    is_several = isinstance(value, list | tuple | set | frozenset)
    return [to_plain(entry, is_document=is_document) for entry in value] if is_several else value


def from_plain(plain: Any, kind: type[T]) -> T:
    """Return the value of that kind which ``to_plain`` made ``plain`` of."""
    try:
        value: T = _reader_of(cast("Any", kind))(plain)
    except UnreadableError as error:
        place = error.place.removeprefix(".")
        what = f"'{place}' {error}" if place else f"it {error}"
        raise UnreadableError(f"describes no {getattr(kind, '__name__', str(kind))}: {what}") from error
    return value


def encode(value: object) -> bytes:
    """Return the value as JSON."""
    return write(value).encode()


def decode(text: bytes | str, kind: type[T]) -> T:
    """Return the value of that kind which ``encode`` wrote."""
    return from_plain(parse(text.encode() if isinstance(text, str) else text), kind)
