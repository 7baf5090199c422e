"""A training's end of the line, on a real socket: whatever happens at the other end, the training can go on."""

import socket
from multiprocessing.connection import Connection

import pytest

from autorecompute.plans import Config
from autorecompute.worker.protocol import Beat, Order, Stay, decode, encode
from autorecompute.worker.side_channel import ControllerGoneError, SideChannel, StayError

ORDER = Order(config=Config.parse(["blocks.*/gelu:drop"]), warmup=1, steps=2)


@pytest.fixture
def line():
    """A training's end and the controller's."""
    theirs, ours = socket.socketpair()
    channel = SideChannel(theirs.detach())
    with Connection(ours.detach()) as controller:
        yield channel, controller
    channel.close()


def test_messages_go_both_ways_and_none_is_waited_for(line):
    """A step arrives at the controller, an order at the training, and where there is none the training goes on."""
    channel, controller = line
    assert channel.poll(0.0) is None
    controller.send_bytes(encode(ORDER))
    assert channel.poll(0.0) == ORDER
    channel.send(Beat(step=3, expected=100))
    assert decode(controller.recv_bytes()) == Beat(step=3, expected=100)


def test_a_controller_that_is_gone_is_an_error_of_its_own(line):
    """Nothing ends the process."""
    channel, controller = line
    controller.close()
    with pytest.raises(ControllerGoneError):
        channel.poll(0.0)
    with pytest.raises(ControllerGoneError):
        channel.send(Beat(step=1))


def test_what_the_controller_said_before_it_left_is_heard(line):
    """A search that cannot begin says so, whether the training listens or speaks first."""
    channel, controller = line
    controller.send_bytes(encode(Stay(config=None, message="no place for the study")))
    controller.close()
    with pytest.raises(StayError, match="no place for the study"):
        channel.send(Beat(step=1))
