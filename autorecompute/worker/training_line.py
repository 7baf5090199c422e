"""A training's line to its controller, which it can do without, and how its ranks hear of the same order."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from autorecompute.measurement import Outcome
from autorecompute.worker.agent import Abandon
from autorecompute.worker.protocol import (
    Beat,
    Check,
    Ended,
    Failed,
    KeepConfig,
    Line,
    Message,
    Order,
    decode,
    encode,
    explain_end,
    limited,
    merge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


TRANSFER_SECONDS = 30  # after which a controller that stops in the middle of a message is given up
PATIENCE_SECONDS = 120.0  # of the first step for its config: the controller looks at some thousand configs meanwhile
FAREWELL_SECONDS = 5.0  # of a script that ends, for the controller to write down what is known
GONE = "the search has ended without an answer"


class SearchEndedError(Exception):
    """The search is over: not an error, but the end of what the training does for it."""

    def __init__(self, keep: KeepConfig) -> None:
        super().__init__(keep.message)
        self.keep = keep


class SideChannel(Line):
    """Messages in both directions. Whatever fails raises ``ConnectionError``, and nothing waits without an end.

    The socket of this number is inherited by this process, and not by its children.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._connection = limited(socket.socket(fileno=descriptor), TRANSFER_SECONDS)
        self._identity = os.fstat(descriptor).st_ino
        # A process that the script forks would otherwise keep the line open.
        os.register_at_fork(after_in_child=self.close)

    def send(self, message: Message) -> None:
        """Say something; ``SearchEndedError`` where the controller has ended the search before."""
        try:
            self._require_line()
            self._connection.send_bytes(encode(message))
        except OSError as error:
            # What it said before it hung up can still be read.
            self.poll(0.0)
            raise ConnectionError(GONE) from error

    def receive_order(self) -> Order | Check:
        """Wait for the first order; ``SearchEndedError`` where nothing is to be measured."""
        order = self.poll(PATIENCE_SECONDS)
        if order is None:
            raise ConnectionError(GONE)
        return order

    def poll(self, seconds: float) -> Order | Check | None:
        """Return the next order, if it comes within so many seconds; ``SearchEndedError`` where the search is over."""
        try:
            self._require_line()
            if not self._connection.poll(seconds):
                return None
            message = decode(self._connection.recv_bytes())
        except (EOFError, OSError, ValueError) as error:
            raise ConnectionError(GONE) from error
        if isinstance(message, KeepConfig):
            raise SearchEndedError(message)
        assert isinstance(message, Order | Check), "a training gets orders and nothing else"
        return message

    def wait_for_end(self) -> None:
        """Wait a little for the controller to end, so that a command right after the script finds the study whole."""
        try:
            while self.poll(FAREWELL_SECONDS) is not None:
                pass
        except (ConnectionError, SearchEndedError):
            self.close()

    def close(self) -> None:
        """Hang up."""
        if not self._connection.closed and self._is_line():
            self._connection.close()

    def _require_line(self) -> None:
        if self._connection.closed or not self._is_line():
            raise OSError("the line is closed")

    def _is_line(self) -> bool:
        # A script that closes all files it does not know may have opened another one under the number.
        try:
            return os.fstat(self._connection.fileno()).st_ino == self._identity
        except OSError:
            return False


LOOK_SECONDS = 0.005  # between two looks of one that waits
LOOKS = 20  # of one that waits a moment, at least
JOIN_SECONDS = 20.0  # of a rank that is about to train, for the others
JOIN_SHARE = 0.25  # of what the script has given its own collectives: no rank waits longer for the others
FOLLOW_SECONDS = 2 * PATIENCE_SECONDS  # for the first order: the first rank waits for all others, and the controller
FOLLOWING_TIMES = 4  # as long as the first rank waits for an order, the others wait for its word
LATE_STEPS = 5  # ranks are a step apart at most: one that has not answered after so many measures nothing
NUMBERS = itertools.count()  # of this process's trainings: each rank follows the same ones, in the same order


def _stay(reason: str) -> KeepConfig:
    return KeepConfig(config=None, message=explain_end(reason))


FAULT, VERDICT, GO = "fault", "verdict", b"go"

Due = tuple[int, "Order | Check | KeepConfig | None"]
"""An order and the step at whose end it is due; none where nothing was ordered at once."""


