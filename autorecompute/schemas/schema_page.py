"""The page of the documentation that has every field of every printed object, made of the schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.schemas import DOCUMENTS, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.schemas.definitions import Schema


def describe_documents() -> str:
    """A section for each verb with a table for each kind of object, each kind once, as Markdown."""
    parts: list[str] = []
    told: dict[str, Schema] = {}
    for name in DOCUMENTS:
        schema = schema_of(name)
        kinds = schema["$defs"]
        parts.append(f"## {name}\n\n{schema['description']}\n\n{_table(schema, kinds)}")
        for kind, definition in kinds.items():
            if "properties" in definition and kind not in told:
                parts.append(f"### {kind}\n\n{definition['description']}\n\n{_table(definition, kinds)}")
            assert told.setdefault(kind, definition) == definition, f"two records are called {kind}"
    return "\n".join(parts)


def _table(schema: Schema, kinds: Mapping[str, Schema]) -> str:
    rows = [
        f"| `{key}` | {_kind(field, kinds)} | {field['description'].replace('|', '&#124;')} |"
        for key, field in schema["properties"].items()
    ]
    return "\n".join(["| field | is | meaning |", "|---|---|---|", *rows, ""])


def _kind(field: Schema, kinds: Mapping[str, Schema]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return _kind(kinds[name], kinds) if "enum" in kinds[name] else f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_kind(option, kinds) for option in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" if isinstance(value, str) else str(value).lower() for value in field["enum"])
    types = [field["type"]] if isinstance(field["type"], str) else field["type"]
    return " or ".join(_word(kind, field, kinds) for kind in types)


def _word(kind: str, field: Schema, kinds: Mapping[str, Schema]) -> str:
    if kind == "array":
        return f"list of {_kind(field['items'], kinds)}"
    return f"by name: {_kind(field['additionalProperties'], kinds)}" if kind == "object" else kind
