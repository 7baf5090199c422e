"""The changes to files: one field of one document, or what else may stand in the place of a file or folder."""

import contextlib
import functools
import gzip
import json
import math
import os
import reprlib
import shutil
import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path

from autorecompute import codec
from autorecompute.studies import Problem

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
    *("\ud800", "\udcff", "a\ud800\udbff b", "\udcc2\udc9b31m\udce2\udc80\udcae"),
    "a\r\nb\n\x0b\x85\u2028touch pwned\n",
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


MEGABYTE = 2**20
HOLE = 3 * 2**30
"""Bytes of a file that takes no room on the disk."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a document: the keys that lead to it, with nothing for a place in a list."""

    file: str
    path: tuple[str | None, ...]

    def change(self, draw):
        file = Path(self.file)
        content = read_document(file)
        place = draw.choice([place for path, place in walk(content) if path == self.path])
        value = draw_value(draw, _at(content, place))
        if file.suffix == ".db":
            _write_database(file, content, place, value)
        else:
            _write_json(file, _with(content, place, value))
        return f"{'.'.join(map(str, place)) or 'all'} of {self.file} becomes {reprlib.repr(value)}"


def fields_of(file):
    return list(dict.fromkeys(Field(str(file), path) for path, _ in walk(read_document(file))))


def walk(value, path=(), place=()):
    """Every value within a value: the path to it, and the place that it is at."""
    yield path, place
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from walk(entry, (*path, name), (*place, name))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from walk(entry, (*path, None), (*place, number))


def read_document(file):
    if file.suffix == ".db":
        return _read_database(file)
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)


def _write_json(file, content):
    is_archive = file.suffix == ".jsonl" and isinstance(content, list)
    if is_archive and content:
        _sign(content[0])
    text = "".join(f"{to_text(line)}\n" for line in content) if is_archive else to_text(content)
    # What a test writes may be no UTF-8.
    file.write_bytes(text.encode("utf-8", "surrogatepass"))


def _sign(line):
    """Gives a problem that was changed its digest, as whoever changes one on purpose would."""
    with contextlib.suppress(codec.UnreadableError, TypeError, KeyError):
        line["study"]["digest"] = codec.from_plain(line["study"]["problem"], Problem).digest


def _read_database(file):
    with contextlib.closing(sqlite3.connect(file)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: _rows(database, name) for name in sorted(names)}


def _rows(database, table):
    found = database.execute(f"select rowid as rowid, * from {table} order by rowid")  # noqa: S608
    names = [column[0] for column in found.description]
    return [{name: _parsed(value) for name, value in zip(names, row, strict=True)} for row in found]


def _parsed(value):
    with contextlib.suppress(ValueError):
        return json.loads(value) if isinstance(value, str) and value.startswith(("{", "[")) else value
    return value


