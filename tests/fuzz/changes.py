"""The changes: one field of one document, or one file or folder as a whole."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from fuzz.values import DELETED, RAW, changed, kinds_for, to_text, with_paths

EACH = "*"
"""Stands for the place in a list."""

SQL_NUMBERS = 2**63
ROWID = "rowid"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a document, wherever in its lists.

    Attributes:
        file: The document, from the working directory on.
        path: The keys that lead to it.
    """

    file: str
    path: tuple[str, ...]

    def __str__(self):
        return f"{self.file}: {'.'.join(self.path) or 'all of it'}"

    def change(self, draw):
        """Changes one of the places that it has; what was done, in words."""
        document = open_document(Path(self.file))
        place = draw.choice([place for path, place in walk(document.content) if path == self.path])
        kind = draw.choice(kinds_for(_at(document.content, place)))
        document.write(place, kind)
        return f"{'.'.join(map(str, place)) or 'all of it'} of {self.file} {kind}"


def fields_of(file):
    """The fields of a document, in a fixed order."""
    return list(dict.fromkeys(Field(str(file), path) for path, _ in walk(open_document(file).content)))


def walk(value, path=(), place=()):
    """Every value within a value: the path to it, and the place that it is at."""
    yield path, place
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from walk(entry, (*path, name), (*place, name))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from walk(entry, (*path, EACH), (*place, number))


def open_document(file):
    """A file by what its name ends with."""
    return {".jsonl": Lines, ".db": Database}.get(file.suffix, Json)(file)


class Json:
    """A file with one JSON value.

    Args:
        file: The file.
    """

    def __init__(self, file):
        self.file = file
        self.content = self.read()

    def read(self):
        """What it holds."""
        return json.loads(self.file.read_text(encoding="utf-8"))

    def write(self, place, kind):
        """Writes it with a change at a place."""
        # What a test writes may be no UTF-8.
        self.file.write_bytes(self.text(place, kind).encode("utf-8", "surrogatepass"))

    def text(self, place, kind):
        """What is to be written."""
        return to_text(_with(self.content, place, kind))


class Lines(Json):
    """An archive: a JSON value in each line."""

    def read(self):
        """What each line holds."""
        self._lines = self.file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in self._lines]

    def text(self, place, kind):
        """What is to be written: all lines are as they were, but for the one that is changed."""
        changed = _with(self.content, place, kind)
        if not isinstance(changed, list):
            return to_text(changed) + "\n"
        known = {id(value): line for value, line in zip(self.content, self._lines, strict=True)}
        return "".join(f"{known.get(id(value)) or to_text(value)}\n" for value in changed)


class Database:
    """A database: its rows by table, and JSON in them as what it stands for.

    Args:
        file: The file.
    """

    def __init__(self, file):
        self.file = file
        with contextlib.closing(self._connect()) as database:
            names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
            self.content = {name: self._rows(database, name) for name in sorted(names)}

    def write(self, place, kind):
        """Changes a value, removes a row or a table, or says that another version made it."""
        with contextlib.closing(self._connect()) as database, database:
            if not place:
                database.execute("update version_info set schema_version = 99")
            elif len(place) == 1:
                database.execute(f"drop table {place[0]}")
            elif len(place) == 2 or place[2] == ROWID:
                database.execute(f"delete from {place[0]} where rowid = ?", (self._rowid(place),))  # noqa: S608
            else:
                self._set(database, place, kind)

    def _set(self, database, place, kind):
        table, _, column, *rest = place
        written, *value = _sql(_with(_at(self.content, place[:3]), rest, kind))
        statement = f"update or replace {table} set {column} = {written} where rowid = ?"  # noqa: S608
        database.execute("pragma ignore_check_constraints = on")
        try:
            database.execute(statement, (*value, self._rowid(place)))
        except sqlite3.IntegrityError:
            _loosen(database, table)
            database.execute(statement, (*value, place[1] + 1))

    def _rowid(self, place):
        return _at(self.content, (*place[:2], ROWID))

    def _connect(self):
        return sqlite3.connect(self.file)

    def _rows(self, database, table):
        found = database.execute(f"select rowid as {ROWID}, * from {table} order by rowid")  # noqa: S608
        names = [column[0] for column in found.description]
        return [{name: _parsed(value) for name, value in zip(names, row, strict=True)} for row in found]


def _loosen(database, table):
    """Has a table take anything in any column."""
    database.execute(f"create table loose as select * from {table} order by rowid")  # noqa: S608
    database.execute(f"drop table {table}")
    database.execute(f"alter table loose rename to {table}")


def _parsed(value):
    if isinstance(value, str) and value.startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def _sql(value):
    """A value as SQLite takes it: text that is no UTF-8, too."""
    if isinstance(value, list | dict) or (isinstance(value, str) and value in RAW):
        value = to_text(value)
    if isinstance(value, int) and not -SQL_NUMBERS <= value < SQL_NUMBERS:
        value = str(value)
    if isinstance(value, str):
        return "cast(? as text)", with_paths(value).encode("utf-8", "surrogatepass")
    return "?", value


def _at(value, place):
    for step in place:
        value = value[step]
    return value


def _with(value, place, kind):
    """The value with a change at a place of it."""
    if not place:
        return None if kind == DELETED else changed(value, kind)
    first, rest = place[0], place[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if not rest and kind == DELETED:
        del copy[first]
    else:
        copy[first] = _with(copy[first], rest, kind)
    return copy
