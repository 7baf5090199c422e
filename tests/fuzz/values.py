"""What a field is changed to: values that no command wrote, each by a name."""

from __future__ import annotations

import json
import math
from pathlib import Path

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m red\x1b[0m"
MARKUP = "</script></style><script>alert(1)</script><img src=x onerror=alert(1)>"
LONG = 100_000
MANY = 30_000
OUTSIDE = "@outside@"
"""Stands for the absolute path of a folder that no command may change."""

RAW = {
    "@deep@": "[" * LONG + "]" * LONG,
    "@deep object@": '{"a":' * LONG + "1" + "}" * LONG,
    "@digits@": "9" * 5000,
    "@huge exponent@": "1e400",
    "@unquoted@": "undefined",
    "@twice@": '{"a": 1, "a": {"a": 2}}',
    "@lone surrogate@": '"\\ud800"',
}
"""What :mod:`json` does not write: these strings stand for texts that take their place in the file."""

NUMBERS = {
    "zero": 0,
    "minus one": -1,
    "minus zero": -0.0,
    "one": 1,
    "fraction": 0.1,
    "denormal": 1e-320,
    "tiny": 1e-300,
    "largest float": 1.7e308,
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "2^31": 2**31,
    "2^53": 2**53 + 1,
    "2^59": 2**59,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^400": 10**400,
    "minus 10^400": -(10**400),
    "10^5000": "@digits@",
    "1e400": "@huge exponent@",
    "number as text": "12",
    "NaN as text": "nan",
    "infinity as text": "inf",
}

TEXTS = {
    "empty": "",
    "space": " ",
    "escape sequences": ESCAPES,
    "line breaks": "a\r\nb\n\x0b\x0c\x85\u2028touch pwned\n",
    "NUL": "a\0b",
    "lone surrogate": "\ud800",
    "lone surrogate of a byte": "\udcff",
    "control characters in bytes": "\udcc2\udc9b31m\udce2\udc80\udcae",
    "surrogate in text": "a\ud800\udbff b",
    "right to left": "a\u202etxt.exe\u2066\u200f",
    "invisible": "\u200b\ufeff\u2060",
    "absolute path": f"{OUTSIDE}/keep.txt",
    "path upwards": "../../outside/keep.txt",
    "home of nobody": "~nouser/x",
    "folder": ".",
    "command substitution": "$(touch pwned)`touch pwned`${IFS}",
    "command after quote": "'; touch pwned; '\"; touch pwned; \"",
    "assignment": "X=1; touch pwned; Y",
    "assignment lines": "X=1\ntouch pwned\nLD_PRELOAD=./evil.so",
    "option": "--force",
    "markup": MARKUP,
    "template": "{{ 7*7 }}{% for x in ().__class__.__mro__ %}{% endfor %}",
    "console markup": "[bold red]x[/nope][link=file:///etc/passwd]y[/]",
    "format": "%s%n%d{0}{x.__class__}{",
    "formula": "$x^{2$ \\frac{ _ ^",
    "wide": "漢字" * 200,
    "long": "x" * LONG,
    "many words": "a " * LONG,
    "product": "2*" * 80_000 + "2",
    "powers": "9**9**9**9**9",
    "names": "a*b*c+d",
    "parentheses": "(" * 10_000 + "1" + ")" * 10_000,
    "rows": "Gelu+:1:-1,Gelu+:1:-1,:::,+",
    "unknown word": "FOO",
    "address": "postgresql://me:secret@host/base?x=%zz",
}

SHAPES = {
    "null": None,
    "true": True,
    "empty list": [],
    "empty object": {},
    "text": "some text",
    "number": 7,
    "list": [1, "a", None],
    "object": {"a": 1},
    "deep": "@deep@",
    "deep object": "@deep object@",
    "no JSON": "@unquoted@",
    "key twice": "@twice@",
    "escaped lone surrogate": "@lone surrogate@",
    "hostile key": {ESCAPES: 1, "\ud800": 2, "X=1; touch pwned; Y": "v", "": {}, "LD_PRELOAD": "./evil.so"},
}

DELETED = "deleted"
LISTS = ("emptied", "doubled", "first alone", "reversed", "long", "of its first", "with null")
OBJECTS = ("emptied", "unknown key", "hostile keys", "renamed key", "many keys")


def kinds_for(value):
    """Names of the changes that there are for a value, the more telling ones more often."""
    return [name for names in _groups(value) for name in names]


def _groups(value):
    anything = (DELETED, *SHAPES)
    if isinstance(value, bool) or value is None:
        return (anything, NUMBERS, TEXTS)
    if isinstance(value, int | float):
        return (NUMBERS, NUMBERS, anything)
    if isinstance(value, str):
        return (TEXTS, TEXTS, anything)
    return (LISTS if isinstance(value, list) else OBJECTS,) * 3 + (anything,)


def changed(value, kind):
    """The value after a change; a deleted one is its holder's concern."""
    if isinstance(value, list) and kind in LISTS:
        return _changed_list(value, kind)
    if isinstance(value, dict) and kind in OBJECTS:
        return _changed_object(value, kind)
    return {**SHAPES, **TEXTS, **NUMBERS}[kind]


def _changed_list(value, kind):
    return {
        "emptied": [],
        "doubled": value * 2,
        "first alone": value[:1],
        "reversed": value[::-1],
        "long": (value or [1]) * (MANY // max(len(value), 1)),
        "of its first": [value[:1]],
        "with null": [*value, None],
    }[kind]


def _changed_object(value, kind):
    first = next(iter(value), "a")
    rest = {name: entry for name, entry in value.items() if name != first}
    return {
        "emptied": {},
        "unknown key": {**value, "unknown": 1},
        "hostile keys": {**value, **SHAPES["hostile key"]},
        "renamed key": {**rest, "X=1; touch pwned; Y": value.get(first)},
        "many keys": {**value, **{f"key{number}": number for number in range(MANY)}},
    }[kind]


def to_text(document):
    """The document as JSON, with what :mod:`json` does not write put in."""
    text = json.dumps(document)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return with_paths(text)


def with_paths(text):
    """The text with the path that stands for a folder outside; a case is run from the folder beside it."""
    return text.replace(OUTSIDE, str(Path.cwd().parent / "outside"))
