"""The worker's end of the line to its controller."""

from __future__ import annotations

from multiprocessing.connection import Client, Connection
from typing import Protocol

from autorecompute.worker.protocol import Check, Message, Order, decode, encode


class ControllerLine(Protocol):
    """What an agent asks of its end."""

    def send(self, message: Message) -> None:
        """Say something."""
        ...

    def receive_order(self) -> Order | Check:
        """Wait for the next order."""
        ...


class Channel:
    """Messages in both directions; JSON only, nothing is ever unpickled."""

    def __init__(self, address: str) -> None:
        connection = Client(address, family="AF_UNIX")
        assert isinstance(connection, Connection)
        self._connection = connection

    def send(self, message: Message) -> None:
        """Say something; a controller that is gone ends this process."""
        try:
            self._connection.send_bytes(encode(message))
        except OSError as error:
            raise SystemExit("autorecompute: the tuner is gone") from error

    def receive_order(self) -> Order | Check:
        """Wait for the next order; a controller that is gone ends this process."""
        try:
            message = decode(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise SystemExit("autorecompute: the tuner is gone") from error
        assert isinstance(message, Order | Check), "a controller gives orders and nothing else"
        return message
