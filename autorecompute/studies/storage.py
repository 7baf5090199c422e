"""The trials of a study, as an Optuna study in SQLite: each one is on disk the moment it ends."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import optuna
import sqlalchemy.exc
from alembic.util import CommandError

from autorecompute import codec
from autorecompute.errors import SetupError, chain_of
from autorecompute.jsontext import UnreadableError
from autorecompute.measurement import Trial
from autorecompute.ranges import Seconds
from autorecompute.studies import dashboard
from autorecompute.studies.database import open_to_read, open_to_write
from autorecompute.studies.frozen import TRIAL_ATTRIBUTE, freeze

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autorecompute.plans import Space

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
            dashboard.name_value(self._study)
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
            system_attrs=dashboard.constraint_of(trial, self._limit_bytes),
        )
        frozen.user_attrs = {TRIAL_ATTRIBUTE: codec.to_plain(trial), **dashboard.attributes_of(trial)}
        # It is kept when it has ended; Optuna believes that it began then, too.
        frozen.datetime_start = datetime.now() - dashboard.length_of(trial)  # noqa: DTZ005  (Optuna's are naive)
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
