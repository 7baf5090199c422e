"""The Optuna storage of a study."""

from __future__ import annotations

import os
import sqlite3
import time
import urllib.parse
import warnings
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy
import sqlalchemy.exc
from alembic.util import CommandError

from autorecompute import codec
from autorecompute.errors import SetupError, chain_of
from autorecompute.jsontext import UnreadableError
from autorecompute.measurement import Trial
from autorecompute.ranges import Seconds
from autorecompute.studies.frozen import TRIAL_ATTRIBUTE, freeze, violation
from autorecompute.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.plans import Space


VALUE = "samples/s"
"""The name of what every trial is judged by."""

CONSTRAINTS = "constraints"
"""The only name under which optuna-dashboard 0.21 looks for constraints: that of Optuna before version 5, a list."""


def name_value(study: optuna.Study) -> None:
    """Name what the trials of a study are judged by, which is ``Objective 0`` otherwise."""
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([VALUE])


def constraint_of(trial: Trial, limit_bytes: int) -> dict[str, Any]:
    """Return the constraint of a trial as system attributes that viewers know: above 0 it is drawn as infeasible."""
    return {CONSTRAINTS: [violation(trial.measurement, limit_bytes)]}


def attributes_of(trial: Trial) -> dict[str, Any]:
    """Return the attributes of a trial that a viewer shows and draws beside its parameters."""
    measurement = trial.measurement
    peak = {} if measurement.peak_bytes is None else {"peak_gib": round(measurement.peak_bytes / GIB, 3)}
    return {
        "config": trial.description,
        "hash": trial.config.hash,
        "outcome": str(measurement.outcome),
        "reason": trial.reason,
        **peak,
    }


def length_of(trial: Trial) -> timedelta:
    """Return the length of a trial."""
    measurement = trial.measurement
    steps = measurement.warmup_seconds + sum(measurement.step_seconds)
    return timedelta(seconds=steps + (trial.overhead_seconds or 0.0))


BUSY_TIMEOUT_SECONDS = 30
JOURNAL = "-journal"
BESIDE = (JOURNAL, "-wal", "-shm")
"""Endings of the files that SQLite reads beside a database."""

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


SECONDS_ATTRIBUTE = "wall_seconds"


class TrialStore:
    """The trials of one study.

    Args:
        database: The SQLite file; it is made where there is none.
        name: The Optuna study's name.
        space: The plans, which are the parameters of the Optuna trials.
        limit_bytes: The memory limit, which is their constraint.

    Raises:
        SetupError: the file cannot be read as a study, or cannot be written.
    """

    def __init__(self, database: Path, name: str, space: Space, limit_bytes: int) -> None:
        self._database, self._space, self._limit_bytes = database, space, limit_bytes
        with _saying_what_is_wrong(database):
            self._study = optuna.create_study(
                study_name=name, storage=open_to_write(database), direction="maximize", load_if_exists=True
            )
            name_value(self._study)
            self._earlier_seconds = codec.from_plain(self._study.user_attrs.get(SECONDS_ATTRIBUTE, 0.0), Seconds)
            self._trials = _decode(self._study)
        self._opened = time.monotonic()

    @property
    def trials(self) -> list[Trial]:
        """Return all trials, in the order they ended."""
        return list(self._trials)

    @property
    def next_number(self) -> int:
        """Return the number of the next trial."""
        return max((trial.number for trial in self._trials), default=-1) + 1

    @property
    def seconds(self) -> float:
        """Wall time spent on the study, over all sessions."""
        return self._earlier_seconds + time.monotonic() - self._opened

    def add(self, trial: Trial) -> None:
        """Keep a trial that just ended, and the wall time the study has taken so far.

        Raises:
            SetupError: the disk is full, or the file cannot be written.
        """
        with saying_what_fails(self._database):
            self._study.add_trial(self._frozen(trial))
            self._study.set_user_attr(SECONDS_ATTRIBUTE, self.seconds)
        self._trials.append(trial)

    def set_attribute(self, name: str, value: object) -> None:
        """Keep something about the study beside its trials."""
        with saying_what_fails(self._database):
            self._study.set_user_attr(name, codec.to_plain(value))

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        frozen = freeze(
            trial,
            self._space,
            value=trial.measurement.samples_per_second,
            limit_bytes=self._limit_bytes,
            system_attrs=constraint_of(trial, self._limit_bytes),
        )
        frozen.user_attrs = {TRIAL_ATTRIBUTE: codec.to_plain(trial), **attributes_of(trial)}
        # It is kept when it has ended; Optuna believes that it began then, too.
        frozen.datetime_start = datetime.now() - length_of(trial)  # noqa: DTZ005  (Optuna's are naive)
        return frozen


