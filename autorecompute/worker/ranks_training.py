"""A training of several ranks: each measures in its own steps, and all switch at the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.errors import first_line
from autorecompute.measurement import Outcome
from autorecompute.worker.agent import Abandon
from autorecompute.worker.guard import Guard, TrainingAgent
from autorecompute.worker.protocol import Failed, Order
from autorecompute.worker.ranks_line import FollowingLine, LeadingLine, NoStoreError, RankStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.plans import Config
    from autorecompute.training_job import Detection
    from autorecompute.worker.guard import Say
    from autorecompute.worker.hooks import ExpectedSteps
    from autorecompute.worker.protocol import Check, Ended, Message, Settings
    from autorecompute.worker.side_channel import SideChannel


class RankAgent(TrainingAgent):
    """Measures in the steps of one of several ranks.

    Args:
        side: The line to the controller, which the first rank alone has.
        backend: The training system.
        settings: What the controller said at the start.
        expected: What is known of the training's length.

    Attributes:
        ranks: The line beside the other ranks; ``None`` before the first step.
        has_begun: Whether the first config is on.
        fault: Why this rank measures nothing any more.
    """

    def __init__(
        self, side: SideChannel | None, backend: WorkerBackend, settings: Settings, expected: ExpectedSteps
    ) -> None:
        super().__init__(side or _NoLine(), backend, settings, expected, is_alone=False)
        self._side = side
        self.ranks: LeadingLine | FollowingLine | None = None
        self.has_begun, self.fault = False, ""

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Begin where all ranks do, and with the config that the first one is answered.

        Raises:
            Abandon: the ranks are not together.
            NoStoreError: they have no way to be.
        """
        self._channel = self.line = self.ranks = _join(self._side)
        config = super().on_session(detect)
        self.has_begun = True
        return config

    def fail(self, reason: str) -> None:
        """Measure nothing any more, and switch when the others do until all have heard of it.

        Raises:
            NoStoreError: nobody can hear of it.
        """
        self.fault = reason
        self.stop()
        if self.ranks is not None:
            self.ranks.report_fault(Failed(outcome=Outcome.LOST, message=reason))

    def _look_for_order(self, seconds: float) -> None:
        assert self.ranks is not None, "a step ends after the first one has begun"
        assert self._meter is not None, "and with the device known"
        # A card may be steps behind its process, and so may the gradients of the first rank.
        self._meter.synchronize()
        self.ranks.end_step(self.steps)
        super()._look_for_order(seconds)

    def _obey(self, order: Order | Check) -> None:
        if self.fault and isinstance(order, Order):
            self._backend.switch(order.config)
        else:
            super()._obey(order)


class RankGuard(Guard):
    """Ends the search for all ranks where it fails on one.

    None of them switches by itself: where parameters are sharded, ranks that recompute different blocks would wait for
    each other.

    Args:
        backend: The training system.
        settings: What the controller said at the start.
        agent: Who measures.
        say: Tells the user.
        is_first: Whether this rank speaks for all.
    """

    _agent: RankAgent

    def __init__(
        self, backend: WorkerBackend, settings: Settings, agent: RankAgent, say: Say, *, is_first: bool
    ) -> None:
        super().__init__(backend, settings, agent, say if is_first else _silent)
        self._say_own = say

    def _last_words(self, error: BaseException | None) -> tuple[Outcome | None, Ended | Failed]:
        say, self._say = self._say, self._say_own  # memory ran out here, whichever rank this is
        try:
            outcome, last = super()._last_words(error)
        finally:
            self._say = say
        other = self._agent.ranks.last_words() if isinstance(self._agent.ranks, LeadingLine) else None
        is_of_other = other is not None and error is not None and outcome is not Outcome.OOM
        return (other.outcome, other) if is_of_other and other is not None else (outcome, last)

    def _let_go(self, reason: str, config: Config | None = None) -> None:
        del config
        has_failed, self._agent.fault = bool(self._agent.fault), self._agent.fault or reason
        try:
            if not has_failed:
                self._agent.fail(reason)
        except NoStoreError as error:
            super()._let_go(first_line(error))
            return
        if not self._agent.has_begun:
            super()._let_go(reason)


def _join(side: SideChannel | None) -> LeadingLine | FollowingLine:
    board = RankStore()
    if (board.rank == 0) != (side is not None):
        raise Abandon("the ranks of the process group are not those of the environment")
    line = FollowingLine(board) if side is None else LeadingLine(board, side)
    line.join()
    return line


def _silent(level: int, text: str) -> None:
    del level, text


class _NoLine:
    """The line of a rank before it has joined the others."""

    def send(self, message: Message) -> None:
        """Nothing."""

    def receive_order(self) -> Order | Check:
        """Do nothing: nothing comes."""
        raise NoStoreError("the ranks have not met")

    def poll(self, seconds: float) -> Order | Check | None:
        """Do nothing: nothing comes."""

    def wait_for_end(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
