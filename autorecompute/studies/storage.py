"""The Optuna storage of a study, in its folder or where several workers reach it.

Whatever reads or writes a file raises ``SetupError`` where it is no study, or that fails.
"""

from __future__ import annotations

import os
import sqlite3
import time
import urllib.parse
import warnings
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy
import sqlalchemy.exc
from alembic.util import CommandError
from optuna.samplers import RandomSampler

from autorecompute import codec
from autorecompute.codec import UnreadableError
from autorecompute.errors import SetupError, UsageError, chain_of, first_line
from autorecompute.files import is_file
from autorecompute.measurement import Trial
from autorecompute.ranges import Seconds
from autorecompute.studies.frozen import TRIAL_ATTRIBUTE, freeze, violation
from autorecompute.units import GIB, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from autorecompute.plans import Space


VALUE = "samples/s"  # the name of what every trial is judged by

CONSTRAINTS = "constraints"
"""The only name under which optuna-dashboard 0.21 looks for constraints: that of Optuna before version 5, a list."""


def open_study(storage: optuna.storages.RDBStorage, name: str) -> optuna.Study:
    """Return the study of this name, made where there is none."""
    # The sampler is never asked; Optuna's own choice would read all trials to begin with.
    study = optuna.create_study(
        study_name=name, storage=storage, direction="maximize", load_if_exists=True, sampler=RandomSampler()
    )
    if study.metric_names is None:
        with quiet():
            study.set_metric_names([VALUE])
    return study


def quiet() -> AbstractContextManager[object]:
    """Keep Optuna from telling the user what of it is experimental."""
    return warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning)


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


BUSY_TIMEOUT_SECONDS = 30
JOURNAL = "-journal"
BESIDE = (JOURNAL, "-wal", "-shm")  # endings of the files that SQLite reads beside a database

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
    # While the study is tuned, it comes and goes.
    with suppress(FileNotFoundError), Path(f"{database}{JOURNAL}").open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(_NAMES_ANOTHER), 0))
        if file.read() == _NAMES_ANOTHER:
            raise UnreadableError(f"{database.name}{JOURNAL} names another file")


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

FAULTS: tuple[type[Exception], ...] = (
    optuna.exceptions.OptunaError,
    sqlalchemy.exc.SQLAlchemyError,
    sqlite3.Error,
    CommandError,  # of the migrations that Optuna looks through
    RuntimeError,  # what Optuna raises for the database of another version
    ValueError,
    LookupError,
)

WRONG = (TypeError, AttributeError, AssertionError, ArithmeticError)
"""Further errors of reading: a file that somebody else wrote may hold anything where Optuna expects its own."""


class TrialStore:
    """The trials of one study, in an SQLite file that is made where there is none."""

    def __init__(self, database: Path, name: str, space: Space, limit_bytes: int) -> None:
        self._database, self._space, self._limit_bytes = database, space, limit_bytes
        with saying_what_fails(database, *WRONG):
            _require_plain(database)
            if database.is_file():
                _has_tables(database)
            self._study = open_study(_open(database, {"uri": "true"}), name)
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
        """Return the wall time spent on the study, over all sessions."""
        return self._earlier_seconds + time.monotonic() - self._opened

    def add(self, trial: Trial) -> None:
        """Keep a trial that just ended, and the wall time the study has taken so far."""
        with saying_what_fails(self._database):
            self._study.add_trial(self._frozen(trial))
            self._study.set_user_attr(SECONDS_ATTRIBUTE, self.seconds)
        self._trials.append(trial)

    def keep_seconds(self, seconds: float) -> None:
        """Keep the wall time that was spent on the study elsewhere."""
        with saying_what_fails(self._database):
            self._study.set_user_attr(SECONDS_ATTRIBUTE, seconds)

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
        steps = trial.measurement.warmup_seconds + sum(trial.measurement.step_seconds)
        length = timedelta(seconds=steps + (trial.overhead_seconds or 0.0))
        frozen.datetime_start = datetime.now() - length  # noqa: DTZ005  (Optuna's are naive)
        return frozen


def read_trials(database: Path, name: str) -> list[Trial]:
    """Return the trials of a study that is not being tuned here, in the order they ended."""
    if not database.is_file():
        return []
    with saying_what_fails(database, *WRONG):
        _require_plain(database)
        if not _has_tables(database):
            return []
        # It is not changed, but for what a killed process had begun to write.
        storage = _open(database, {"uri": "true", "mode": "ro"})
        # A tuning that was ended before its first trial leaves a database without any study.
        if not storage.get_all_studies():
            return []
        return _decode(optuna.load_study(study_name=name, storage=storage))


