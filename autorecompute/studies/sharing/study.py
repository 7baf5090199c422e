"""A study that several workers share: who measures what, what came of it, and the answer."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState

from autorecompute import codec
from autorecompute.errors import SetupError, UsageError
from autorecompute.jsontext import UnreadableError
from autorecompute.plans import Config, Space
from autorecompute.studies import dashboard
from autorecompute.studies.frozen import CONSTRAINT, TRIAL_ATTRIBUTE, state_of, violation
from autorecompute.studies.sharing.claims import CLAIM, GIVEN_UP, Claim, View, frozen_claim, view
from autorecompute.studies.sharing.messages import PublishedAnswer, Stage
from autorecompute.studies.sharing.opening import PATIENCE_SECONDS, Patience, not_the_one, open_study
from autorecompute.studies.sharing.pulse import PHASE, Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import Trial
    from autorecompute.studies.problem import Problem
    from autorecompute.studies.sharing.urls import StorageUrl
    from autorecompute.studies.tuned import Tuned

_NO_NUMBER = 2**31
"""Above the number of any trial."""

ANSWER = "answer"
PARTS = "problem"


class SharedStudy:
    """One worker's hold on a study in a storage that others reach as well.

    Args:
        url: The storage.
        name: Name of the study.
        note: Told what a person should know.
        founding: Which study (:attr:`founding`) it has to be; none is then begun. ``None`` for any, or a new one.

    Raises:
        SetupError: the storage cannot be used.
        UsageError: the study is another one.
    """

    def __init__(
        self,
        url: StorageUrl,
        name: str,
        note: Callable[[str], None],
        *,
        founding: str | None = None,
    ) -> None:
        self.name, self._url, self._note = name, url, note
        self.place = url.display
        self.session = uuid.uuid4().hex[:12]
        self._study, self._storage = open_study(url, name, may_begin=founding is None)
        self._patiently = Patience(url, note)
        self._study_id = self._patiently(lambda: self._storage.get_study_id_from_name(name))
        self._pulse = Pulse(self.session, self._study.set_user_attr, lambda: self._study.user_attrs)
        self._held: int | None = None
        self.view = View(tuned=None, trials=(), running={})
        self.phases: dict[str, Stage] = {}
        self.answer: PublishedAnswer | None = None
        """What a worker has left, as of the last refresh."""
        if founding is not None:
            self.require(founding)

    def refresh(self) -> View:
        """Reads the storage: trials of the dead are given back, and own ones that nobody knows of.

        Raises:
            UsageError: the storage has a study of this name that was not made here.
        """
        try:
            self.view = self._patiently(self._read)
        except SetupError as error:
            if isinstance(error.__context__, UnreadableError):
                raise self._not_ours() from None
            raise
        return self.view

    @property
    def others(self) -> dict[str, Stage]:
        """The other workers that are alive, as of the last refresh, and what each is at."""
        return {session: phase for session, phase in self.phases.items() if session != self.session}

    @property
    def seen(self) -> int:
        """How many of the others have given a sign of life since this worker first looked."""
        return sum(self._pulse.has_beaten(session) for session in self.others)

    def check(self, tuned: Tuned, *, is_limit_free: bool) -> Problem | None:
        """The problem of the study, if it was begun; it is this one, but perhaps for a limit that nobody asked for.

        Raises:
            UsageError: it is another one.
        """
        theirs = self.refresh().tuned
        if theirs is None:
            return None
        limit_bytes = theirs.problem.limit_bytes if is_limit_free else tuned.problem.limit_bytes
        mine = replace(tuned, problem=replace(tuned.problem, limit_bytes=limit_bytes))
        if conflicts := mine.conflicts(theirs):
            raise UsageError(
                f"Study '{self.name}' in {self._url.display} holds another problem: here it is "
                f"{'; '.join(conflicts)}. Begin another study with --study NAME."
            )
        return theirs.problem

    def join(self, tuned: Tuned, space: Space, *, is_limit_free: bool) -> Problem:
        """Comes alive among the workers, and begins the study where nobody did; the problem that all agree on.

        Whoever has the first trial decides, which is a claim on the run without recompute.

        Raises:
            UsageError: the study is about another problem.
        """
        # Whoever is at something has beaten: if it is gone by then, the others notice.
        self._patiently(self._pulse.start)
        self.enter(Stage.SEARCHING)
        if self.check(tuned, is_limit_free=is_limit_free) is None:
            founding = self.new_claim(Config(), space.describe(Config()), "baseline")
            self._claim(founding, space, replace(tuned, sizes=replace(tuned.sizes, space=Space(plans=()))))
            self._patiently(lambda: self._study.set_user_attr(PARTS, tuned.problem.parts))
        agreed = self.check(tuned, is_limit_free=is_limit_free)
        assert agreed is not None, "the study has a first trial"
        return agreed

    def new_claim(self, config: Config, description: str, reason: str) -> Claim:
        """A claim of this worker, for :meth:`claim`."""
        return Claim(
            session=self.session, token=uuid.uuid4().hex, config=config, description=description, reason=reason
        )

    def claim(self, claim: Claim, space: Space, most: int = _NO_NUMBER) -> int | None:
        """Claims a config for this worker.

        Args:
            claim: What it wants to measure.
            space: The plans.
            most: So many trials the study may have.

        Returns:
            The number of its trial; ``None`` where somebody else was first, with this config or with the last trial.
        """
        # The first claim of a study came with its beginning.
        held = self.refresh().running.get(self._held) if self._held is not None else None
        if held is not None and held.config == claim.config:
            return self._held
        self.give_up()
        if self.view.holder_of(claim.config, before=_NO_NUMBER) is not None:
            return None
        return self._claim(claim, space, None, most)

    def end(self, trial: Trial, limit_bytes: int) -> bool:
        """Ends the claimed trial with what was measured; ``False`` where it had been given back meanwhile.

        Raises:
            SetupError: the storage stays away.
        """
        is_kept = self._patiently(lambda: self._end(trial, limit_bytes))
        self._held = None
        self.refresh()
        return is_kept

    def give_up(self, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Ends the claimed trial without a measurement."""
        if (number := self._held) is not None:
            self._held = None
            self._patiently(lambda: self._give_up(number), patience_seconds=patience_seconds)

    def enter(self, phase: Stage) -> None:
        """Tells the others what this worker is at from now on."""
        self._patiently(lambda: self._study.set_user_attr(f"{PHASE}{self.session}", str(phase)))
        self.phases[self.session] = phase

    def leave(self) -> None:
        """Gives back what is claimed and goes, as far as the storage lets it."""
        self._pulse.stop()
        with suppress(SetupError):
            self.give_up(patience_seconds=0.0)
            if self.session in self.phases:
                name = f"{PHASE}{self.session}"
                self._patiently(lambda: self._study.set_user_attr(name, str(Stage.LEFT)), patience_seconds=0.0)

    def publish(self, answer: PublishedAnswer) -> None:
        """Leaves the answer for the others."""
        plain = codec.to_plain(answer)
        self._patiently(lambda: self._study.set_user_attr(ANSWER, plain))

    @property
    def founding(self) -> str | None:
        """What tells this study from one of the same name in another storage; ``None`` where nobody has begun it."""
        self.refresh()
        first = self._patiently(lambda: self._study.get_trials(deepcopy=False)[:1])
        return codec.from_plain(first[0].user_attrs[CLAIM], Claim).token if first else None

    def require(self, founding: str) -> None:
        """Checks that this is the study of that :attr:`founding`.

        Raises:
            UsageError: it is another one.
        """
        if self.founding != founding:
            raise not_the_one(self._url, self.name)

    def _claim(self, claim: Claim, space: Space, tuned: Tuned | None, most: int = _NO_NUMBER) -> int | None:
        frozen = frozen_claim(claim, space, tuned)

        def once() -> int:
            # Whoever took this worker for dead just now has given back what it had made.
            while (number := self._find(claim)) is None:
                self._storage.create_new_trial(self._study_id, frozen)
            return number

        number = self._held = self._patiently(once)
        seen = self.refresh()
        if seen.holder_of(claim.config, before=number) is None and seen.count_before(number) < most:
            return number
        self.give_up()
        return None

    def _find(self, claim: Claim) -> int | None:
        running = view(self._study.get_trials(deepcopy=False)).running
        return next((number for number, known in running.items() if known.token == claim.token), None)

    def _read(self) -> View:
        self._look_around()
        found = view(self._study.get_trials(deepcopy=False))
        orphans = [n for n, claim in found.running.items() if claim.session == self.session and n != self._held]
        unknown = [n for n, claim in found.running.items() if claim.session not in self.phases and n not in orphans]
        if unknown:
            # Who came between the two reads has a trial already, but was none of the workers yet.
            self._look_around()
        stale = [n for n in unknown if found.running[n].session not in self.phases]
        for number in orphans:
            self._give_up(number)
        for number in stale:
            self._note(f"a worker went away while it measured {found.running[number].description}: given back")
            with suppress(UpdateFinishedTrialError):
                self._storage.set_trial_state_values(self._id(number), TrialState.FAIL)
        return view(self._study.get_trials(deepcopy=False)) if orphans or unknown else found

    def _look_around(self) -> None:
        attributes = self._study.user_attrs
        self._pulse.observe(attributes)
        phases = {name.removeprefix(PHASE): Stage(at) for name, at in attributes.items() if name.startswith(PHASE)}
        self.phases = {
            session: phase
            for session, phase in phases.items()
            if phase is not Stage.LEFT and (session == self.session or not self._pulse.is_dead(session))
        }
        self.answer = codec.from_plain(attributes[ANSWER], PublishedAnswer) if ANSWER in attributes else None

    def _end(self, trial: Trial, limit_bytes: int) -> bool:
        trial_id = self._id(trial.number)
        state, value = state_of(trial.measurement.outcome), trial.measurement.samples_per_second
        try:
            optuna_trial = OptunaTrial(self._study, trial_id)
            if CONSTRAINT not in optuna_trial.constraints:
                optuna_trial.set_constraint(CONSTRAINT, violation(trial.measurement, limit_bytes))
            for name, value_shown in dashboard.attributes_of(trial).items():
                optuna_trial.set_user_attr(name, value_shown)
            for name, value_shown in dashboard.constraint_of(trial, limit_bytes).items():
                self._storage.set_trial_system_attr(trial_id, name, value_shown)
            optuna_trial.set_user_attr(TRIAL_ATTRIBUTE, codec.to_plain(trial))
            values = [value] if state is TrialState.COMPLETE and value is not None else None
            self._storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            # By the try before this one, or by somebody who took this worker for dead.
            return TRIAL_ATTRIBUTE in self._storage.get_trial(trial_id).user_attrs
        return True

    def _give_up(self, number: int) -> None:
        with suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(self._id(number), GIVEN_UP, value=True)
            self._storage.set_trial_state_values(self._id(number), TrialState.FAIL)

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def _not_ours(self) -> UsageError:
        return UsageError(
            f"The study '{self.name}' in {self._url.display} was not begun by autorecompute. "
            "Begin another one with --study NAME."
        )