class RanksLine(Line):
    """Base of both ends. Their notes are in a ``torch.distributed.Store``: that of the script's process group.

    Where it does not answer, ``ConnectionError`` is raised. ``patience_seconds`` is how long the script has its own
    collectives wait.
    """

    def __init__(self, store: Any, rank: int, world_size: int, patience_seconds: float) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._join_seconds = min(JOIN_SECONDS, JOIN_SHARE * patience_seconds)
        self._orders = self._answers = self._step = 0
        self._due: deque[Due] = deque()

    def end_step(self, step: int) -> None:
        """Note that so many steps have ended, and that the device is done with them."""
        self._step = step

    def _agree(self, verdict: bytes) -> None:
        """Say whether all are here; whoever speaks first has spoken for all."""
        said = self._write(VERDICT, verdict)
        if said != GO:
            raise Abandon(said.decode())

    def _take_first(self) -> Order | Check:
        order = self._take()
        assert order is not None, "an order before the first step is due at once"
        return order

    def _take(self) -> Order | Check | None:
        if not self._due or self._due[0][0] > self._step:
            return None
        _, order = self._due.popleft()
        if isinstance(order, KeepConfig):
            raise SearchEndedError(order)
        return order

    def _offer(self, order: Order | Check | KeepConfig | None, step: int) -> bool:
        """Write down the next order; return False where another rank has given up waiting for it, which then holds."""
        self._orders += 1
        note = b"%d:%b" % (step, b"" if order is None else encode(order))
        said = self._write(f"order/{self._orders}", note)
        self._due.append(_read_order(said))
        return said == note

    def _answer_key(self, rank: int) -> str:
        return f"said/{self._answers}/{rank}"

    def _write(self, key: str, note: bytes) -> bytes:
        """Write a note, unless another rank has written one under this key; return what is there now."""
        # The answer says that it was written, which that of a plain write does not.
        return bytes(self._call(self._store.compare_set, key, "", note.decode()))

    def _has(self, *keys: str) -> bool:
        return bool(self._call(self._store.check, list(keys)))

    def _read(self, key: str) -> bytes | None:
        return bytes(self._call(self._store.get, key)) if self._has(key) else None

    def _wait(self, keys: Sequence[str], seconds: float, *, unless: str) -> bool:
        """Tell whether all these notes come within so many seconds, and before the one that says that they will not."""
        deadline = time.monotonic() + seconds
        while not self._has(*keys):
            if time.monotonic() >= deadline or self._has(unless):
                return False
            time.sleep(min(LOOK_SECONDS, seconds / LOOKS))
        return True

    @staticmethod
    def _call(method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error


class FollowingLine(RanksLine):
    """Line of a rank that gets its orders from the first one."""

    def join(self) -> None:
        """Wait until all ranks are about to train; ``Abandon`` where one of them is not."""
        self._write(f"here/{self._rank}", b"here")
        self._wait([VERDICT], 2 * self._join_seconds, unless=VERDICT)
        self._agree(b"the first rank is not followed by autorecompute")

    def send(self, message: Message) -> None:
        """Say something to the first rank."""
        if isinstance(message, Ended):
            self.report_fault(Failed(outcome=Outcome.LOST, message="its script has ended"))
        elif isinstance(message, Failed):
            self.report_fault(message)
        elif not isinstance(message, Beat):
            self._answers += 1
            self._write(self._answer_key(self._rank), encode(message))

    def report_fault(self, fault: Failed) -> None:
        """Say that this rank measures nothing any more."""
        message = f"rank {self._rank}: {fault.message}"
        self._write(FAULT, encode(Failed(outcome=fault.outcome, message=message)))

    def receive_order(self) -> Order | Check:
        """Wait for an order before the first step; ``SearchEndedError`` where nothing is to be measured."""
        if not self._hears(FOLLOW_SECONDS):
            self._offer(_stay(f"rank {self._rank} has got no order"), 0)
        return self._take_first()

    def poll(self, seconds: float) -> Order | Check | None:
        """Return the order that is due now; ``SearchEndedError`` where the search is over."""
        # When all have answered, the first rank says what is next; nothing, where it says so too late.
        if not self._due and not self._hears(FOLLOWING_TIMES * seconds) and seconds:
            self._offer(None, self._step)
        if self._due and self._due[0][0] < self._step and isinstance(self._due[0][1], Order | Check):
            self.report_fault(Failed(outcome=Outcome.LOST, message="it is not at the step that the first rank is at"))
        return self._take()

    def _hears(self, seconds: float) -> bool:
        key = f"order/{self._orders + 1}"
        note = self._read(key) if self._wait([key], seconds, unless=key) else None
        if note is not None:
            self._orders += 1
            self._due.append(_read_order(note))
        return note is not None


def _read_order(note: bytes) -> Due:
    step, _, frame = note.partition(b":")
    order = decode(frame) if frame else None
    assert not isinstance(order, Beat | Ended | Failed), "an order is one"
    return int(step), order  # type: ignore[return-value]


class LeadingLine(RanksLine):
    """Line of the first rank, beside the one to the controller."""

    def __init__(self, side: SideChannel, *store: Any) -> None:
        super().__init__(*store)
        self._side = side
        self._own: Message | None = None
        self._looks = 0
        self._keep: KeepConfig | None = None
        self._is_over = False

    def join(self) -> None:
        """Wait until all ranks are about to train; ``Abandon`` where one of them is not."""
        here = {str(rank): f"here/{rank}" for rank in range(1, self._world_size)}
        seconds = self._join_seconds
        if self._wait(list(here.values()), seconds, unless=VERDICT):
            self._agree(GO)
        absent = [rank for rank, key in here.items() if not self._has(key)]
        if absent:
            reason = f"rank {', '.join(absent[:8])} did not begin to train with it within {seconds:.0f} s"
            self._agree(reason.encode())

    def send(self, message: Message) -> None:
        """Say something to the controller, once all ranks have."""
        if isinstance(message, Beat):
            self._tell(message)
        elif isinstance(message, Ended | Failed):
            self._tell(message)
            self._end(_stay(getattr(message, "message", "the script has ended")))
        else:
            self._own, self._looks = message, 0
            self._answers += 1

    def report_fault(self, fault: Failed) -> None:
        """End the search for all ranks: at once before the first step, and else when the next order is due."""
        self._keep = self._keep or _stay(fault.message)
        if not self._orders:
            self._end(self._keep)

    def receive_order(self) -> Order | Check:
        """Wait for an order before the first step; ``SearchEndedError`` where nothing is to be measured."""
        if self._gather(PATIENCE_SECONDS):
            order = self._ask(PATIENCE_SECONDS) or _stay(GONE)
        else:
            order = self._keep or _stay("the ranks do not answer")
        self._offer(order, 0)
        return self._take_first()

    def poll(self, seconds: float) -> Order | Check | None:
        """Return the order that is due now; ``SearchEndedError`` where the search is over.

        One that does not follow an answer at once is due when the next step ends.
        """
        if not self._due:
            order = self._next(seconds)
            # All ranks have answered, and wait for this; one that has gone on has said that there is none.
            is_at_once = bool(seconds) and self._offer(order, self._step)
            if order is not None and not is_at_once:
                self._offer(order, self._step + 1)
        return self._take()

    def wait_for_end(self) -> None:
        """Wait a little for the controller to end."""
        self._side.wait_for_end()

    def close(self) -> None:
        """Hang up."""
        self._side.close()

    def _end(self, keep: KeepConfig) -> None:
        """End the search for all ranks: what is on stays on, whatever step each of them is at."""
        if not self._is_over:
            self._is_over = True
            self._offer(keep, 0)

    def _next(self, seconds: float) -> Order | Check | KeepConfig | None:
        self._hear_fault()
        if self._keep is None and self._own is not None and not self._gather(seconds):
            self._looks += 1
            if self._looks > LATE_STEPS:
                self._keep = _stay("not all ranks measure at the same steps")
        if self._keep is not None or self._own is not None:
            return self._keep
        return self._ask(seconds)

    def _gather(self, seconds: float) -> bool:
        """Tell the controller what all ranks have answered, if all of them have."""
        keys = {rank: self._answer_key(rank) for rank in range(1, self._world_size)}
        if not self._wait(list(keys.values()), seconds, unless=FAULT):
            self._hear_fault()
            return False
        assert self._own is not None, "the first rank has answered before it looks for the others"
        said = {0: self._own}
        for rank, key in keys.items():
            note = self._read(key)
            assert note is not None, "a note that was there stays"
            said[rank] = decode(note)
        self._own = None
        merged = merge(said)
        self._tell(merged)
        if isinstance(merged, Failed):
            self._keep = _stay(merged.message)
        return self._keep is None

    def _hear_fault(self) -> None:
        fault = self.read_fault() if self._keep is None else None
        if fault is not None:
            self._keep = _stay(fault.message)

    def read_fault(self) -> Failed | None:
        """Return another rank's failure, if one has ended with it."""
        note = self._read(FAULT)
        fault = decode(note) if note is not None else None
        assert isinstance(fault, Failed | None), "a fault is told as one"
        return fault

    def _ask(self, seconds: float) -> Order | Check | KeepConfig | None:
        try:
            return self._side.poll(seconds)
        except SearchEndedError as end:
            return end.keep
        except ConnectionError:
            return _stay(GONE)

    def _tell(self, message: Message) -> None:
        try:
            self._side.send(message)
        except SearchEndedError as end:
            self._keep = end.keep
        except ConnectionError:
            self._keep = self._keep or _stay(GONE)


def join_ranks(side: SideChannel | None) -> LeadingLine | FollowingLine:
    """Return this rank's line, once all ranks are about to train; the first one alone has a line to the controller.

    Raises:
        Abandon: the ranks are not together.
        ConnectionError: they have nothing to leave notes in, or it does not answer.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise ConnectionError("the ranks have no process group when they begin to train")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    try:
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public gives a group's store)
        # Of its own connection, where it has one: a read must not wait for the script's.
        own = store.clone() if hasattr(store, "clone") else store
    except (RuntimeError, ValueError) as error:
        raise ConnectionError(f"the process group has no store: {error}") from error
    notes = distributed.PrefixStore(f"autorecompute/{next(NUMBERS)}", own)
    if (rank == 0) != (side is not None):
        raise Abandon("the ranks of the process group are not those of the environment")
    place = notes, rank, world_size, float(store.timeout.total_seconds())
    line = FollowingLine(*place) if side is None else LeadingLine(side, *place)
    line.join()
    return line
