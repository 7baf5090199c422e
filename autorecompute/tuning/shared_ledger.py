"""The trials of several tunings of one study. No config is measured twice, and one of the workers makes the answer."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies.race_record import FILE, RaceRecord
from autorecompute.studies.sharing import PublishedAnswer
from autorecompute.studies.sharing.messages import Stage
from autorecompute.studies.sharing.mirror import required_of, share, write_mirror
from autorecompute.studies.tuned import bind
from autorecompute.tuning.peers import Peers
from autorecompute.tuning.resources import RESERVE_BYTES, available_bytes
from autorecompute.units import format_bytes
from autorecompute.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.result import Result
    from autorecompute.search import Proposal
    from autorecompute.studies import Problem
    from autorecompute.studies.sharing import SharedStudy
    from autorecompute.tuning.context import TuningContext

POLL_SECONDS = 0.5
"""Between two looks at what the others do, for one who waits."""

LESS_BYTES = RESERVE_BYTES // 2
"""A device may have so much less to give than that of the first worker, out of what is left free on each card."""


class SharedLedger:
    """A ledger (``ledger.py``) that several tunings write.

    All who find nothing left to measure wait until that holds for each of them. The one whose session comes first by
    name then makes the answer, or the next one should it die, and the others take it into their own folders.

    Args:
        context: What the tuning works with.
        shared: The study in its storage.
    """

    store = None

    def __init__(self, context: TuningContext, shared: SharedStudy) -> None:
        self._context, self._shared, self._folder = context, shared, context.folder
        self._peers = Peers(shared, context.note)
        self._began_seconds = time.monotonic()
        self._is_bound = False
        self._known: PublishedAnswer | None = None
        self._seen: set[int] = set()
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
        return self._is_answered or Stage.CONFIRMING in self._shared.others.values()

    @property
    def is_confirming(self) -> bool:
        """Whether its turn to make the answer has come."""
        return self._phase is Stage.CONFIRMING

    @property
    def seconds(self) -> float:
        """Of this worker: those of the others passed at the same time."""
        return time.monotonic() - self._began_seconds

    def begin(self) -> bool:
        """Compares the problem with that of the others; a new study begins with :meth:`start`."""
        agreed = self._shared.check(self._context.tuned, is_limit_free=self._is_limit_free)
        self._known = self._shared.answer
        if agreed is not None:
            self._agree(agreed)
            self._bind()
        return agreed is None

    def known_answer(self) -> Result | None:
        """What the workers came to before this one; brought into its own folder."""
        return None if self._known is None or not self._is_bound else self._take(self._known)

    def start(self) -> list[Trial]:
        """Begins the study if it is new, by a claim on the run without recompute."""
        space = self._context.detection.space
        self._agree(self._shared.join(self._context.tuned, space, is_limit_free=self._is_limit_free))
        self._require_memory()
        self._bind()
        self._seen = {trial.number for trial in self.trials}
        self._peers.note_others()
        return []

    def refresh(self) -> list[Trial]:
        """Reads the storage."""
        self._shared.refresh()
        news = [trial for trial in self.trials if trial.number not in self._seen]
        self._seen |= {trial.number for trial in news}
        return news

    @contextmanager
    def claim(self, proposal: Proposal, description: str) -> Iterator[int | None]:
        """Gives the claim back where the block raises."""
        claim = self._shared.new_claim(proposal.config, description, proposal.reason)
        number = self._shared.claim(claim, self._context.detection.space, self._context.settings.max_trials)
        try:
            yield number
        except BaseException:
            with suppress(SetupError):
                self._shared.give_up(patience_seconds=0.0)
            raise

    def keep(self, trial: Trial) -> Trial | None:
        """Ends the claim; who was taken for dead meanwhile claims anew, unless another one did."""
        while not self._shared.end(trial, self._context.problem.limit_bytes):
            claim = self._shared.new_claim(trial.config, trial.description, trial.reason)
            number = self._shared.claim(claim, self._context.detection.space)
            if number is None:
                self._context.note(f"{trial.description} was given to another worker meanwhile")
                return None
            trial = replace(trial, number=number)
        self._seen.add(trial.number)
        return trial

    def wait(self) -> bool:
        """Until the others come to something, or are through as well."""
        if self.is_confirming:
            return False
        before, was_closing = self._state, self.is_closing
        self._shared.enter(Stage.DONE)
        while True:
            self._shared.refresh()
            if self._is_answered:
                return False
            # A worker that made the answer and ended may have left something to search for.
            if (self._state != before or was_closing) and not self.is_closing:
                self._shared.enter(Stage.SEARCHING)
                return True
            was_closing = self.is_closing
            if self._takes_turn():
                return False
            self._note_waiting()
            self._peers.note_awaited()
            pause(POLL_SECONDS)

    def published_answer(self) -> Result | None:
        """The answer of the one who confirmed."""
        return self._take(self._shared.answer) if self._is_answered and self._shared.answer is not None else None

    def resume(self) -> None:
        """The worker that published the answer is waited for if it is still alive."""
        self._known = self._shared.answer
        self._shared.enter(Stage.SEARCHING)

    def publish(self, result: Result) -> Result:
        """With all that other folders need. A worker that was taken for dead gets the published answer instead."""
        self._shared.refresh()
        if (published := self.published_answer()) is not None:
            return published
        self._shared.publish(
            PublishedAnswer(
                result=result,
                race=self._folder.read(FILE, RaceRecord),
                rejections=tuple(self._folder.rejections()),
                confirmed=tuple(self._folder.confirmed()),
            )
        )
        return result

    def close(self) -> None:
        """Leaves the others, and writes the trials of all into the own folder."""
        self._shared.leave()
        if self._is_bound:
            space, problem = self._context.detection.space, self._context.problem
            write_mirror(self._folder, self.trials, space, problem, self._shared.session)

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
    def _phase(self) -> Stage | None:
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
        # A worker that begins to search now sees this phase, or is seen by the look that follows.
        self._shared.enter(Stage.CONFIRMING)
        self._shared.refresh()
        if self._is_my_turn():
            return True
        self._shared.enter(Stage.DONE)
        return False

    def _is_my_turn(self) -> bool:
        others = self._shared.others
        are_through = all(phase is Stage.DONE for phase in others.values()) and not self._shared.view.running
        return are_through and all(self._shared.session < session for session in others)

    def _note_waiting(self) -> None:
        is_over = self.is_closing
        if is_over and not self._is_waiting:
            # Nothing is left to measure here, unless the one who confirms should die.
            self._context.bench.close()
            self._context.note("nothing left to measure: waiting for the last worker's confirmation")
        self._is_waiting = is_over

    def _bind(self) -> None:
        founding = self._shared.founding
        assert founding is not None, "the study has a first trial"
        if (required := required_of(self._folder)) is not None:
            self._shared.require(required)
        share(self._folder, founding, self._shared.place)
        bind(self._folder, self._context.tuned, self._context.note)
        self._is_bound = True

    def _take(self, answer: PublishedAnswer) -> Result:
        """Writes an answer into the own folder."""
        self._folder.keep_rejections(answer.rejections)
        self._folder.keep_confirmed(answer.confirmed)
        if answer.race is not None:
            self._folder.write(FILE, codec.to_plain(answer.race))
        result = replace(answer.result, study=self._folder.name)
        self._folder.finish(result)
        return result
