"""The records that verbs print as JSON, as :mod:`autorecompute.codec` writes them.

A document is a frozen dataclass, and its keys are its fields. :mod:`autorecompute.schemas` makes JSON Schemas of the
same fields. Three things are possible in a document that no other record has:

* A field of the type ``Annotated[Record, INLINED]`` has no key: the keys of that record stand in its place. A later
  field of the same key replaces what it has there.
* A field that is ``ABSENT`` has no key.
* A field whose key is a word of Python has an underscore behind it: ``with_``.

Documents are written and never read back.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cattrs import Converter


class Document:
    """What every printed record that uses one of those three things inherits from."""

    __slots__ = ()


class Absent(enum.Enum):
    """The type of :data:`ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""The value of a field that was not asked for."""

INLINED: Final = "inlined"
"""Marks a record whose keys stand in the place of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A field of a record, as its JSON has it.

    Attributes:
        name: The field's name.
        key: Its key.
        kind: Its type; of an inlined record, the record.
        is_inlined: Whether its own keys stand in the place of the key.
    """

    name: str
    key: str
    kind: Any
    is_inlined: bool


def entries_of(kind: type[Any]) -> Iterator[Entry]:
    """Yield the fields of a record, in their order."""
    types = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        told = types[field.name]
        is_inlined = get_origin(told) is Annotated and INLINED in told.__metadata__
        yield Entry(field.name, field.name.rstrip("_"), get_args(told)[0] if is_inlined else told, is_inlined)


def register(converter: Converter) -> None:
    """Have the converter write documents this way."""
    converter.register_unstructure_hook_factory(_is_document, lambda kind: _hook(converter, kind))


def _is_document(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Document)


def _hook(converter: Converter, kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    entries = list(entries_of(kind))

    def write(document: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for entry in entries:
            value = getattr(document, entry.name)
            if value is not ABSENT:
                told = converter.unstructure(value)
                plain |= told if entry.is_inlined else {entry.key: told}
        return plain

    return write
