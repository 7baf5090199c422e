"""JSON Schemas of records: types, ranges, words and units from their fields."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from autorecompute.codec import Absent, entries_of
from autorecompute.plans import Choice, Config
from autorecompute.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]

UNITS = (("_bytes", "bytes"), ("samples_per_second", "samples a second"), ("_seconds", "seconds"))
"""Units by the end of a name."""

CHOICE: Schema = {"type": "string", "description": "A choice: SITE:OPTION or SITE:OPTION:COUNT."}
SIMPLE: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    Choice: CHOICE,
    Config: {"type": "array", "items": CHOICE},
}


class Definitions:
    """The schemas of records, each made when it is first referred to.

    Args:
        floats: The schema of a number that has no range, and may be NaN or infinite.
        is_closed: Whether an object may have no key but those of its record.

    Attributes:
        made: The schemas so far, by the names of the records.
    """

    def __init__(self, floats: Schema, *, is_closed: bool = False) -> None:
        self.made: dict[str, Schema] = {}
        self._floats, self._is_closed = floats, is_closed

    def object_of(self, record: type[Any]) -> Schema:
        """Return the schema of a record.

        Raises:
            TypeError: a field has a type that no schema is known for.
            ValueError: a field has no words.
        """
        told = dict(_told(record))
        schema = {
            "type": "object",
            "properties": {key: {**self.of(kind), "description": words} for key, (kind, words) in told.items()},
            "required": [key for key, (kind, _) in told.items() if Absent not in get_args(kind)],
        }
        return {**schema, "additionalProperties": False} if self._is_closed else schema

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type.

        Raises:
            TypeError: none is known for it.
            ValueError: a field of a record has no words.
        """
        if kind is float:
            return self._floats
        if kind is Any:
            return {}
        if kind in SIMPLE:
            return SIMPLE[kind]
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            values = [member.value for member in kind]
            return self._reference(kind, {"type": "string", "enum": values})
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._reference(kind, None)
        return self._of_parts(kind, get_origin(kind), get_args(kind))

    def _of_parts(self, kind: Any, origin: Any, parts: tuple[Any, ...]) -> Schema:
        if origin is Annotated and isinstance(limits := parts[1], Range):
            number = "integer" if parts[0] is int else "number"
            return {"type": number, "minimum": limits.least, "maximum": limits.largest}
        if origin is Literal:
            return {"enum": list(parts)}
        if origin in {Union, types.UnionType}:
            some = [part for part in parts if part not in {types.NoneType, Absent}]
            if len(some) == 1:
                schema = self.of(some[0])
                return _or_null(schema) if types.NoneType in parts else schema
        if origin in {tuple, list}:
            return {"type": "array", "items": self.of(parts[0])}
        if origin in {dict, Mapping}:
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        raise TypeError(f"no schema is known for {kind}")

    def _reference(self, kind: type[Any], schema: Schema | None) -> Schema:
        name = kind.__name__
        if name not in self.made:
            self.made[name] = {}  # where it refers to itself
            description = {"description": summary_of(kind)}
            self.made[name] = description | (self.object_of(kind) if schema is None else schema)
        return {"$ref": f"#/$defs/{name}"}


def _told(record: type[Any]) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the type of each key and its words; one that an inlined record has comes again where it is replaced."""
    for entry in entries_of(record):
        if entry.is_inlined:
            yield from _told(entry.kind)
        elif not entry.words:
            raise ValueError(f"{record.__name__} says nothing of {entry.name}")
        else:
            yield entry.key, (entry.kind, _with_unit(entry.name, _plain(entry.words)))


def summary_of(kind: type[Any]) -> str:
    """Return the first sentence of the docstring."""
    return _plain((inspect.getdoc(kind) or "").partition("\n")[0])


def _with_unit(name: str, text: str) -> str:
    unit = next((unit for ending, unit in UNITS if name.endswith(ending)), "")
    return f"{text} In {unit}." if unit else text


def _plain(text: str) -> str:
    words = " ".join(text.split())
    words = re.sub(r"``([^`]*)``", lambda match: "null" if match[1] == "None" else match[1], words)
    return words if text.startswith("`") else words[0].upper() + words[1:]


def _or_null(schema: Schema) -> Schema:
    if isinstance(kind := schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    return schema if isinstance(kind, list) else {"anyOf": [schema, {"type": "null"}]}
