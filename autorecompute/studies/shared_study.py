"""A study that several workers share: an Optuna study in a database, where a running trial is a claim.

The database numbers trials one after the other, so that of two claims on one config the lower number wins. Optuna's
heartbeat tells whether the worker of a running trial lives.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import optuna
import sqlalchemy
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import TrialState, create_trial

from autorecompute import codec
from autorecompute.codec import UnreadableError
from autorecompute.errors import SetupError, UsageError, chain_of
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
from autorecompute.studies.problem import Head
from autorecompute.studies.records import RaceRecord
from autorecompute.studies.storage import FAULTS, StorageUrl, attributes_of, constraint_of, open_study, quiet
from autorecompute.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.trial import FrozenTrial

    from autorecompute.studies.problem import Problem

HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 60

SESSION = "session"  # the attribute of each Optuna trial that names its worker
ANSWER = "answer"  # the attribute of one that stands for an answer: null until it is published

TUNED, SUBJECT = "tuned", ("problem", "sizes", "command")
"""The attribute of the first trial that says what the study is about, and the parts of a head that it has."""

WORKER_LOST = "the worker stopped while it measured this"

CONNECTION = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
"""Seconds, and milliseconds: how long a PostgreSQL that says nothing is waited for, unless the URL has other words."""

UNREACHABLE: tuple[type[Exception], ...] = (*FAULTS, ImportError, OSError)
"""A driver may be missing, too, and a network away."""

OPENINGS, PAUSE_SECONDS = 5, 0.5
"""Attempts to make the tables, and the time between: of workers that begin together, one makes them and others fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAnswer:
    """All that the one worker which confirmed has for the folders of the others."""

    result: Result
    race: RaceRecord | None = None
    rejections: tuple[Rejection, ...] = ()
    confirmed: tuple[Best, ...] = ()


class Claim(NamedTuple):
    """A running trial: its worker, and what it is if that dies; ``None`` for a claim on the answer."""

    session: str
    trial: Trial | None