def _write_database(file, content, place, value):
    """Changes a value, removes a row or a table, or says that another version made it."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        if not place:
            database.execute("update version_info set schema_version = 99")
        elif len(place) == 1:
            database.execute(f"drop table {place[0]}")
        else:
            table, row, *rest = place
            rowid = content[table][row]["rowid"]
            if not rest or rest[0] == "rowid":
                database.execute(f"delete from {table} where rowid = ?", (rowid,))  # noqa: S608
            else:
                _set(database, table, rest[0], rowid, _with(content[table][row], rest, value).get(rest[0]))


def _set(database, table, column, rowid, value):
    as_text = isinstance(value, list | dict) or (isinstance(value, str) and value in RAW)
    value = to_text(value) if as_text else value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    is_text = isinstance(value, str)
    written = "cast(? as text)" if is_text else "?"
    given = with_paths(value).encode("utf-8", "surrogatepass") if is_text else value
    statement = f"update or replace {table} set {column} = {written} where rowid = ?"  # noqa: S608
    database.execute("pragma ignore_check_constraints = on")
    try:
        database.execute(statement, (given, rowid))
    except sqlite3.IntegrityError:
        # A table that takes anything in any column.
        database.execute(f"create table loose as select * from {table} order by rowid")  # noqa: S608
        database.execute(f"drop table {table}")
        database.execute(f"alter table loose rename to {table}")
        database.execute(statement, (given, 1))


def _at(value, place):
    return functools.reduce(lambda within, step: within[step], place, value)


def _with(value, place, new):
    if not place:
        return None if new == DELETED else new
    first, rest = place[0], place[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if not rest and new == DELETED:
        del copy[first]
    else:
        copy[first] = _with(copy[first], rest, new)
    return copy


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    kind: str

    def change(self, draw):
        path = Path(self.file)
        content = path.read_bytes() if path.is_file() else b""
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if self.kind in BOMBS:
            path.write_bytes(bomb(self.kind))
        elif isinstance(replacement := KINDS[self.kind], bytes):
            path.write_bytes(replacement)
        else:
            replacement(path, content, draw)
        return f"{self.file} becomes {self.kind}"


def places_of(file):
    return [Place(str(file), kind) for kind in (*KINDS, *(BOMBS if file.suffix == ".jsonl" else ()))]


def _leading(target):
    return lambda path, *_: path.symlink_to(Path.cwd().parent / "outside" / target)


def _lead_to_a_copy(path, content, _draw):
    # What is read through it is as it was, and what is written would be another's.
    copy = Path.cwd().parent / "outside" / f"copy of {path.name}"
    copy.write_bytes(content)
    path.symlink_to(copy)


def _flip(path, content, draw):
    changed = bytearray(content or b"x")
    for _ in range(draw.choice((1, 8, 64))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    path.write_bytes(changed)


def _dig(path, *_):
    with path.open("wb") as file:
        file.truncate(HOLE)


def _name_another(path, *_):
    # What SQLite leaves of a transaction over several databases: it deletes the file that is named when it is through.
    name, magic = os.fsencode(Path.cwd().parent / "outside" / "keep.txt"), bytes.fromhex("d9d505f920a163d7")
    head = (magic + struct.pack(">5I", 0, 1, 1, 512, 4096)).ljust(512, b"\0")
    end = name + struct.pack(">2I", len(name), sum(name)) + magic
    path.write_bytes(head + struct.pack(">I", 2**30 // 4096 + 1) + end)


KINDS = {
    "nothing": lambda *_: None,
    "a symlink to a copy outside": _lead_to_a_copy,
    **{f"a symlink to {target}": _leading(target) for target in ("keep.txt", "docs", "missing", "/dev/zero", "/")},
    "a symlink to itself": lambda path, *_: path.symlink_to(path.name),
    "a pipe": lambda path, *_: os.mkfifo(path),
    "a folder": lambda path, *_: (path / "deep" / "er").mkdir(parents=True),
    "cut short": lambda path, content, draw: path.write_bytes(content[: draw.randrange(len(content) or 1)]),
    "itself with other bytes": _flip,
    "random": lambda path, _, draw: path.write_bytes(draw.randbytes(4096)),
    "no UTF-8": lambda path, content, _: path.write_bytes(content.replace(b"a", b"\xff\xfe")),
    "NULs": lambda path, content, _: path.write_bytes(b"\0" * (len(content) or 64)),
    "itself twice": lambda path, content, _: path.write_bytes(content * 2),
    "a hole": _dig,
    "one that nobody may read": lambda path, content, _: (path.write_bytes(content), path.chmod(0)),
    "called otherwise": lambda path, content, _: path.with_name("abc").write_bytes(content),
    "a journal that names a file": _name_another,
    "deep": b"[" * 200_000,
    "many lists": b"[" + b"[]," * MEGABYTE + b"[]]\n",
}
KINDS |= {"empty": b"", "null": b"null\n", "a list": b"[]\n", "an object": b"{}\n", "digits": b"9" * 5000}

BOMBS = {"a bomb of lists": b"[],", "a bomb of brackets": b"[", "a bomb of zeros": b"\0", "a bomb of lines": b"{}\n"}
"""What small archives unpack to."""


@functools.cache
def bomb(kind):
    """A small file that unpacks to a text of 64 MiB; all of them are made before processes are forked."""
    return gzip.compress(BOMBS[kind] * (64 * MEGABYTE // len(BOMBS[kind])), compresslevel=1)
