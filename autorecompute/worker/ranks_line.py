"""The ends of a training's line where several ranks train: the first one has the controller, and hands on its orders.

All switch at the same step, without a collective of ours. Where all ranks have answered at the end of step s, all of
them wait a moment for the order that follows, and it is due at once. Whoever has waited long enough writes down that
there is none, which then holds for all. An order that takes longer is written down at the end of a later step t, and is
due at the end of step t + 1: each rank needs the first one's gradients to get there, so whoever is there finds it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.worker.agent import Abandon
from autorecompute.worker.protocol import (
    Beat,
    Check,
    Ended,
    Failed,
    Message,
    Order,
    Stay,
    decode,
    encode,
    explain_end,
)
from autorecompute.worker.side_channel import PATIENCE_SECONDS, StayError

if TYPE_CHECKING:
    from autorecompute.worker.noticeboard import Noticeboard

JOIN_SECONDS = 20.0
"""So long a rank that is about to train waits for the others, and never longer than a share of what the script has
given its own collectives."""

JOIN_SHARE = 0.25

FOLLOW_SECONDS = 2 * PATIENCE_SECONDS
"""So long a rank waits for the first order: the first rank waits for all others, and then for the controller."""

FOLLOWING_TIMES = 4
"""A rank waits for the first one's word so many times as long as that one waits for an order."""

FAULT, VERDICT, GO = "fault", "verdict", b"go"

Due = tuple[int, "Order | Check | Stay | None"]
"""An order and the step at whose end it is due; none where nothing was ordered at once."""


class RanksLine:
    """What both ends share.

    Args:
        board: The notes of all ranks.
    """

    def __init__(self, board: Noticeboard) -> None:
        self._board = board
        self._orders = self._answers = self._step = 0
        self._due: deque[Due] = deque()

    def end_step(self, step: int) -> None:
        """Told that so many steps have ended, and that the device is done with them."""
        self._step = step

    def _agree(self, verdict: bytes) -> None:
        """Say whether all are here; whoever speaks first has spoken for all."""
        said = self._board.offer(VERDICT, verdict)
        if said != GO:
            raise Abandon(said.decode())

    def _join_seconds(self) -> float:
        """Return how long ranks wait for each other before the first step."""
        return min(JOIN_SECONDS, JOIN_SHARE * self._board.patience_seconds)

    def _take(self) -> Order | Check | None:
        """Return the order that is due, if one is."""
        if not self._due or self._due[0][0] > self._step:
            return None
        _, order = self._due.popleft()
        if isinstance(order, Stay):
            raise StayError(order)
        return order

    def _offer(self, order: Order | Check | Stay | None, step: int) -> bool:
        """Write down the next order, unless another rank has given up waiting for it, which then holds.

        Returns:
            Whether it is this one that holds.
        """
        self._orders += 1
        note = b"%d:%b" % (step, b"" if order is None else encode(order))
        said = self._board.offer(f"order/{self._orders}", note)
        self._due.append(read_order(said))
        return said == note

    def _answer_key(self, rank: int) -> str:
        return f"said/{self._answers}/{rank}"


class FollowingLine(RanksLine):
    """That of a rank which gets its orders from the first one."""

    def join(self) -> None:
        """Wait until all ranks are about to train.

        Raises:
            Abandon: one of them is not.
        """
        self._board.offer(f"here/{self._board.rank}", b"here")
        self._board.wait([VERDICT], 2 * self._join_seconds(), unless=VERDICT)
        self._agree(b"the first rank is not followed by autorecompute")

    def send(self, message: Message) -> None:
        """Say something to the first rank."""
        if isinstance(message, Ended):
            self.tell_fault(Failed(outcome=Outcome.LOST, message="its script has ended"))
        elif isinstance(message, Failed):
            self.tell_fault(message)
        elif not isinstance(message, Beat):
            self._answers += 1
            self._board.offer(self._answer_key(self._board.rank), encode(message))

    def tell_fault(self, fault: Failed) -> None:
        """Say that this rank measures nothing any more."""
        message = f"rank {self._board.rank}: {fault.message}"
        self._board.offer(FAULT, encode(Failed(outcome=fault.outcome, message=message)))

    def receive_order(self) -> Order | Check:
        """Wait for an order before the first step.

        Raises:
            StayError: nothing is to be measured.
        """
        key = f"order/{self._orders + 1}"
        if not self._board.wait([key], FOLLOW_SECONDS, unless=key):
            self._offer(Stay(config=None, message=explain_end(f"rank {self._board.rank} has got no order")), 0)
        else:
            self._look()
        order = self._take()
        assert order is not None, "an order before the first step is due at once"
        return order

    def poll(self, seconds: float) -> Order | Check | None:
        """Return the order that is due now.

        Raises:
            StayError: the search is over.
        """
        if seconds and not self._due:
            self._await(FOLLOWING_TIMES * seconds)
        if not self._due:
            self._look()
        if self._due and self._due[0][0] < self._step and isinstance(self._due[0][1], Order | Check):
            self.tell_fault(Failed(outcome=Outcome.LOST, message="it is not at the step that the first rank is at"))
        return self._take()

    def wait_for_end(self) -> None:
        """Do nothing: the first rank waits."""

    def close(self) -> None:
        """Do nothing: others may still read what was written."""

    def _await(self, seconds: float) -> None:
        """Wait for what the first rank says when all have answered; nothing, where it says so too late."""
        key = f"order/{self._orders + 1}"
        if not self._board.wait([key], seconds, unless=key):
            self._offer(None, self._step)

    def _look(self) -> None:
        note = self._board.read(f"order/{self._orders + 1}")
        if note is not None:
            self._orders += 1
            self._due.append(read_order(note))


def read_order(note: bytes) -> Due:
    """Return what one rank has written down for all."""
    step, _, frame = note.partition(b":")
    order = decode(frame) if frame else None
    assert not isinstance(order, Beat | Ended | Failed), "an order is one"
    return int(step), order  # type: ignore[return-value]
