"""Holds output of verbs against its schema."""

import json

from jsonschema import Draft202012Validator

from autorecompute.schemas import schema_of


def check(name, text):
    """No object has a key that its schema does not name."""
    Draft202012Validator(_closed(schema_of(name))).validate(json.loads(text))


def _closed(schema):
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: _closed(part) for name, part in schema.items()}
    is_object = schema.get("type") == "object" and "properties" in schema
    return {**parts, "additionalProperties": False} if is_object else parts
