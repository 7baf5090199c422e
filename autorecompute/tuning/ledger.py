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
from autorecompute.studies.folder import bind
from autorecompute.studies.records import RACE_FILE, RaceRecord, keep_trials, note_shared, required_of, shared_from
from autorecompute.studies.shared_study import GRACE_SECONDS, PublishedAnswer
from autorecompute.studies.storage import TrialStore
from autorecompute.tuning.context import RESERVE_BYTES, available_bytes
from autorecompute.units import format_bytes, format_count
from autorecompute.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from autorecompute.plans import Config
    from autorecompute.result import Result
    from autorecompute.search import Proposal
    from autorecompute.studies import Problem
    from autorecompute.studies.shared_study import SharedStudy
    from autorecompute.tuning.context import TuningContext


class Ledger:
    """The trials of a study in its own folder, which one tuning at a time adds to."""

    store: TrialStore | None = None
    """The study's own database, from :meth:`begin` on; ``None`` where other workers add trials, too."""

    def __init__(self, context: TuningContext) -> None:
        self._context, self._folder = context, context.folder

    @property
    def trials(self) -> list[Trial]:
        """Return all trials that ended, as of the last :meth:`refresh`."""
        return self._own.trials

    @property
    def claimed(self) -> Collection[Config]:
        """Return the configs that others measure at this moment."""
        return ()

    @property
    def others(self) -> int:
        """Return the number of others who work on the study."""
        return 0

    @property
    def is_closing(self) -> bool:
        """Tell whether another one makes the answer or has made it, so that there is nothing left to search for."""
        return False

    @property
    def is_confirming(self) -> bool:
        """Tell whether the answer is for this one to make."""
        return True

    @property
    def seconds(self) -> float:
        """Wall time spent on the study, over all sessions."""
        return self._own.seconds

    def begin(self) -> bool:
        """Tie the folder to the problem, and tell whether the study is new.

        Raises:
            UsageError: the study holds another one.
        """
        problem, detection = self._context.problem, self._context.detection
        result = self.known_answer()
        if shared_from(self._folder) is not None and (
            result is None or result.can_go_on(self._context.settings.max_trials)
        ):
            raise UsageError(
                f"Study '{self._folder.name}' is shared with other workers: give the --storage that it is in, or begin "
                "another study with --study NAME."
            )
        is_new = bind(self._folder, self._context.tuned, self._context.note)
        self.store = TrialStore(
            self._folder.database, self._folder.name_in_database, detection.space, problem.limit_bytes
        )
        self._folder.require_trials(len(self.trials))
        return is_new

    def known_answer(self) -> Result | None:
        """Return the answer of an earlier session; none where a training has disproved it."""
        result = self._folder.result()
        disproved = {rejection.config for rejection in self._folder.disproved()}
        return None if result is not None and result.best and result.best.config in disproved else result

    def start(self) -> list[Trial]:
        """Measure trials from now on. Give those of earlier sessions whose folders are still to be filled.

        The trial that an earlier session took with it is kept; only who holds the device knows it is over.
        """
        lost = self._trial_in_progress()
        # Between the database and the folder, too, a session may have gone away.
        last = self.trials[-1:]
        unwritten = [trial for trial in last if not (self._folder.trial(trial.number) / "result.json").is_file()]
        taken = [lost] if lost is not None and lost.number == self._own.next_number else []
        for trial in taken:
            self._own.add(trial)
        self._folder.end_trial()
        return unwritten + taken

    def refresh(self) -> list[Trial]:
        """Look again; the trials of others that ended since."""
        return []

    @contextmanager
    def claim(self, proposal: Proposal, description: str) -> Iterator[int | None]:
        """Claim a config for the block, under a number; ``None`` where another one was first.

        A lost trial is left if this process dies before it can write down another one.
        """
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
        self._own.add(trial)
        return trial

    def wait(self) -> bool:
        """Wait where nothing is left to propose; tell whether others have changed that, else an answer is due."""
        return False

    def published_answer(self) -> Result | None:
        """Return the answer that another one made of this search, in this folder."""
        return None

    def resume(self) -> None:
        """Search for a better answer than the one that was published."""

    def publish(self, result: Result) -> Result:
        """Publish the answer. Return the one that stands: that of another worker, if that was first."""
        return result

    def close(self) -> None:
        """End; what was claimed is given back."""

    @property
    def _own(self) -> TrialStore:
        assert self.store is not None, "begin() opens it"
        return self.store

    def _trial_in_progress(self) -> Trial | None:
        try:
            return self._folder.trial_in_progress()
        except SetupError:
            # What goes away with the machine may take the end of a file with it.
            self._context.note("the last run was interrupted while it measured a config; which one is not known")
            return None


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


POLL_SECONDS = 0.5
"""Between two looks at what the others do, for one who waits."""

QUIET_SECONDS = 5.0
"""A wait that is over before needs no word."""

LESS_BYTES = RESERVE_BYTES // 2
"""A device may have so much less to give than that of the first worker, out of what is left free on each card."""


