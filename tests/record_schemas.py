"""Writes the published JSON Schemas and the page of the documentation that is made of them: run it after a change."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.verbs import all_schemas

ROOT = Path(__file__).parents[1]
SCHEMAS, PAGE = ROOT / "autorecompute" / "schemas", ROOT / "docs" / "json.md"

INTRODUCTION = """# JSON

Every verb that prints for people prints one JSON object for programs. Here is each field of each; the same as JSON
Schemas (2020-12) comes with the package:

```python
from importlib.resources import files

schema = files("autorecompute").joinpath("schemas/tune.schema.json").read_text()
```

A number that was not measured is `null`, never 0. Memory is in bytes and time in seconds, whatever is printed for
people. Later versions may add fields, so the schemas allow what they do not know; what is listed here stays. What
`studies export` writes, JSON lines, is described by `schemas/study_archive.schema.json`
([archives](studies.md#archives)). This page is written by `tests/record_schemas.py`.
"""


def texts():
    """What each file holds, by its path."""
    schemas = all_schemas()
    files = {SCHEMAS / f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}
    return {**files, PAGE: describe(schemas)}


def describe(schemas):
    """The page: a section for each verb, a table for each kind of object, each kind once."""
    parts, told = [INTRODUCTION], {}
    for name, schema in schemas.items():
        parts.append(f"## {name}\n\n{schema['description']}\n\n{_table(schema, schema['$defs'])}")
        for kind, definition in schema["$defs"].items():
            if "properties" in definition and told.setdefault(kind, definition) is definition:
                heading = f"### {kind}\n\n{definition['description']}"
                parts.append(f"{heading}\n\n{_table(definition, schema['$defs'])}")
    return "\n".join(parts)


def _table(schema, definitions):
    rows = [
        f"| `{name}` | {_kind(field, definitions)} | {field.get('description', '').replace('|', '&#124;')} |"
        for name, field in schema["properties"].items()
    ]
    return "\n".join(["| field | is | meaning |", "|---|---|---|", *rows, ""])


def _kind(field, definitions):
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        values = definitions[name].get("enum")
        return ", ".join(f"`{value}`" for value in values) if values else f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_kind(option, definitions) for option in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kinds = [field["type"]] if isinstance(field["type"], str) else field["type"]
    if "array" in kinds:
        kinds = [f"list of {_kind(field['items'], definitions)}" if kind == "array" else kind for kind in kinds]
    if "object" in kinds and "additionalProperties" in field:
        kinds = [f"by name: {_kind(field['additionalProperties'], definitions)}" if k == "object" else k for k in kinds]
    return " or ".join(kinds)


def main():
    """Writes them all."""
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
