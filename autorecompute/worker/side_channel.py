"""A training's end of the line to a controller that it can do without."""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing.connection import Connection

from autorecompute.worker.protocol import Check, KeepConfig, Line, Message, Order, decode, encode

TRANSFER_SECONDS = 30
"""A controller that stops in the middle of a message is given up after so long."""

PATIENCE_SECONDS = 120.0
"""So long the first step waits for its config. The controller looks at some thousand configs meanwhile."""

FAREWELL_SECONDS = 5.0
"""So long a script that ends waits for the controller to write down what is known."""

GONE = "the search has ended without an answer"


class SearchEndedError(Exception):
    """The search is over: not an error, but the end of what the training does for it."""

    def __init__(self, keep: KeepConfig) -> None:
        super().__init__(keep.message)
        self.keep = keep


class SideChannel(Line):
    """Messages in both directions. Whatever fails raises ``ConnectionError``, and nothing waits without an end.

    Args:
        descriptor: The socket, which this process inherits. Its children do not.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        line = socket.socket(fileno=descriptor)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            line.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TRANSFER_SECONDS, 0))
        self._connection = Connection(line.detach())
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