@contextmanager
def saying_what_fails(database: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn a failure of the storage, or one of the others, into a sentence with a next step."""
    try:
        yield
    except FAULTS + others as error:
        raise SetupError(_describe(database, error)) from error


def _decode(study: optuna.Study) -> list[Trial]:
    return [codec.from_plain(trial.user_attrs[TRIAL_ATTRIBUTE], Trial) for trial in study.get_trials(deepcopy=False)]


def _describe(database: Path, error: BaseException) -> str:
    of_sqlite = (link for link in chain_of(error) if isinstance(link, sqlite3.Error))
    # SQLite's own name of the failure at the end of the chain, SQLITE_FULL for instance.
    name = getattr(next(of_sqlite, None), "sqlite_errorname", "")
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


KINDS = ("postgresql", "mysql", "mariadb", "sqlite")
DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}

SECRETS = ("password", "passwd", "sslpassword")  # options of a URL that only the driver is told
FORMS = "postgresql://USER@HOST/DATABASE, mysql+DRIVER://USER@HOST/DATABASE or sqlite:///PATH"
ENCODING = "In a password, write / as %2F, : as %3A, @ as %40 and so on, or leave it to PGPASSWORD or ~/.pgpass."


@dataclass(frozen=True, slots=True)
class StorageUrl:
    """Address of a shared study: a URL without any secret, and what only the driver is told, by its names for it."""

    address: sqlalchemy.URL
    secrets: dict[str, str] = field(repr=False)

    @property
    def display(self) -> str:
        """Return the URL for people, without driver and options."""
        bare = self.address.set(drivername=self.address.get_backend_name(), query={})
        return printable(bare.render_as_string(), "")

    def describe(self, error: BaseException) -> str:
        """Return a sentence on what is wrong with the storage, without any secret."""
        chain = chain_of(error)
        if any(isinstance(link, ImportError | sqlalchemy.exc.NoSuchModuleError) for link in chain):
            return (
                f"A storage at {self.address.drivername}:// needs a Python driver that is not installed. For "
                'PostgreSQL: pip install "autorecompute[postgresql]".'
            )
        of_driver = (link.orig for link in chain if isinstance(link, sqlalchemy.exc.DBAPIError) and link.orig)
        cause = next(of_driver, None)
        # The first line is the server's word, or the network's; what SQLAlchemy puts around it are statements.
        reason = type(chain[-1]).__name__ if cause is None else first_line(cause)
        for secret in self.secrets.values():
            reason = reason.replace(secret, "***")
        return f"The storage {self.display} cannot be used: {printable(reason, '')}."


def parse_storage(text: str, source: str = "--storage") -> StorageUrl:
    """Read where a shared study is kept; a ``UsageError`` does not repeat what was given: it may hold a password."""
    if not text:
        raise UsageError(f"{source} is empty. Give {FORMS}, or leave it away to tune alone.")
    if text.count("://") > 1:
        raise UsageError(f"{source} holds more than one URL. Give the one of the database alone.")
    if text.count("@") > 1:
        # Where the password ends is anybody's guess: a part of it would be taken for the host, and told.
        raise UsageError(f"{source} has more than one @. Write the one before the host as it is, and any other as %40.")
    try:
        url = sqlalchemy.make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise UsageError(f"{source} cannot be read. Give {FORMS}. {ENCODING}") from None
    url = url.set(drivername=DRIVERS.get(url.drivername, url.drivername))
    kind, database = url.get_backend_name(), url.database
    if kind not in KINDS or not database or database == ":memory:":
        raise UsageError(f"{source} knows {FORMS}, with the name of a database at its end. Give one of these.")
    if kind == "sqlite":
        database = str(Path(database).absolute())  # messages are to tell which file it is
        if os.path.lexists(database) and not is_file(Path(database)):
            raise UsageError(f"{printable(database, '')} of {source} is no file. Give the path of a database.")
    options = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    secrets = {name: options.pop(name) for name in SECRETS if name in options}
    if url.password:
        secrets["password"] = str(url.password)
    return StorageUrl(
        sqlalchemy.URL.create(url.drivername, url.username, None, url.host, url.port, database, options), secrets
    )
