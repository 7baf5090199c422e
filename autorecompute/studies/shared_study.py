"""A study that several workers share: an Optuna study in a database, where a running trial is a claim.

The database numbers trials one after the other, so that of two claims on one config the lower number wins. Optuna's
heartbeat tells whether the worker of a running trial lives.
"""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy
from alembic.util import CommandError
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import TrialState, create_trial

from autorecompute import codec
from autorecompute.errors import SetupError, UsageError, chain_of, first_line
from autorecompute.files import is_file
from autorecompute.jsontext import UnreadableError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config, Space
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.frozen import (
    CONSTRAINT,
    TRIAL_ATTRIBUTE,
    distributions_of,
    parameters_of,
    state_of,
    violation,
)
from autorecompute.studies.records import RaceRecord
from autorecompute.studies.storage import attributes_of, constraint_of, name_value
from autorecompute.studies.tuned import Tuned
from autorecompute.units import printable
from autorecompute.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optuna.trial import FrozenTrial

    from autorecompute.studies.problem import Problem

HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 60

SESSION = "session"
"""The attribute of each Optuna trial that names its worker."""

ANSWER = "answer"
"""The attribute of one that stands for an answer: null until it is published."""

TUNED = "tuned"
"""The attribute of the first trial that says what the study is about."""

WORKER_LOST = "the worker stopped while it measured this"

KINDS = ("postgresql", "mysql", "mariadb", "sqlite")
DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}

CONNECTION = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
"""Seconds, and milliseconds: how long a PostgreSQL that says nothing is waited for, unless the URL has other words."""

SECRETS = ("password", "passwd", "sslpassword")
"""Options of a URL that only the driver is told."""

FORMS = "postgresql://USER@HOST/DATABASE, mysql+DRIVER://USER@HOST/DATABASE or sqlite:///PATH"
ENCODING = "In a password, write / as %2F, : as %3A, @ as %40 and so on, or leave it to PGPASSWORD or ~/.pgpass."

OPENINGS, PAUSE_SECONDS = 5, 0.5
"""Attempts to make the tables, and the time between: of workers that begin together, one makes them and others fail."""

