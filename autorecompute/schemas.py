"""The JSON Schemas (2020-12) of all that is printed or exported as JSON, made of the records when they are asked for.

``python -m autorecompute.schemas tune`` prints one. A schema has the types, ranges, words and units of fields.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
import re
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from autorecompute.cli import Failure
from autorecompute.codec import NOT_FINITE, Absent, entries_of
from autorecompute.emit import Emitted
from autorecompute.plans import Choice, Config
from autorecompute.ranges import Range
from autorecompute.reports.documents import Answer, ShownStudy
from autorecompute.reports.installation import Installation
from autorecompute.reports.plans_json import Plans
from autorecompute.reports.tables import StudyList
from autorecompute.studies.archive import LINES
from autorecompute.studies.checked import CheckReport

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]

DOCUMENTS: dict[str, tuple[type[Any], str]] = {
    "tune": (Answer, "What tune --json prints: the answer of a study."),
    "show": (ShownStudy, "What show STUDY --json prints: a study with all its trials."),
    "studies": (StudyList, "What show and studies list print with --json: the studies."),
    "check": (CheckReport, "What check --json prints: whether a stored config still holds here."),
    "plans": (Plans, "What plans --json prints: what could be recomputed."),
    "emit": (Emitted, "What emit --format json prints: what to train with."),
    "doctor": (Installation, "What doctor --json prints: what is installed."),
    "failure": (Failure, "What every verb prints with --json where it has no answer: why."),
}
"""The record that each verb prints, or all of them in place of theirs, and what it is."""

ARCHIVE = "study_archive"
NAMES = (*DOCUMENTS, ARCHIVE)

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NULL_WHERE_NOT_FINITE: Schema = {"type": ["number", "null"]}
TEXT_WHERE_NOT_FINITE: Schema = {"anyOf": [{"type": "number"}, {"enum": sorted(NOT_FINITE)}]}


def schema_of(name: str) -> Schema:
    """Return a published schema: what a verb prints, or ``study_archive``, a line of what ``studies export`` writes."""
    head = {"$schema": DRAFT, "$id": f"urn:autorecompute:schema:{name}", "title": f"autorecompute {name}"}
    if name == ARCHIVE:
        return {**head, **_archive()}
    record, description = DOCUMENTS[name]
    definitions = Definitions()
    return {
        **head,
        "$comment": "Later versions may add properties. What is listed stays, and an unmeasured number is null.",
        "description": description,
        **definitions.object_of(record),
        "$defs": definitions.made,
    }


def _archive() -> Schema:
    definitions = Definitions(is_closed=True)
    lines = [
        {"properties": {key: definitions.of(record)}, "required": [key], "additionalProperties": False}
        for key, record in LINES.items()
    ]
    return {
        "description": "A line of what studies export writes: an object with one key, study first and end last.",
        "type": "object",
        "oneOf": lines,
        "$defs": definitions.made,
    }


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
    """The schemas of records by their names, each made when it is first referred to.

    Those of an archive are closed: an object has no key but those of its record, and no number is written as null.
    """

    def __init__(self, *, is_closed: bool = False) -> None:
        self.made: dict[str, Schema] = {}
        self._is_closed = is_closed

    def object_of(self, record: type[Any]) -> Schema:
        """Return the schema of a record."""
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
            return TEXT_WHERE_NOT_FINITE if self._is_closed else NULL_WHERE_NOT_FINITE
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
            description = {"description": _plain((inspect.getdoc(kind) or "").partition("\n")[0])}
            self.made[name] = description | (self.object_of(kind) if schema is None else schema)
        return {"$ref": f"#/$defs/{name}"}


def _told(record: Any) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the type of each key and its words; one that an inlined record has comes again where it is replaced."""
    for entry in entries_of(record):
        if entry.is_inlined:
            yield from _told(entry.kind)
        elif not entry.words:
            raise ValueError(f"{record.__name__} says nothing of {entry.name}")
        else:
            yield entry.key, (entry.kind, _with_unit(entry.name, _plain(entry.words)))


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


def main() -> None:
    """Print the schema that is named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m autorecompute.schemas", description="Prints a JSON Schema.")
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    sys.stdout.write(json.dumps(schema_of(parser.parse_args().name), indent=2) + "\n")


if __name__ == "__main__":
    main()
