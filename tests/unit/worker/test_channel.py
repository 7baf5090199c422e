"""The worker's end of the line, on a real socket."""

import tempfile
from multiprocessing.connection import Listener

import pytest

from autorecompute.plans import Config
from autorecompute.worker.channel import Channel
from autorecompute.worker.protocol import Ended, Order, decode, encode

ORDER = Order(config=Config.parse(["blocks.*/gelu:drop"]), warmup=1, steps=2)


@pytest.fixture
def line():
    """A channel and the controller's end of it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, Listener(f"{folder}/s", family="AF_UNIX") as listener:
        channel = Channel(f"{folder}/s")
        with listener.accept() as controller:
            yield channel, controller
        channel._connection.close()


def test_messages_go_both_ways(line):
    """An order arrives at the worker, and its last words at the controller."""
    channel, controller = line
    controller.send_bytes(encode(ORDER))
    assert channel.receive_order() == ORDER
    channel.send(Ended(steps=3))
    assert decode(controller.recv_bytes()) == Ended(steps=3)


def test_a_worker_without_a_tuner_leaves(line):
    """When the controller is gone, waiting for an order and saying something both end the process."""
    channel, controller = line
    controller.close()
    with pytest.raises(SystemExit, match="the tuner is gone"):
        channel.receive_order()
    with pytest.raises(SystemExit, match="the tuner is gone"):
        channel.send(Ended(steps=3))