FAULTS = (
    optuna.exceptions.OptunaError,
    sqlalchemy.exc.SQLAlchemyError,
    CommandError,  # of the migrations that Optuna looks through
    ImportError,  # no driver
    OSError,
    RuntimeError,  # a database of another version of Optuna
    ValueError,
    KeyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageUrl:
    """Address of a shared study.

    Attributes:
        address: The URL for SQLAlchemy, without any secret.
        display: The same for people, without options.
        secrets: What only the driver is told, by its names for it.
    """

    address: sqlalchemy.URL
    display: str
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

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
    """Read where a shared study is kept.

    Raises:
        UsageError: it is none of the forms there are; what was given is not repeated, for it may hold a password.
    """
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
    bare = sqlalchemy.URL.create(kind, username=url.username, host=url.host, port=url.port, database=database)
    return StorageUrl(
        address=bare.set(drivername=url.drivername, query=options),
        display=printable(bare.render_as_string(), ""),
        secrets=secrets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAnswer:
    """All that the one worker which confirmed has for the folders of the others.

    Attributes:
        result: The answer.
        race: The finalists' rounds; ``None`` where there were none.
        rejections: Who cannot be the answer.
        confirmed: Who was confirmed.
    """

    result: Result
    race: RaceRecord | None = None
    rejections: tuple[Rejection, ...] = ()
    confirmed: tuple[Best, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A running trial.

    Attributes:
        session: Its worker.
        trial: What it is if its worker dies; ``None`` for a claim on the answer.
    """

    session: str
    trial: Trial | None


class SharedStudy:
    """One worker's hold on a study in a storage that others reach as well.

    All but the URL is as of the last :meth:`refresh`, which every change of the study includes.

    Args:
        url: The storage.
        name: Name of the study.

    Attributes:
        place: The storage in words.
        session: This worker.
        founding: The worker that began the study, which tells it from others of its name; ``None`` if it is new.
        tuned: What the study is about, without its plans; ``None`` if it is new.
        trials: The trials that ended, those of dead workers as lost.
        running: The claims by their numbers.
        answer: The last answer that was published.

    Raises:
        SetupError: the storage cannot be used, or its driver is not installed.
        UsageError: the study is not one of autorecompute.
    """

    def __init__(self, url: StorageUrl, name: str) -> None:
        self.name, self.place, self._url = name, url.display, url
        self.session = uuid.uuid4().hex[:12]
        self._study, self._storage = self._open()
        with self._saying_what_fails():
            self._study_id = self._storage.get_study_id_from_name(name)
        self._held: dict[int, int] = {}
        """Optuna's id of each running trial of this worker, by its number."""
        self._ended: dict[int, Trial | PublishedAnswer | None] = {}
        self._heart, self._is_over = threading.Thread(target=self._beat, daemon=True), threading.Event()
        self.founding: str | None = None
        self.tuned: Tuned | None = None
        self.trials: list[Trial] = []
        self.running: dict[int, Claim] = {}
        self.answer: PublishedAnswer | None = None
        self.refresh()

    @property
    def others(self) -> dict[int, Claim]:
        """Return the claims of other workers, by their numbers."""
        return {number: claim for number, claim in self.running.items() if claim.session != self.session}

    @property
    def is_confirming(self) -> bool:
        """Tell whether this worker holds the claim on the answer."""
        return bool(self._own(is_answer=True))

    def refresh(self) -> None:
        """Read the storage, and give up what workers claimed whose heartbeat stopped.

        Raises:
            SetupError: the storage cannot be used.
            UsageError: it has a study of this name that was not made by autorecompute.
        """
        with self._saying_what_fails(), _quiet():
            fail_stale_trials(self._study)
            stored = self._study.get_trials(deepcopy=False)
        try:
            self._read(stored)
        except UnreadableError:
            raise UsageError(
                f"The study '{self.name}' in {self.place} was not begun by autorecompute. Begin another one with "
                "--study NAME."
            ) from None

    def require(self, founding: str | None) -> None:
        """Check that this is the study of that :attr:`founding`; ``None`` is any.

        Raises:
            UsageError: it is another one.
        """
        if founding not in {None, self.founding}:
            raise UsageError(
                f"The folder of study '{self.name}' holds a study that is not the one in the storage {self.place}. "
                "Begin another one with --study NAME, or work in another folder."
            )

    def check(self, tuned: Tuned, *, is_limit_free: bool) -> Problem | None:
        """Return the study's problem, if it was begun; it is this one, but for a limit that nobody asked for.

        Raises:
            UsageError: it is another one.
        """
        self.refresh()
        if self.tuned is None:
            return None
        limit_bytes = (self.tuned if is_limit_free else tuned).problem.limit_bytes
        mine = replace(tuned, problem=replace(tuned.problem, limit_bytes=limit_bytes))
        if conflicts := mine.conflicts(self.tuned):
            raise UsageError(
                f"Study '{self.name}' in {self.place} holds another problem: here it is {'; '.join(conflicts)}. "
                "Begin another study with --study NAME."
            )
        return self.tuned.problem

    def join(self, tuned: Tuned, space: Space, *, is_limit_free: bool) -> Problem:
        """Begin the study where nobody did, by a claim on no recompute; return the problem that all agree on.

        Raises:
            UsageError: the study is about another problem.
        """
        if self.check(tuned, is_limit_free=is_limit_free) is None:
            about = replace(tuned, sizes=replace(tuned.sizes, space=Space(plans=())))
            self.claim(Config(), "baseline", space, about=about)
        agreed = self.check(tuned, is_limit_free=is_limit_free)
        assert agreed is not None, "the study has a first trial"
        return agreed

    def claim(
        self, config: Config, reason: str, space: Space, *, most: int | None = None, about: Tuned | None = None
    ) -> int | None:
        """Claim a config for this worker.

        Returns:
            The number of its trial; ``None`` where another worker has the config or the last trial, or confirms.
        """
        self.refresh()
        for number, trial in self._own(is_answer=False).items():
            if trial is not None and trial.config == config:
                return number  # the first claim of a study came with its beginning
        self.give_up()
        if self._is_taken(config, most):
            return None
        trial = Trial(
            number=0,
            config=config,
            description=space.describe(config),
            reason=reason,
            measurement=Measurement(outcome=Outcome.LOST, message=WORKER_LOST),
        )
        number = self._run(
            {
                TRIAL_ATTRIBUTE: codec.to_plain(trial),
                "config": trial.description,
                "hash": config.hash,
                **({} if about is None else {TUNED: codec.to_plain(about)}),
            },
            params=parameters_of(config, space),
            distributions=distributions_of(space),
        )
        if self._is_taken(config, most, before=number):
            self.give_up()
            return None
        return number

    def claim_answer(self) -> bool:
        """Claim the answer, unless another worker measures or confirms; tell whether it is this worker's to make."""
        if self.others:
            return False
        number = self._run({ANSWER: None})
        if any(other < number for other in self.others):
            with self._ending(number, TrialState.FAIL):
                return False
        return True

    def end(self, trial: Trial, limit_bytes: int) -> bool:
        """End the claimed trial with what was measured; tell whether it was not given up for dead meanwhile.

        Raises:
            SetupError: the storage cannot be used.
        """
        state, value = state_of(trial.measurement.outcome), trial.measurement.samples_per_second
        with self._ending(trial.number, state, value if state is TrialState.COMPLETE else None) as stored:
            stored.set_constraint(CONSTRAINT, violation(trial.measurement, limit_bytes))
            for name, plain in constraint_of(trial, limit_bytes).items():
                self._storage.set_trial_system_attr(self._held[trial.number], name, plain)
            for name, plain in {TRIAL_ATTRIBUTE: codec.to_plain(trial), **attributes_of(trial)}.items():
                stored.set_user_attr(name, plain)
        self.refresh()
        return any(kept.number == trial.number and kept.measurement.message != WORKER_LOST for kept in self.trials)

    def give_up(self) -> None:
        """End the claim on a config without a measurement."""
        for number in self._own(is_answer=False):
            with self._ending(number, TrialState.FAIL) as stored:
                stored.set_user_attr(TRIAL_ATTRIBUTE, None)

    def publish(self, answer: PublishedAnswer) -> None:
        """End the claim on the answer with one for all, unless it was given up for dead meanwhile."""
        for number in self._own(is_answer=True):
            with self._ending(number, TrialState.PRUNED) as stored:
                stored.set_user_attr(ANSWER, codec.to_plain(answer))
        self.refresh()

    def close(self) -> None:
        """Give up all claims and go, as far as the storage lets it."""
        self._is_over.set()
        if self._heart.is_alive():
            self._heart.join(1.0)  # a beat that is stuck in a storage that is away is not waited for
        with suppress(SetupError):
            self.give_up()
            for number in self._own(is_answer=True):
                with self._ending(number, TrialState.FAIL):
                    pass
        self._storage.engine.dispose()

    def _open(self) -> tuple[optuna.Study, RDBStorage]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        url = self._url
        waits = CONNECTION if url.address.get_backend_name() == "postgresql" else {}
        asked = {name: value for name, value in waits.items() if name not in url.address.query}
        for attempt in range(1, OPENINGS + 1):
            try:
                with _quiet():
                    storage = RDBStorage(
                        url.address.render_as_string(hide_password=False),
                        engine_kwargs={"pool_pre_ping": True, "connect_args": {**asked, **url.secrets}},
                        heartbeat_interval=HEARTBEAT_SECONDS,
                        grace_period=GRACE_SECONDS,
                    )
                # The sampler is never asked; Optuna's own choice would read all trials to begin with.
                study = optuna.create_study(
                    study_name=self.name,
                    storage=storage,
                    direction="maximize",
                    load_if_exists=True,
                    sampler=optuna.samplers.RandomSampler(),
                )
                name_value(study)
            except FAULTS as error:
                if _is_collision(error) and attempt < OPENINGS:
                    pause(PAUSE_SECONDS)
                    continue
                raise SetupError(f"{url.describe(error)} Mend it, and run the same command again.") from None
            return study, storage
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _saying_what_fails(self) -> Iterator[None]:
        try:
            yield
        except FAULTS as error:
            raise SetupError(
                f"{self._url.describe(error)} Trials that ended are kept there: run the same command again to go on "
                "once it can be used."
            ) from None

    def _read(self, stored: Sequence[FrozenTrial]) -> None:
        self.founding, self.tuned, self.trials, self.running, self.answer = None, None, [], {}, None
        for frozen in stored:
            attributes, number = frozen.user_attrs, frozen.number
            session = codec.from_plain(attributes.get(SESSION), str)
            if number == 0:
                self.founding, self.tuned = session, codec.from_plain(attributes.get(TUNED), Tuned)
            if not frozen.state.is_finished():
                content = _content_of(frozen)
                trial = content if isinstance(content, Trial) else None
                if trial is not None or ANSWER in attributes:
                    self.running[number] = Claim(session=session, trial=trial)
                continue
            if number not in self._ended:  # nothing changes any more
                self._ended[number] = _content_of(frozen)
            content = self._ended[number]
            if isinstance(content, Trial):
                self.trials.append(content)
            elif content is not None:
                self.answer = content

    def _own(self, *, is_answer: bool) -> dict[int, Trial | None]:
        """Return the claims of this worker of one kind."""
        claims = {number: claim.trial for number, claim in self.running.items() if number in self._held}
        return {number: trial for number, trial in claims.items() if (trial is None) == is_answer}

    def _is_taken(self, config: Config, most: int | None, before: int | None = None) -> bool:
        """Tell whether another worker came first: with the config, the last trial or the answer."""
        claims = {number: claim for number, claim in self.running.items() if before is None or number < before}
        if any(claim.trial is None and claim.session != self.session for claim in claims.values()):
            return True
        taken = [trial for trial in self.trials if trial.measurement.outcome is not Outcome.LOST]
        taken += [claim.trial for claim in claims.values() if claim.trial is not None]
        return (most is not None and len(taken) >= most) or any(trial.config == config for trial in taken)

    def _run(self, attributes: dict[str, Any], **parameters: Any) -> int:
        """Begin a trial of this worker, and return its number."""
        attributes = {SESSION: self.session, **attributes}
        # Optuna's ask() sets parameters one by one, and another worker would see a claim on nothing meanwhile.
        frozen = create_trial(state=TrialState.RUNNING, user_attrs=attributes, **parameters)
        with self._saying_what_fails():
            self._study.add_trial(frozen)
        self.refresh()
        number = max(number for number, claim in self.running.items() if claim.session == self.session)
        with self._saying_what_fails():
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
            self._storage.record_heartbeat(trial_id)
        self._held[number] = trial_id
        if self._heart.ident is None:
            self._heart.start()
        return number

    @contextmanager
    def _ending(self, number: int, state: TrialState, value: float | None = None) -> Iterator[optuna.Trial]:
        """End a trial of this worker after the block, unless another worker has given it up for dead."""
        with self._saying_what_fails(), suppress(UpdateFinishedTrialError):
            yield optuna.Trial(self._study, self._held[number])
            self._study.tell(number, value, state, skip_if_finished=True)
        self._held.pop(number)

    def _beat(self) -> None:
        while not self._is_over.wait(HEARTBEAT_SECONDS):
            for trial_id in tuple(self._held.values()):
                with suppress(*FAULTS):  # the thread that works with the storage tells what is wrong with it
                    self._storage.record_heartbeat(trial_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from telling the user that its heartbeat is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _content_of(frozen: FrozenTrial) -> Trial | PublishedAnswer | None:
    """Return the content of a stored trial; ``None`` for a claim that was given up."""
    if (plain := frozen.user_attrs.get(ANSWER)) is not None:
        return codec.from_plain(plain, PublishedAnswer)
    if (plain := frozen.user_attrs.get(TRIAL_ATTRIBUTE)) is not None:
        return replace(codec.from_plain(plain, Trial), number=frozen.number)
    return None


def _is_collision(error: BaseException) -> bool:
    """Tell whether somebody else made the same tables at the same moment."""
    kinds = sqlalchemy.exc.IntegrityError | sqlalchemy.exc.ProgrammingError
    return "already exists" in str(error) or any(isinstance(link, kinds) for link in chain_of(error))