class SharedLedger(Ledger):
    """A ledger that several tunings write.

    A worker that finds nothing left to measure waits while others measure. The first one that finds none of them at it
    claims the answer as it would a config, and the others take it into their own folders.
    """

    def __init__(self, context: TuningContext, shared: SharedStudy) -> None:
        super().__init__(context)
        self._shared = shared
        self._began_seconds = time.monotonic()
        self._is_bound = self._has_answered = False
        self._known: PublishedAnswer | None = None
        self._seen: set[int] = set()

    @property
    def trials(self) -> list[Trial]:
        """Return those of all workers, by their numbers."""
        return list(self._shared.trials)

    @property
    def claimed(self) -> Collection[Config]:
        """Return the configs that others measure."""
        return {claim.trial.config for claim in self._shared.others.values() if claim.trial is not None}

    @property
    def others(self) -> int:
        """Return the workers that measure or confirm at this moment."""
        return len({claim.session for claim in self._shared.others.values()})

    @property
    def is_closing(self) -> bool:
        """Tell whether one of them makes the answer, or has made it."""
        return self._is_answered or any(claim.trial is None for claim in self._shared.others.values())

    @property
    def is_confirming(self) -> bool:
        """Tell whether it has claimed the answer, or made it."""
        return self._has_answered or self._shared.is_confirming

    @property
    def seconds(self) -> float:
        """Return those of this worker: those of the others passed at the same time."""
        return time.monotonic() - self._began_seconds

    def begin(self) -> bool:
        """Compare the problem with that of the others; a new study begins with :meth:`start`."""
        agreed = self._shared.check(self._context.tuned, is_limit_free=self._is_limit_free)
        self._known = self._shared.answer
        if agreed is not None:
            self._agree(agreed)
            self._bind()
        return agreed is None

    def known_answer(self) -> Result | None:
        """Return the answer of the workers before this one; brought into its own folder."""
        return None if self._known is None or not self._is_bound else self._take(self._known)

    def start(self) -> list[Trial]:
        """Begin the study if it is new, by a claim on the run without recompute."""
        space = self._context.detection.space
        self._agree(self._shared.join(self._context.tuned, space, is_limit_free=self._is_limit_free))
        self._require_memory()
        self._bind()
        self._seen = {trial.number for trial in self.trials}
        if self.others:
            self._context.note(f"shares the study with {format_count(self.others, 'other worker')}")
        return []

    def refresh(self) -> list[Trial]:
        """Read the storage."""
        self._shared.refresh()
        news = [trial for trial in self.trials if trial.number not in self._seen]
        self._seen |= {trial.number for trial in news}
        return news

    @contextmanager
    def claim(self, proposal: Proposal, description: str) -> Iterator[int | None]:
        """Give the claim back where the block raises."""
        del description  # the space tells it
        space, most = self._context.detection.space, self._context.settings.max_trials
        number = self._shared.claim(proposal.config, proposal.reason, space, most=most)
        try:
            yield number
        except BaseException:
            with suppress(SetupError):
                self._shared.give_up()
            raise

    def keep(self, trial: Trial) -> Trial | None:
        """End the claim."""
        if not self._shared.end(trial, self._context.problem.limit_bytes):
            self._context.note(f"{trial.description} was given up meanwhile: no heartbeat reached the storage")
            return None
        self._seen.add(trial.number)
        return trial

    def wait(self) -> bool:
        """Until the others come to something, or none of them measures."""
        if self.is_confirming:
            return False
        before, awaited, since = self._state, frozenset[int](), time.monotonic()
        while True:
            self._shared.refresh()
            if self._is_answered:
                return False
            # A worker that was to make the answer and ended may have left something to search for.
            if self._state != before and not self.is_closing:
                return True
            if not self._shared.others and self._shared.claim_answer():
                return False
            if (running := frozenset(self._shared.others)) != awaited:
                awaited, since = running, time.monotonic()
            elif running and time.monotonic() - since > QUIET_SECONDS:
                self._note_awaited(running)
                since = math.inf
            pause(POLL_SECONDS)

    def published_answer(self) -> Result | None:
        """Return the answer of the one who confirmed."""
        return self._take(self._shared.answer) if self._is_answered and self._shared.answer is not None else None

    def resume(self) -> None:
        """Begin another answer."""
        self._known = self._shared.answer

    def publish(self, result: Result) -> Result:
        """With all that other folders need. A worker that was given up for dead gets the published answer instead."""
        self._shared.refresh()
        if (published := self.published_answer()) is not None:
            return published
        self._has_answered = True
        self._shared.publish(
            PublishedAnswer(
                result=result,
                race=self._folder.read(RACE_FILE, RaceRecord),
                rejections=tuple(self._folder.rejections()),
                confirmed=tuple(self._folder.confirmed()),
            )
        )
        return result

    def close(self) -> None:
        """Leave the others, and write the trials of all into the own folder."""
        self._shared.close()
        if self._is_bound:
            space, problem = self._context.detection.space, self._context.problem
            keep_trials(self._folder, self.trials, space, problem, self._shared.session)

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

    @property
    def _state(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the state on which a search depends: the trials that ended, and the claims of others."""
        return frozenset(trial.number for trial in self.trials), frozenset(self._shared.others)

    @property
    def _is_answered(self) -> bool:
        return self._shared.answer is not None and self._shared.answer != self._known

    def _note_awaited(self, running: Collection[int]) -> None:
        trials = " and ".join(f"trial {number}" for number in sorted(running))
        self._context.note(
            f"waiting for {trials} of other workers: ended by them, or given up {GRACE_SECONDS} s after the last "
            "heartbeat"
        )

    def _bind(self) -> None:
        founding = self._shared.founding
        assert founding is not None, "the study has a first trial"
        self._shared.require(required_of(self._folder))
        note_shared(self._folder, founding, self._shared.place)
        bind(self._folder, self._context.tuned, self._context.note)
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