class SharedStudy:
    """One worker's hold on a study in a storage that others reach as well.

    All but the URL is as of the last :meth:`refresh`, which every change of the study includes. Whatever reaches the
    storage raises ``SetupError`` where that cannot be used.

    Attributes:
        place: The storage in words.
        session: This worker.
        founding: The worker that began the study, which tells it from others of its name; ``None`` if it is new.
        head: Subject of the study, without its plans; ``None`` if it is new.
        trials: The trials that ended, those of dead workers as lost.
        running: The claims by their numbers.
        answer: The last answer that was published.
    """

    def __init__(self, url: StorageUrl, name: str) -> None:
        self.name, self.place, self._url = name, url.display, url
        self.session = uuid.uuid4().hex[:12]
        self._study, self._storage = self._open()
        self._held: dict[int, int] = {}
        """Optuna's ids of the running trials of this worker, by their numbers."""
        self._ended: dict[int, Trial | PublishedAnswer | None] = {}
        self._heart, self._is_over = threading.Thread(target=self._beat, daemon=True), threading.Event()
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
        """Read the storage, and give up what workers claimed whose heartbeat stopped."""
        with self._saying_what_fails(), quiet():
            fail_stale_trials(self._study)
            stored = self._study.get_trials(deepcopy=False)
        self.founding: str | None = None
        self.head: Head | None = None
        self.trials: list[Trial] = []
        self.running: dict[int, Claim] = {}
        self.answer: PublishedAnswer | None = None
        try:
            for frozen in stored:
                self._read(frozen)
        except UnreadableError:
            raise UsageError(
                f"The study '{self.name}' in {self.place} was not begun by autorecompute. Begin another one with "
                "--study NAME."
            ) from None

    def require(self, founding: str | None) -> None:
        """Check that this is the study of that :attr:`founding`; ``None`` is any."""
        if founding not in {None, self.founding}:
            raise UsageError(
                f"The folder of study '{self.name}' holds a study that is not the one in the storage {self.place}. "
                "Begin another one with --study NAME, or work in another folder."
            )

    def check(self, head: Head, *, is_limit_free: bool) -> Problem | None:
        """Return the study's problem, if it was begun; it is this one, but for a limit that nobody asked for."""
        self.refresh()
        if self.head is None:
            return None
        limit_bytes = (self.head if is_limit_free else head).problem.limit_bytes
        mine = replace(head, problem=replace(head.problem, limit_bytes=limit_bytes))
        if conflicts := mine.conflicts(self.head):
            raise UsageError(
                f"Study '{self.name}' in {self.place} holds another problem: here it is {'; '.join(conflicts)}. "
                "Begin another study with --study NAME."
            )
        return self.head.problem

    def join(self, head: Head, space: Space, *, is_limit_free: bool) -> Problem:
        """Begin the study where nobody did, by a claim on no recompute; return the problem that all agree on."""
        if self.check(head, is_limit_free=is_limit_free) is None:
            without_plans = replace(head.sizes, space=Space(plans=()))
            self.claim(Config(), "baseline", space, about=replace(head, sizes=without_plans))
        agreed = self.check(head, is_limit_free=is_limit_free)
        assert agreed is not None, "the study has a first trial"
        return agreed

    def claim(
        self, config: Config, reason: str, space: Space, *, most: int | None = None, about: Head | None = None
    ) -> int | None:
        """Claim a config; return its trial's number, or ``None`` where others have it or the last trial, or confirm."""
        self.refresh()
        for number, own in self._own(is_answer=False).items():
            if own is not None and own.config == config:
                return number  # the first claim of a study came with its beginning
        self.give_up()
        if self._is_taken(config, most):
            return None
        lost = Measurement(outcome=Outcome.LOST, message=WORKER_LOST)
        trial = Trial(number=0, config=config, description=space.describe(config), reason=reason, measurement=lost)
        number = self._run(
            {
                TRIAL_ATTRIBUTE: codec.to_plain(trial),
                "config": trial.description,
                "hash": config.hash,
                **({} if about is None else {TUNED: {part: codec.to_plain(getattr(about, part)) for part in SUBJECT}}),
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
            self._give_back({}, is_answer=True)
            return False
        return True

    def end(self, trial: Trial, limit_bytes: int) -> bool:
        """End the claimed trial with what was measured; tell whether it was not given up for dead meanwhile."""
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
        self._give_back({TRIAL_ATTRIBUTE: None}, is_answer=False)

    def publish(self, answer: PublishedAnswer) -> None:
        """End the claim on the answer with one for all, unless it was given up for dead meanwhile."""
        self._give_back({ANSWER: codec.to_plain(answer)}, is_answer=True, state=TrialState.PRUNED)
        self.refresh()

    def close(self) -> None:
        """Give up all claims and go, as far as the storage lets it."""
        self._is_over.set()
        if self._heart.is_alive():
            self._heart.join(1.0)  # a beat that is stuck in a storage that is away is not waited for
        with suppress(SetupError):
            self.give_up()
            self._give_back({}, is_answer=True)
        self._storage.engine.dispose()

    def _open(self, openings: int = OPENINGS) -> tuple[optuna.Study, RDBStorage]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        address = self._url.address
        waits = CONNECTION if address.get_backend_name() == "postgresql" else {}
        asked = {name: value for name, value in waits.items() if name not in address.query}
        try:
            with quiet():
                storage = RDBStorage(
                    address.render_as_string(hide_password=False),
                    engine_kwargs={"pool_pre_ping": True, "connect_args": {**asked, **self._url.secrets}},
                    heartbeat_interval=HEARTBEAT_SECONDS,
                    grace_period=GRACE_SECONDS,
                )
            study = open_study(storage, self.name)
        except UNREACHABLE as error:
            if openings > 1 and _is_collision(error):
                pause(PAUSE_SECONDS)
                return self._open(openings - 1)
            raise SetupError(f"{self._url.describe(error)} Mend it, and run the same command again.") from None
        return study, storage

    @contextmanager
    def _saying_what_fails(self) -> Iterator[None]:
        try:
            yield
        except UNREACHABLE as error:
            raise SetupError(
                f"{self._url.describe(error)} Trials that ended are kept there: run the same command again to go on "
                "once it can be used."
            ) from None

    def _read(self, frozen: FrozenTrial) -> None:
        attributes, number = frozen.user_attrs, frozen.number
        session = codec.from_plain(attributes.get(SESSION), str)
        if number == 0:
            about = codec.from_plain(attributes.get(TUNED), dict[str, Any])
            origin = {"study": self.name, "created": "", "autorecompute": ""}
            self.founding, self.head = session, codec.from_plain(about | origin, Head)
        content = self._ended[number] if number in self._ended else _content_of(frozen)
        if not frozen.state.is_finished():
            if content is not None or ANSWER in attributes:
                self.running[number] = Claim(session, content if isinstance(content, Trial) else None)
            return
        self._ended[number] = content  # nothing changes any more
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
        claims = [claim for number, claim in self.running.items() if before is None or number < before]
        if any(claim.trial is None and claim.session != self.session for claim in claims):
            return True
        taken = [trial for trial in self.trials if trial.measurement.outcome is not Outcome.LOST]
        taken += [claim.trial for claim in claims if claim.trial is not None]
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
            study_id = self._storage.get_study_id_from_name(self.name)
            self._held[number] = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
            self._storage.record_heartbeat(self._held[number])
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

    def _give_back(self, attributes: dict[str, Any], *, is_answer: bool, state: TrialState = TrialState.FAIL) -> None:
        """End the claims of this worker of one kind."""
        for number in self._own(is_answer=is_answer):
            with self._ending(number, state) as stored:
                for name, plain in attributes.items():
                    stored.set_user_attr(name, plain)

    def _beat(self) -> None:
        while not self._is_over.wait(HEARTBEAT_SECONDS):
            for trial_id in tuple(self._held.values()):
                with suppress(*UNREACHABLE):  # the thread that works with the storage tells what is wrong with it
                    self._storage.record_heartbeat(trial_id)


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
