"""JSON Schemas of records: types from their fields, words from their docstrings."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Mapping

from autorecompute.plans import Choice, Config

ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
UNITS = (("_bytes", "bytes"), ("samples_per_second", "samples a second"), ("_seconds", "seconds"))
TEXT, TEXTS, WHOLE = {"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "integer"}
NOT_FINITE = {("Measurement", "losses"), ("Best", "losses"), ("GradientCheck", "worst")}
"""What may be no finite number where a training goes astray: JSON has no word for it, so it is null there."""


def number_or_null():
    """A number where there is one."""
    return {"type": ["number", "null"]}


class Records:
    """Definitions of records, each made when it is first asked for.

    Attributes:
        definitions: The schemas so far, by the records' names.
    """

    def __init__(self):
        self.definitions = {}

    def reference(self, kind):
        """A reference to the definition of a record."""
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}
            self.definitions[kind.__name__] = self._define(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def type_of(self, kind):
        """The schema of a type."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in {typing.Union, types.UnionType}:
            (some,) = (argument for argument in arguments if argument is not type(None))
            return _or_null(self.type_of(some))
        if origin in {tuple, list}:
            return {"type": "array", "items": self.type_of(arguments[0])}
        if origin in {dict, Mapping}:
            return {"type": "object", "additionalProperties": self.type_of(arguments[1])}
        simple = {str: "string", int: "integer", float: "number", bool: "boolean", Choice: "string"}
        if kind in simple:
            return {"type": simple[kind]}
        if isinstance(kind, type) and (issubclass(kind, enum.Enum) or dataclasses.is_dataclass(kind)):
            return self.reference(kind)
        raise TypeError(f"no schema is known for {kind}")

    def _define(self, kind):
        if kind is Config:
            return CONFIG
        if issubclass(kind, enum.Enum):
            values = [member.value for member in kind]
            return {"description": _first_sentence(kind), "type": "string", "enum": values}
        hints, words = typing.get_type_hints(kind), described(kind)
        properties = {}
        for field in dataclasses.fields(kind):
            schema = self.type_of(hints[field.name])
            if (kind.__name__, field.name) in NOT_FINITE:
                schema = {"type": "array", "items": number_or_null()} if "items" in schema else number_or_null()
            properties[field.name] = {**schema, "description": words[field.name]}
        return obj(_first_sentence(kind), properties)


CONFIG = {
    "description": "What is recomputed, as SITE:OPTION or SITE:OPTION:COUNT.",
    "type": "array",
    "items": {"type": "string"},
}


def obj(description, properties, *, optional=()):
    """An object of which every property is there, but for the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"description": description, "type": "object", "properties": properties, "required": required}


def described(kind):
    """The words for each field of a record, with the unit of what is counted."""
    doc = inspect.getdoc(kind) or ""
    section = doc.partition("Attributes:\n")[2]
    found = {name: _plain(text) for name, text in ENTRY.findall(section)}
    missing = {field.name for field in dataclasses.fields(kind)} - set(found)
    if missing:
        raise ValueError(f"{kind.__name__} says nothing of {sorted(missing)}")
    return {name: with_unit(name, text) for name, text in found.items()}


def with_unit(name, text):
    """The words, and the unit where the name has one."""
    unit = next((unit for ending, unit in UNITS if name.endswith(ending)), "")
    return f"{text} In {unit}." if unit else text


def _plain(text):
    words = " ".join(text.split())
    words = re.sub(r"``([^`]*)``", lambda match: "null" if match[1] == "None" else match[1], words)
    return words[0].upper() + words[1:]


def _first_sentence(kind):
    return _plain((inspect.getdoc(kind) or "").partition("\n")[0])


def _or_null(schema):
    if "type" in schema and "enum" not in schema and isinstance(schema["type"], str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}
