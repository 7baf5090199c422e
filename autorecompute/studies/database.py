"""Opens the SQLite file of a study, which may have come with a folder that somebody else filled.

SQLite believes what lies beside its file: a journal is played back, a file that it names is deleted, a link is followed
and a pipe waited for. Optuna makes its tables in whatever it opens. So all of that is looked at first, and readers
write nothing.
"""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from contextlib import closing, suppress
from pathlib import Path

import optuna
import sqlalchemy

from autorecompute.errors import SetupError
from autorecompute.jsontext import UnreadableError

BUSY_TIMEOUT_SECONDS = 30
JOURNAL = "-journal"
BESIDE = (JOURNAL, "-wal", "-shm")
"""What SQLite reads beside a database, by what its name ends with."""

_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")
"""Ends a journal of several databases at once, behind the name of a file that SQLite deletes when it is through."""

_COMPUTED = """
SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR NOT (
    sql IS NULL OR sql GLOB 'CREATE TABLE *' OR sql GLOB 'CREATE INDEX *' OR sql GLOB 'CREATE UNIQUE INDEX *'
)
UNION ALL
SELECT m.name FROM sqlite_master m, pragma_table_xinfo(m.name) AS c WHERE m.type = 'table' AND c.hidden > 0
"""
"""Whatever in a database is worked out when it is read: views, triggers, virtual tables, generated columns.

SQLite writes the first words of a table as they stand here, whatever was typed: anything else was forged.
"""


def open_to_write(database: Path) -> optuna.storages.RDBStorage:
    """Return the storage in a file, which is made where there is none.

    Raises:
        SetupError: the file, or one that belongs to it, is a link or no file.
        UnreadableError: it holds more than a study does.
        sqlite3.Error, sqlalchemy.exc.SQLAlchemyError, RuntimeError: it cannot be opened.
    """
    _require_plain(database)
    if database.is_file():
        _has_tables(database)
    return _open(database, {"uri": "true"})


def open_to_read(database: Path) -> optuna.storages.RDBStorage | None:
    """Return the storage in a file that is not changed, but for what a killed process had begun to write.

    ``None`` if empty.

    Raises:
        SetupError: the file, or one that belongs to it, is a link or no file.
        UnreadableError: it holds more than a study does.
        sqlite3.Error, sqlalchemy.exc.SQLAlchemyError, RuntimeError: it cannot be opened, or is no storage.
    """
    _require_plain(database)
    return _open(database, {"uri": "true", "mode": "ro"}) if _has_tables(database) else None


def _open(database: Path, query: dict[str, str]) -> optuna.storages.RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = sqlalchemy.URL.create("sqlite", database=_uri_of(database), query=query)
    return optuna.storages.RDBStorage(
        url.render_as_string(), engine_kwargs={"connect_args": {"timeout": BUSY_TIMEOUT_SECONDS}}
    )


def _require_plain(database: Path) -> None:
    for path in (database, *(Path(f"{database}{ending}") for ending in BESIDE)):
        if path.is_symlink():
            raise SetupError(
                f"{path} is a link, and a study's trials are in its own folder. Put the file itself there."
            )
        if path.exists() and not path.is_file():
            raise SetupError(f"{path} is no file. Move it away, or begin a new study with --study NAME.")
    _require_own_journal(Path(f"{database}{JOURNAL}"))


def _require_own_journal(journal: Path) -> None:
    if not journal.is_file():
        return
    # While the study is tuned, it comes and goes.
    with suppress(FileNotFoundError), journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(_NAMES_ANOTHER), 0))
        if file.read() == _NAMES_ANOTHER:
            raise UnreadableError(f"{journal.name} names another file")


def _has_tables(database: Path) -> bool:
    """Tell whether anything is in a file; checks that it is tables: a view computes what is read."""
    # Not to be made, but to be written: what was being written when a process was killed is rolled back here.
    uri = f"{_uri_of(database)}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS)) as connection:
        if connection.execute(_COMPUTED).fetchone() is not None:
            raise UnreadableError("holds more than tables")
        return connection.execute("SELECT name FROM sqlite_master").fetchone() is not None


def _uri_of(database: Path) -> str:
    # A path is no URL: what would mean something in one is written as SQLite's own URI, which knows percent signs.
    return f"file:{urllib.parse.quote(os.fsencode(database))}"
