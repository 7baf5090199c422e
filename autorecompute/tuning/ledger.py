"""The trials of a tuning, alone or shared with other workers."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.errors import SetupError, UsageError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.studies import records
from autorecompute.studies.folder import bind
from autorecompute.studies.records import RACE_FILE
from autorecompute.studies.shared_study import GRACE_SECONDS, PublishedAnswer
from autorecompute.studies.storage import TrialStore
from autorecompute.tuning.context import RESERVE_BYTES, available_bytes
from autorecompute.units import format_bytes, format_count
from autorecompute.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from autorecompute.plans import Config
    from autorecompute.result import Result
    from autorecompute.search import Proposal
    from autorecompute.studies import Problem
    from autorecompute.studies.shared_study import Claim, SharedStudy
    from autorecompute.tuning.context import TuningContext


POLL_SECONDS = 0.5
"""Between two looks at what the others do, for one who waits."""

QUIET_SECONDS = 5.0
"""A wait that is over before needs no word."""

LESS_BYTES = RESERVE_BYTES // 2
"""A device may have so much less to give than that of the first worker, out of what is left free on each card."""


class Ledger:
    """The trials of a study: in its own folder, or in the storage of several workers.

    A worker that finds nothing left to measure waits while others measure. The first one that finds none of them at it
    claims the answer as it would a config, and the others take it into their own folders.
    """

    store: TrialStore | None = None
    """The study's own database, from :meth:`begin` on; ``None`` where other workers add trials, too."""

    def __init__(self, context: TuningContext) -> None:
        self._context, self._folder, self._shared = context, context.folder, context.shared
        self._began_seconds = time.monotonic()
        self._is_bound = self._has_answered = False
        self._known: PublishedAnswer | None = None
        self._seen: set[int] = set()

    @property
    def trials(self) -> list[Trial]:
        """Return all trials that ended, as of the last :meth:`refresh`, by their numbers."""
        return self._own.trials if self._shared is None else list(self._shared.trials)

    @property
    def claimed(self) -> Collection[Config]:
        """Return the configs that other workers measure at this moment."""
        return {claim.trial.config for claim in self._claims.values() if claim.trial is not None}

    @property
    def others(self) -> int:
        """Return the number of other workers that measure or confirm at this moment."""
        return len({claim.session for claim in self._claims.values()})

    @property
    def is_closing(self) -> bool:
        """Tell whether another one makes the answer or has made it, so that there is nothing left to search for."""
        return self._is_answered or any(claim.trial is None for claim in self._claims.values())

    @property
    def is_confirming(self) -> bool:
        """Tell whether the answer is for this one to make, or was made by it."""
        return self._shared is None or self._has_answered or self._shared.is_confirming

    @property
    def seconds(self) -> float:
        """Return the wall time spent on the study over all sessions; of a shared one that of this worker."""
        # Those of the others passed at the same time.
        return self._own.seconds if self._shared is None else time.monotonic() - self._began_seconds

    def begin(self) -> bool:
        """Tie the study to the problem, and tell whether it is new; a shared one that is begins with :meth:`start`.

        Raises:
            UsageError: the study holds another one.
        """
        if self._shared is not None:
            agreed = self._shared.check(self._context.head, is_limit_free=self._is_limit_free)
            self._known = self._shared.answer
            if agreed is not None:
                self._agree(agreed)
                self._bind(self._shared)
            return agreed is None
        result = self.known_answer()
        if records.shared_from(self._folder) is not None and (
            result is None or result.can_go_on(self._context.settings.max_trials)
        ):
            raise UsageError(
                f"Study '{self._folder.name}' is shared with other workers: give the --storage that it is in, or begin "
                "another study with --study NAME."
            )
        is_new = bind(self._folder, self._context.head, self._context.note)
        space, limit_bytes = self._context.detection.space, self._context.problem.limit_bytes
        self.store = TrialStore(self._folder.database, self._folder.name_in_database, space, limit_bytes)
        self._folder.require_trials(len(self.trials))
        return is_new

    def known_answer(self) -> Result | None:
        """Return the answer of an earlier session, or of the workers before this one, in its own folder.

        ``None`` where a training has disproved it.
        """
        if self._shared is not None:
            return None if self._known is None or not self._is_bound else self._take(self._known)
        result = self._folder.result()
        disproved = {rejection.config for rejection in self._folder.disproved()}
        return None if result is not None and result.best and result.best.config in disproved else result

    def start(self) -> list[Trial]:
        """Measure trials from now on. Give those of earlier sessions whose folders are still to be filled.

        The trial that an earlier session took with it is kept; only who holds the device knows it is over. A new study
        that is shared begins with a claim on the run without recompute.
        """
        if self._shared is not None:
            space = self._context.detection.space
            self._agree(self._shared.join(self._context.head, space, is_limit_free=self._is_limit_free))
            self._require_memory()
            self._bind(self._shared)
            self._seen = {trial.number for trial in self.trials}
            if self.others:
                self._context.note(f"shares the study with {format_count(self.others, 'other worker')}")
            return []
        lost = None
        try:
            lost = self._folder.trial_in_progress()
        except SetupError:
            # What goes away with the machine may take the end of a file with it.
            self._context.note("the last run was interrupted while it measured a config; which one is not known")
        # Between the database and the folder, too, a session may have gone away.
        last = self.trials[-1:]
        unwritten = [trial for trial in last if not (self._folder.trial(trial.number) / "result.json").is_file()]
        taken = [lost] if lost is not None and lost.number == self._own.next_number else []
        for trial in taken:
            self._own.add(trial)
        self._folder.end_trial()
        return unwritten + taken

    def refresh(self) -> list[Trial]:
        """Look again, and give the trials of others that ended since."""
        if self._shared is None:
            return []
        self._shared.refresh()
        news = [trial for trial in self.trials if trial.number not in self._seen]
        self._seen |= {trial.number for trial in news}
        return news

    @contextmanager
    def claim(self, proposal: Proposal, description: str) -> Iterator[int | None]:
        """Claim a config for the block, under a number; ``None`` where another one was first.

        A lost trial is left if this process dies before it can write down another one. Where the block raises, the
        claim is given back.
        """
        if self._shared is not None:
            space, most = self._context.detection.space, self._context.settings.max_trials
            number = self._shared.claim(proposal.config, proposal.reason, space, most=most)
            try:
                yield number
            except BaseException:
                with suppress(SetupError):
                    self._shared.give_up()
                raise
            return
        number, config, reason = self._own.next_number, proposal.config, proposal.reason
        why = "the machine or the tuner stopped while this was measured"
        measurement = Measurement(outcome=Outcome.LOST, message=why)
        self._folder.begin_trial(
            Trial(number=number, config=config, description=description, reason=reason, measurement=measurement)
        )
        try:
            yield number
        finally:
            self._folder.end_trial()

    def keep(self, trial: Trial) -> Trial | None:
        """Keep a trial, and give it as it is kept; ``None`` where another one measured it meanwhile."""
        if self._shared is None:
            self._own.add(trial)
        elif not self._shared.end(trial, self._context.problem.limit_bytes):
            self._context.note(f"{trial.description} was given up meanwhile: no heartbeat reached the storage")
            return None
        self._seen.add(trial.number)
        return trial

    def wait(self) -> bool:
        """Wait until the others come to something, or none of them measures.

        Tell whether that leaves something to search for, else an answer is due.
        """
        if self._shared is None or self.is_confirming:
            return False
        before, awaited, since = self._state, frozenset[int](), time.monotonic()
        while True:
            self._shared.refresh()
            if self._is_answered:
                return False
            # A worker that was to make the answer and ended may have left something to search for.
            if self._state != before and not self.is_closing:
                return True
            if not self._claims and self._shared.claim_answer():
                return False
            if (running := frozenset(self._claims)) != awaited:
                awaited, since = running, time.monotonic()
            elif running and time.monotonic() - since > QUIET_SECONDS:
                trials = " and ".join(f"trial {number}" for number in sorted(running))
                self._context.note(
                    f"waiting for {trials} of other workers: ended by them, or given up {GRACE_SECONDS} s after the "
                    "last heartbeat"
                )
                since = math.inf
            pause(POLL_SECONDS)

    def published_answer(self) -> Result | None:
        """Return the answer that another one made of this search, in this folder."""
        answer = self._shared.answer if self._shared is not None else None
        return self._take(answer) if answer is not None and self._is_answered else None

    def resume(self) -> None:
        """Search for a better answer than the one that was published."""
        self._known = self._shared.answer if self._shared is not None else None

    def publish(self, result: Result) -> Result:
        """Publish the answer with all that other folders need.

        Return the one that stands: that of another worker, if this one was given up for dead.
        """
        if self._shared is None:
            return result
        self._shared.refresh()
        if (published := self.published_answer()) is not None:
            return published
        self._has_answered = True
        self._shared.publish(
            PublishedAnswer(
                result=result,
                race=self._folder.read(RACE_FILE, records.RaceRecord),
                rejections=tuple(self._folder.rejections()),
                confirmed=tuple(self._folder.confirmed()),
            )
        )
        return result

    def close(self) -> None:
        """Leave the others, with the trials of all in the own folder."""
        if self._shared is None:
            return
        self._shared.close()
        if self._is_bound:
            space, problem = self._context.detection.space, self._context.problem
            records.keep_trials(self._folder, self.trials, space, problem, self._shared.session)

    @property
    def _own(self) -> TrialStore:
        assert self.store is not None, "begin() opens it"
        return self.store

    @property
    def _claims(self) -> Mapping[int, Claim]:
        return {} if self._shared is None else self._shared.others

    @property
    def _state(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the state on which a search depends: the trials that ended, and the claims of others."""
        return frozenset(trial.number for trial in self.trials), frozenset(self._claims)

    @property
    def _is_answered(self) -> bool:
        answer = self._shared.answer if self._shared is not None else None
        return answer is not None and answer != self._known

    @property
    def _is_limit_free(self) -> bool:
        return self._context.settings.limit_bytes is None

    def _agree(self, agreed: Problem) -> None:
        if agreed.limit_bytes != self._context.problem.limit_bytes:
            self._context.note(f"the limit is that of the other workers: {format_bytes(agreed.limit_bytes)}")
        self._context.problem = agreed

    def _require_memory(self) -> None:
        limit_bytes, available = self._context.problem.limit_bytes, available_bytes(self._context.detection)
        # What runs out of memory here alone would be taken for what no worker can hold.
        if self._is_limit_free and available + LESS_BYTES < limit_bytes:
            raise UsageError(
                f"This device has {format_bytes(available)} to give, and the limit of study '{self._folder.name}' is "
                f"{format_bytes(limit_bytes)}. Begin another study with --study NAME, and the same --memory-limit "
                "for all workers."
            )

    def _bind(self, shared: SharedStudy) -> None:
        assert shared.founding is not None, "the study has a first trial"
        shared.require(records.required_of(self._folder))
        records.note_shared(self._folder, shared.founding, shared.place)
        bind(self._folder, self._context.head, self._context.note)
        self._is_bound = True

    def _take(self, answer: PublishedAnswer) -> Result:
        """Write an answer into the own folder."""
        self._folder.keep_rejections(answer.rejections)
        self._folder.keep_confirmed(answer.confirmed)
        if answer.race is not None:
            self._folder.write(RACE_FILE, codec.to_plain(answer.race))
        result = replace(answer.result, study=self._folder.name)
        self._folder.finish(result)
        return result


LOSSES = 2
"""A machine may go away for reasons of its own, once; a config that it went away with twice is left alone."""


def settled(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials without the lost ones. A config that was lost too often keeps one lost trial."""
    losses: Counter[Config] = Counter()
    decided = []
    for trial in trials:
        losses[trial.config] += trial.measurement.outcome is Outcome.LOST
        if trial.measurement.outcome is not Outcome.LOST or losses[trial.config] == LOSSES:
            decided.append(trial)
    return decided
