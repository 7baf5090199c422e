"""The first rank's end of the line among ranks: it has the controller, and hands on its orders."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from autorecompute.worker.merging import merge
from autorecompute.worker.protocol import Beat, Ended, Failed, Message, Stay, decode, explain_end
from autorecompute.worker.ranks_line import FAULT, GO, VERDICT, RanksLine
from autorecompute.worker.side_channel import GONE, PATIENCE_SECONDS, ControllerGoneError, StayError

if TYPE_CHECKING:
    from autorecompute.worker.noticeboard import Noticeboard
    from autorecompute.worker.protocol import Check, Order
    from autorecompute.worker.side_channel import SideChannel

LATE_STEPS = 5
"""Ranks that train together are a step apart at most: one that has not answered after so many measures nothing."""


class LeadingLine(RanksLine):
    """That of the first rank.

    Args:
        board: The notes of all ranks.
        side: The line to the controller.
    """

    def __init__(self, board: Noticeboard, side: SideChannel) -> None:
        super().__init__(board)
        self._side = side
        self._own: Message | None = None
        self._looks = 0
        self._stay: Stay | None = None
        self._is_over = False

    def join(self) -> None:
        """Wait until all ranks are about to train.

        Raises:
            Abandon: one of them is not.
        """
        others = range(1, self._board.world_size)
        here = [f"here/{rank}" for rank in others]
        seconds = self._join_seconds()
        if self._board.wait(here, seconds, unless=VERDICT):
            self._agree(GO)
        absent = [str(rank) for rank, key in zip(others, here, strict=True) if not self._board.has(key)]
        if absent:
            reason = f"rank {', '.join(absent[:8])} did not begin to train with it within {seconds:.0f} s"
            self._agree(reason.encode())

    def send(self, message: Message) -> None:
        """Say something to the controller, once all ranks have."""
        if isinstance(message, Beat):
            self._tell(message)
        elif isinstance(message, Ended | Failed):
            self._tell(message)
            self._end(Stay(config=None, message=explain_end(getattr(message, "message", "the script has ended"))))
        else:
            self._own, self._looks = message, 0
            self._answers += 1

    def tell_fault(self, fault: Failed) -> None:
        """End the search for all ranks: at once before the first step, and else when the next order is due."""
        self._stay = self._stay or Stay(config=None, message=explain_end(fault.message))
        if not self._orders:
            self._end(self._stay)

    def receive_order(self) -> Order | Check:
        """Wait for an order before the first step.

        Raises:
            StayError: nothing is to be measured.
        """
        if not self._gather(PATIENCE_SECONDS):
            self._offer(self._stay or Stay(config=None, message=explain_end("the ranks do not answer")), 0)
        else:
            self._offer(self._ask(PATIENCE_SECONDS) or Stay(config=None, message=explain_end(GONE)), 0)
        order = self._take()
        assert order is not None, "an order before the first step is due at once"
        return order

    def poll(self, seconds: float) -> Order | Check | None:
        """Return the order that is due now. One that does not follow an answer at once is due when the next step ends.

        Raises:
            StayError: the search is over.
        """
        if not self._due:
            order = self._next(seconds)
            # All ranks have answered, and wait for this; one that has gone on has said that there is none.
            is_at_once = bool(seconds) and self._offer(order, self._step)
            if order is not None and not is_at_once:
                self._offer(order, self._step + 1)
        return self._take()

    def last_words(self) -> Failed | None:
        """Return what another rank ended with, if one has."""
        with contextlib.suppress(Exception):  # this process ends, and the store may have gone before it
            note = self._board.read(FAULT)
            fault = decode(note) if note is not None else None
            return fault if isinstance(fault, Failed) else None
        return None

    def wait_for_end(self) -> None:
        """Wait a little for the controller to end."""
        self._side.wait_for_end()

    def close(self) -> None:
        """Hangs up."""
        self._side.close()

    def _end(self, stay: Stay) -> None:
        """End the search for all ranks: what is on stays on, whatever step each of them is at."""
        if not self._is_over:
            self._is_over = True
            self._offer(stay, 0)

    def _next(self, seconds: float) -> Order | Check | Stay | None:
        self._hear_fault()
        if self._stay is None and self._own is not None and not self._gather(seconds):
            self._looks += 1
            if self._looks > LATE_STEPS:
                self._stay = Stay(config=None, message=explain_end("not all ranks measure at the same steps"))
        if self._stay is not None or self._own is not None:
            return self._stay
        return self._ask(seconds)

    def _gather(self, seconds: float) -> bool:
        """Tell the controller what all ranks have answered, if all of them have."""
        keys = {rank: self._answer_key(rank) for rank in range(1, self._board.world_size)}
        if not self._board.wait(list(keys.values()), seconds, unless=FAULT):
            self._hear_fault()
            return False
        assert self._own is not None, "the first rank has answered before it looks for the others"
        said = {0: self._own}
        for rank, key in keys.items():
            note = self._board.read(key)
            assert note is not None, "a note that was there stays"
            said[rank] = decode(note)
        self._own = None
        merged = merge(said)
        self._tell(merged)
        if isinstance(merged, Failed):
            self._stay = Stay(config=None, message=explain_end(merged.message))
        return self._stay is None

    def _hear_fault(self) -> None:
        note = self._board.read(FAULT) if self._stay is None else None
        if note is not None:
            fault = decode(note)
            assert isinstance(fault, Failed), "a fault is told as one"
            self._stay = Stay(config=None, message=explain_end(fault.message))

    def _ask(self, seconds: float) -> Order | Check | Stay | None:
        try:
            return self._side.poll(seconds)
        except StayError as end:
            return end.stay
        except ControllerGoneError:
            return Stay(config=None, message=explain_end(GONE))

    def _tell(self, message: Message) -> None:
        try:
            self._side.send(message)
        except StayError as end:
            self._stay = end.stay
        except ControllerGoneError:
            self._stay = self._stay or Stay(config=None, message=explain_end(GONE))
