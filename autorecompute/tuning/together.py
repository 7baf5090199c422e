"""One of several tunings of a study: what it measures nobody else does, and the last of them makes the answer."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import race
from autorecompute.studies.sharing import Answer
from autorecompute.studies.sharing.messages import Phase
from autorecompute.studies.sharing.mirror import required_of, share, write_mirror
from autorecompute.trials.signals import deferring_interrupts
from autorecompute.tuning.binding import bind
from autorecompute.tuning.company import Company
from autorecompute.tuning.limit import RESERVE_BYTES, available_bytes
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from autorecompute.measurement import Detection, Trial
    from autorecompute.plans import Config
    from autorecompute.result import Result
    from autorecompute.search import Proposal
    from autorecompute.studies import Problem, Sizes
    from autorecompute.studies.sharing import SharedStudy
    from autorecompute.tuning.settings import Workplace

POLL_SECONDS = 0.5
"""Between two looks at what the others do, for one who waits."""

LESS_BYTES = RESERVE_BYTES // 2
"""A device may have so much less to give than that of the first worker, out of what is left free on each card."""


class Together:
    """A ledger (``ledger.py``) that several tunings write.

    All who find nothing left to measure wait until that holds for each of them. The one whose session comes first by
    name then makes the answer, or the next one should it die, and the others take it into their own folders.

    Args:
        place: What the tuning works with.
        shared: The study in its storage.
    """

    store = None

    def __init__(self, place: Workplace, shared: SharedStudy) -> None:
        self._place, self._shared, self._folder = place, shared, place.folder
        self._company = Company(shared, place.progress.note)
        self._began_seconds = time.monotonic()
        self._problem: Problem | None = None
        self._is_bound = False
        self._known: Answer | None = None
        self._told: set[int] = set()
        self._is_waiting = False

    @property
    def trials(self) -> list[Trial]:
        """Those of all workers, by their numbers."""
        return list(self._shared.view.trials)

    @property
    def claimed(self) -> Collection[Config]:
        """What others measure."""
        claims = self._shared.view.running.values()
        return {claim.config for claim in claims if claim.session != self._shared.session}

    @property
    def others(self) -> int:
        """Workers that are alive."""
        return len(self._shared.others)

    @property
    def is_closing(self) -> bool:
        """Whether one of them makes the answer, or has made it."""
        return self._is_answered or Phase.CONFIRMING in self._shared.others.values()

    @property
    def is_confirming(self) -> bool:
        """Whether its turn to make the answer has come."""
        return self._phase is Phase.CONFIRMING

    @property
    def seconds(self) -> float:
        """Of this worker: those of the others passed at the same time."""
        return time.monotonic() - self._began_seconds

    def begin(
        self, problem: Problem, detection: Detection, command: Sequence[str], sizes: Sizes
    ) -> tuple[Problem, bool]:
        """Compares the problem with that of the others; where nobody has begun, :meth:`join` begins."""
        self._detection, self._command, self._sizes = detection, command, sizes
        agreed = self._shared.check(problem, is_limit_free=self._is_limit_free)
        self._known = self._shared.answer
        self._problem = agreed or problem
        if agreed is not None:
            self._tell_limit(problem)
            self._bind()
        return self._problem, agreed is None

    def answer(self) -> Result | None:
        """What the workers came to before this one; brought into its own folder."""
        return None if self._known is None or not self._is_bound else self._take(self._known)

    def join(self) -> tuple[Problem, list[Trial]]:
        """Begins the study where nobody has, which claims the run without recompute."""
        assert self._problem is not None, "begin() comes first"
        told = self._problem
        self._problem = self._shared.join(told, self._detection.space, is_limit_free=self._is_limit_free)
        self._tell_limit(told)
        self._require_memory()
        self._bind()
        self._told = {trial.number for trial in self.trials}
        self._company.tell_others()
        return self._problem, []

    def refresh(self) -> list[Trial]:
        """Reads the storage."""
        self._shared.refresh()
        news = [trial for trial in self.trials if trial.number not in self._told]
        self._told |= {trial.number for trial in news}
        return news

    @contextmanager
    def trying(self, proposal: Proposal, description: str) -> Iterator[int | None]:
        """Gives the claim back where the block raises."""
        claim = self._shared.new_claim(proposal.config, description, proposal.reason)
        number = self._shared.claim(claim, self._detection.space, self._place.settings.max_trials)
        try:
            yield number
        except BaseException:
            with deferring_interrupts(), suppress(SetupError):
                self._shared.give_up(patience_seconds=0.0)
            raise

    def keep(self, trial: Trial) -> Trial | None:
        """Ends the claim; who was taken for dead meanwhile claims anew, unless another one did."""
        assert self._problem is not None, "begin() comes first"
        while not self._shared.end(trial, self._problem.limit_bytes):
            claim = self._shared.new_claim(trial.config, trial.description, trial.reason)
            number = self._shared.claim(claim, self._detection.space)
            if number is None:
                self._place.progress.note(f"{trial.description} was given to another worker meanwhile")
                return None
            trial = replace(trial, number=number)
        self._told.add(trial.number)
        return trial

    def wait(self) -> bool:
        """Until the others come to something, or are through as well."""
        if self.is_confirming:
            return False
        before, was_closing = self._state, self.is_closing
        self._shared.enter(Phase.DONE)
        while True:
            self._shared.refresh()
            if self._is_answered:
                return False
            # Whoever made the answer and went away may have left something to search for.
            if (self._state != before or was_closing) and not self.is_closing:
                self._shared.enter(Phase.SEARCHING)
                return True
            was_closing = self.is_closing
            if self._takes_turn():
                return False
            self._tell_waiting()
            self._company.tell_awaited()
            time.sleep(POLL_SECONDS)

    def told(self) -> Result | None:
        """The answer of the one who confirmed."""
        return self._take(self._shared.answer) if self._is_answered and self._shared.answer is not None else None

    def go_on(self) -> None:
        """Whoever told it is waited for, should it still be there."""
        self._known = self._shared.answer
        self._shared.enter(Phase.SEARCHING)

    def publish(self, result: Result) -> Result:
        """With all that the folders of the others need; who was taken for dead meanwhile is told as well."""
        self._shared.refresh()
        if (told := self.told()) is not None:
            return told
        self._shared.publish(
            Answer(
                result=result,
                race=self._folder.read(race.FILE, race.RaceRecord),
                rejections=tuple(self._folder.rejections()),
                confirmed=tuple(self._folder.confirmed()),
            )
        )
        return result

    def close(self) -> None:
        """Leaves the others, and writes the trials of all into the own folder."""
        with deferring_interrupts():
            self._shared.leave()
            if self._is_bound and self._problem is not None:
                write_mirror(self._folder, self.trials, self._detection.space, self._problem, self._shared.session)

    @property
    def _is_limit_free(self) -> bool:
        return self._place.settings.limit_bytes is None

    def _tell_limit(self, own: Problem) -> None:
        if self._problem is not None and self._problem.limit_bytes != own.limit_bytes:
            self._place.progress.note(
                f"the limit is that of the other workers: {format_bytes(self._problem.limit_bytes)}"
            )

    def _require_memory(self) -> None:
        assert self._problem is not None, "begin() comes first"
        limit_bytes, available = self._problem.limit_bytes, available_bytes(self._detection)
        # What runs out of memory here alone would be taken for what no worker can hold.
        if self._is_limit_free and available + LESS_BYTES < limit_bytes:
            raise UsageError(
                f"This device has {format_bytes(available)} to give, and the limit of study '{self._folder.name}' is "
                f"{format_bytes(limit_bytes)}. Begin another study with --study NAME, and the same --memory-limit "
                "for all workers."
            )

    @property
    def _phase(self) -> Phase | None:
        return self._shared.phases.get(self._shared.session)

    @property
    def _state(self) -> tuple[frozenset[int], frozenset[int]]:
        """What a search depends on: which trials ended, and which run."""
        return frozenset(trial.number for trial in self.trials), frozenset(self._shared.view.running)

    @property
    def _is_answered(self) -> bool:
        return self._shared.answer is not None and self._shared.answer != self._known

    def _takes_turn(self) -> bool:
        if not self._is_my_turn():
            return False
        # Whoever begins to search at this moment sees that, or is seen after it.
        self._shared.enter(Phase.CONFIRMING)
        self._shared.refresh()
        if self._is_my_turn():
            return True
        self._shared.enter(Phase.DONE)
        return False

    def _is_my_turn(self) -> bool:
        others = self._shared.others
        are_through = all(phase is Phase.DONE for phase in others.values()) and not self._shared.view.running
        return are_through and all(self._shared.session < session for session in others)

    def _tell_waiting(self) -> None:
        is_over = self.is_closing
        if is_over and not self._is_waiting:
            # Nothing is left to measure here, unless the one who confirms should die.
            self._place.bench.close()
            self._place.progress.note("nothing left to measure: waiting for the last worker's confirmation")
        self._is_waiting = is_over

    def _bind(self) -> None:
        assert self._problem is not None, "begin() comes first"
        founding = self._shared.founding
        assert founding is not None, "the study has a first trial"
        if (required := required_of(self._folder)) is not None:
            self._shared.require(required)
        share(self._folder, founding, self._shared.place)
        bind(self._folder, self._problem, self._command, self._sizes)
        self._is_bound = True

    def _take(self, answer: Answer) -> Result:
        """Writes an answer into the own folder."""
        self._folder.keep_rejections(answer.rejections)
        self._folder.keep_confirmed(answer.confirmed)
        if answer.race is not None:
            self._folder.write(race.FILE, codec.to_plain(answer.race))
        result = replace(answer.result, study=self._folder.name)
        self._folder.finish(result)
        return result
