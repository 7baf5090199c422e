"""Opens Optuna's storages for several workers, and waits where one is away for a while."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import TYPE_CHECKING, TypeVar

import optuna
import sqlalchemy
from optuna.storages import JournalStorage, RDBStorage

from autorecompute.errors import SetupError, UsageError, chain_of
from autorecompute.studies.dashboard import name_value
from autorecompute.studies.sharing.journal import open_journal
from autorecompute.waiting import left_seconds, pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.studies.sharing.urls import StorageUrl

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""A storage may be away for so long, a restart of its server for instance, before the tuning gives up."""

PAUSE_SECONDS = 1.0
"""Between two tries."""

CONNECTION = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5}
"""Seconds, and milliseconds for the second: a connection that nobody closed and that leads nowhere is given up before
others take a worker for dead."""

SERVER_LIMITS = {"statement_timeout": "20s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}
"""What the server ends by itself: a worker that stopped in the middle of a write would hold up all others, who cannot
even be interrupted while they wait; the last is shorter than what others take a worker for dead after."""

OPENINGS = 5
"""So often tables are made: of workers that begin together one makes them, and the others fail at that."""

FAULTS = (
    optuna.exceptions.OptunaError,
    sqlalchemy.exc.SQLAlchemyError,
    OSError,
    RuntimeError,  # a lock of the journal that was lost, or the database of another version of Optuna
    ValueError,
    KeyError,
)


def open_study(
    url: StorageUrl, name: str, *, may_begin: bool = True
) -> tuple[optuna.Study, JournalStorage | RDBStorage]:
    """The study of that name in a storage, begun where there is none, and the storage to write trials to.

    Raises:
        SetupError: the storage cannot be used, or its driver is not installed.
        UsageError: it has no such study, and none may be begun.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.journal is None and importlib.util.find_spec("psycopg") is None:
        raise SetupError('PostgreSQL needs its driver. Install: pip install "autorecompute[postgresql]"')
    for attempt in range(1, OPENINGS + 1):
        try:
            storage = _open(url)
            if not may_begin and all(known.study_name != name for known in storage.get_all_studies()):
                raise not_the_one(url, name)
            # The sampler is never asked; Optuna's own choice would read all trials to begin with.
            study = optuna.create_study(
                study_name=name,
                storage=storage,
                direction="maximize",
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(),
            )
            name_value(study)
        except FAULTS as error:
            if is_collision(error) and attempt < OPENINGS:
                pause(PAUSE_SECONDS)
                continue
            raise SetupError(f"{describe(url, error)} Mend it, and run the same command again.") from None
        return study, storage
    raise AssertionError("the last attempt returns or raises")


def not_the_one(url: StorageUrl, name: str) -> UsageError:
    """Says that a folder belongs to another study than a storage has."""
    return UsageError(
        f"The folder of study '{name}' holds a study that is not the one in the storage {url.display}. Begin another "
        "one with --study NAME, or work in another folder."
    )


class Patience:
    """Asks a storage again while it is away.

    What is asked must bear being asked twice: nobody knows whether what was being written when a connection broke was
    written.

    Args:
        url: The storage.
        note: Told once each time that it goes away, and when it is back.
    """

    def __init__(self, url: StorageUrl, note: Callable[[str], None]) -> None:
        self._url, self._note = url, note

    def __call__(self, ask: Callable[[], T], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """What is asked for.

        Raises:
            SetupError: the storage stays away, or does not work as it should.
        """
        first: float | None = None
        # What ends the command asks once more, and waits no longer.
        patience_seconds = min(patience_seconds, left_seconds())
        while True:
            try:
                answer = ask()
            except FAULTS as error:
                now = time.monotonic()
                if first is None and is_away(error) and patience_seconds and left_seconds():
                    self._note(f"{describe(self._url, error)} Trying again for {patience_seconds:.0f} s")
                first = now if first is None else first
                if not is_away(error) or now - first >= patience_seconds:
                    raise SetupError(
                        f"{describe(self._url, error)} Trials that ended are kept there: run the same command again "
                        "to go on once it can be used."
                    ) from None
            else:
                if first is not None and patience_seconds:
                    self._note(f"The storage {self._url.display} is back")
                return answer
            pause(PAUSE_SECONDS)


def describe(url: StorageUrl, error: BaseException) -> str:
    """A sentence on what is wrong with the storage, without any secret."""
    cause = _cause(error)
    if isinstance(cause, OSError):
        reason = cause.strerror or type(cause).__name__
    elif _is_of_driver(cause):
        # The first line is the server's word, or the network's; what SQLAlchemy puts around it are statements.
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    elif url.journal is not None and isinstance(cause, ValueError):
        reason = "it is no journal of Optuna's"
    else:
        reason = type(cause).__name__
    return url.hide(f"The storage {url.display} cannot be used: {reason.rstrip('.')}.")


def is_away(error: BaseException) -> bool:
    """Whether the storage may be back in a while."""
    chain = chain_of(error)
    if any(isinstance(link, OSError) for link in chain) or "did not possess lock" in str(error):
        return True
    if any(getattr(link, "connection_invalidated", False) for link in chain):
        return True
    return any(isinstance(link, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError) for link in chain)


def is_collision(error: BaseException) -> bool:
    """Whether somebody else made the same tables at the same moment."""
    kinds = sqlalchemy.exc.IntegrityError | sqlalchemy.exc.ProgrammingError
    return any(isinstance(link, kinds) for link in chain_of(error))


def _open(url: StorageUrl) -> JournalStorage | RDBStorage:
    if url.journal is not None:
        return open_journal(url.journal)
    asked = sqlalchemy.make_url(url.database).query
    wanted = CONNECTION | {"options": _server_options()}
    connection = {name: value for name, value in wanted.items() if name not in asked}
    engine = {"pool_pre_ping": True, "connect_args": {**connection, **url.secrets}}
    return RDBStorage(url.database, engine_kwargs=engine)


def _server_options() -> str:
    limits = (f"-c {name}={value}" for name, value in SERVER_LIMITS.items())
    # Options of a connection replace those of the environment; of two for one setting the later one counts.
    return " ".join([*limits, os.environ.get("PGOPTIONS", "")])


def _cause(error: BaseException) -> BaseException:
    chain = chain_of(error)
    return next((link for link in chain if _is_of_driver(link) or isinstance(link, OSError)), chain[-1])


def _is_of_driver(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "psycopg"