def read_trials(database: Path, name: str) -> list[Trial]:
    """Return the trials of a study that is not being tuned here, in the order they ended.

    Raises:
        SetupError: the file cannot be read as a study, or is a link.
    """
    if not database.is_file():
        return []
    with _saying_what_is_wrong(database):
        storage = open_to_read(database)
        # A tuning that was ended before its first trial leaves a database without any study.
        if storage is None or not storage.get_all_studies():
            return []
        return _decode(optuna.load_study(study_name=name, storage=storage))


@contextmanager
def saying_what_fails(database: Path) -> Iterator[None]:
    """Turn a failure of the storage into a sentence with a next step.

    Raises:
        SetupError: the disk is full, the file cannot be written, or it is no study.
    """
    try:
        yield
    except (
        sqlalchemy.exc.SQLAlchemyError,
        optuna.exceptions.OptunaError,
        sqlite3.Error,
        CommandError,  # of the migrations that Optuna looks through
        RuntimeError,  # what Optuna raises for the database of another version
        ValueError,
        LookupError,
    ) as error:
        raise SetupError(_describe(database, error)) from error


@contextmanager
def _saying_what_is_wrong(database: Path) -> Iterator[None]:
    """Say so of what is read: a file that somebody else wrote may hold anything where Optuna expects its own.

    Raises:
        SetupError: it is no study, or is out of reach.
    """
    with saying_what_fails(database):
        try:
            yield
        except (TypeError, AttributeError, AssertionError, ArithmeticError) as error:
            raise SetupError(_describe(database, error)) from error


def _decode(study: optuna.Study) -> list[Trial]:
    return [codec.from_plain(trial.user_attrs[TRIAL_ATTRIBUTE], Trial) for trial in study.get_trials(deepcopy=False)]


def _describe(database: Path, error: BaseException) -> str:
    name = _sqlite_error_name(error)
    if name.startswith("SQLITE_FULL"):
        return (
            f"The disk is full at {database}. Trials so far are kept: free some space and run the same command again."
        )
    if name.startswith("SQLITE_IOERR"):
        return (
            f"{database} cannot be read or written ({name}). The disk may be full, broken or out of reach. Trials so "
            "far are kept: look at it, and run the same command again."
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"{database} is in use by another process. Wait for it, and run the same command again."
    # A reader is not let write: where Optuna wants to, the file lacks what a study has.
    is_read = name == "SQLITE_READONLY" and os.access(database, os.W_OK)
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) and not is_read:
        return f"{database} cannot be written. Make it writable, or work in another folder."
    reason = str(error) if isinstance(error, UnreadableError) else name or type(error).__name__
    return (
        f"{database} cannot be used as a study ({reason}). It was left as it is: restore it, or "
        "begin a new study with --study NAME."
    )


def _sqlite_error_name(error: BaseException) -> str:
    """SQLite's own name of the failure at the end of the chain, ``SQLITE_FULL`` for instance."""
    of_sqlite = (link for link in chain_of(error) if isinstance(link, sqlite3.Error))
    return getattr(next(of_sqlite, None), "sqlite_errorname", "")
