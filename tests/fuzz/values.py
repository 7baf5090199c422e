"""What a field is changed to: values that no command wrote."""

import json
import math
from pathlib import Path

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m red\x1b[0m"
OUTSIDE = "@outside@"
"""Stands for the absolute path of a folder that no command may change."""

LONG, MANY = 100_000, 90_000

RAW = {
    "@deep@": "[" * LONG + "]" * LONG,
    "@deep object@": '{"a":' * LONG + "1" + "}" * LONG,
    "@digits@": "9" * 5000,
    "@exponent@": "1e400",
    "@unquoted@": "undefined",
    "@twice@": '{"a": 1, "a": {"a": 2}}',
    "@half@": '"\\ud800"',
}
"""What :mod:`json` does not write: these strings stand for texts that take their place in the file."""

NUMBERS = [0, 1, -1, -0.0, 0.1, 1e-320, 1e-300, 1.7e308, math.nan, math.inf, -math.inf, "12", "nan", "inf"]
HUGE = [2**31, 2**53 + 1, 2**59, 2**63, 2**64, 10**400, -(10**400), "@digits@", "@exponent@"]

TEXTS = [
    *("", " ", ".", "FOO", "--force", "a\0b", "a\u202etxt.exe\u2066\u200f", "\u200b\ufeff\u2060", "漢字" * 200),
    *(
        "\ud800",
        "\udcff",
        "a\ud800\udbff b",
        "\udcc2\udc9b31m\udce2\udc80\udcae",
        "a\r\nb\n\x0b\x85\u2028touch pwned\n",
    ),
    *("x" * LONG, "a " * LONG, "9**9**9**9**9", "a*b*c+d", "Gelu+:1:-1,Gelu+:1:-1,:::,+", "%s%n{0}{x.__class__}{"),
    *(ESCAPES, "~nouser/x", "2*" * 80_000 + "2", "(" * 10_000 + "1" + ")" * 10_000, "$x^{2$ \\frac{ _ ^"),
    *("$(touch pwned)`touch pwned`${IFS}", "'; touch pwned; '\"; touch pwned; \"", "X=1; touch pwned; Y"),
    *("X=1\ntouch pwned\nLD_PRELOAD=./evil.so", "[bold red]x[/nope][link=file:///etc/passwd]y[/]"),
    "</script></style><script>alert(1)</script><img src=x onerror=alert(1)>",
    "postgresql://me:secret@host/base?x=%zz",
]
PATHS = [f"{OUTSIDE}/keep.txt", "../../outside/keep.txt"]

HOSTILE_KEYS = {ESCAPES: 1, "\ud800": 2, "X=1; touch pwned; Y": "v", "": {}, "LD_PRELOAD": "./evil.so"}
SHAPES = [None, True, [], {}, "some text", 7, [1, "a", None], {"a": 1}, "@deep@", "@deep object@", "@unquoted@"]
SHAPES += ["@twice@", "@half@", HOSTILE_KEYS]

DELETED = "@deleted@"
"""Stands for nothing at all."""


def draw_value(draw, value):
    """Another value for a field: mostly one of the same kind, of which readers expect less harm."""
    if isinstance(value, list | dict):
        kinds = [_lists if isinstance(value, list) else _objects] * 3
    elif isinstance(value, int | float) and not isinstance(value, bool):
        kinds = [lambda _: NUMBERS, lambda _: HUGE]
    else:
        kinds = [lambda _: TEXTS, lambda _: TEXTS, lambda _: PATHS, lambda _: NUMBERS]
    return draw.choice(draw.choice([*kinds, lambda _: [DELETED, *SHAPES]])(value))


def _lists(value):
    many = (value or [1]) * (MANY // max(len(value), 1))
    return [[], value * 2, value[:1], value[::-1], many, [value[:1]], [*value, None]]


def _objects(value):
    first = next(iter(value), "a")
    rest = {name: entry for name, entry in value.items() if name != first}
    many = {f"key{number}": number for number in range(MANY)}
    renamed = {**rest, "X=1; touch pwned; Y": value.get(first)}
    return [{}, {**value, "unknown": 1}, {**value, **HOSTILE_KEYS}, renamed, {**value, **many}]


def to_text(document):
    """The document as JSON, with what :mod:`json` does not write put in."""
    text = json.dumps(document)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return with_paths(text)


def with_paths(text):
    """The text with the path that stands for a folder outside; a case is run from the folder beside it."""
    return text.replace(OUTSIDE, str(Path.cwd().parent / "outside"))
