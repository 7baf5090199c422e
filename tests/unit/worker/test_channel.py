import socket
import tempfile
from multiprocessing.connection import Connection, Listener

import pytest

from autorecompute.plans import Config
from autorecompute.worker.protocol import Beat, Channel, Ended, KeepConfig, Order, decode, encode
from autorecompute.worker.training_line import SearchEndedError, SideChannel

ORDER = Order(config=Config.parse(["blocks.*/gelu:drop"]), warmup=1, steps=2)


@pytest.fixture
def line():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, Listener(f"{folder}/s", family="AF_UNIX") as listener:
        channel = Channel(f"{folder}/s")
        with listener.accept() as controller:
            yield channel, controller
        channel._connection.close()


def test_a_worker_without_a_tuner_leaves(line):
    channel, controller = line
    controller.close()
    with pytest.raises(SystemExit, match="the tuner is gone"):
        channel.receive_order()
    with pytest.raises(SystemExit, match="the tuner is gone"):
        channel.send(Ended(steps=3))


@pytest.fixture
def beside():
    theirs, ours = socket.socketpair()
    channel = SideChannel(theirs.detach())
    with Connection(ours.detach()) as controller:
        yield channel, controller
    channel.close()


def test_a_training_waits_for_no_message_and_hears_what_the_controller_said_before_it_left(beside):
    channel, controller = beside
    assert channel.poll(0.0) is None
    controller.send_bytes(encode(ORDER))
    assert channel.poll(0.0) == ORDER
    channel.send(Beat(step=3, expected=100))
    assert decode(controller.recv_bytes()) == Beat(step=3, expected=100)
    controller.send_bytes(encode(KeepConfig(config=None, message="no place for the study")))
    controller.close()
    with pytest.raises(SearchEndedError, match="no place for the study"):
        channel.send(Beat(step=1))


def test_a_controller_that_is_gone_does_not_end_a_training(beside):
    channel, controller = beside
    controller.close()
    with pytest.raises(ConnectionError, match="without an answer"):
        channel.poll(0.0)
    with pytest.raises(ConnectionError, match="without an answer"):
        channel.send(Beat(step=1))


@pytest.mark.parametrize(
    "frame", [b"[" * 200_000, b"{", b"[]", b'{"kind": "Beat"}', b'{"kind": ["Beat"], "value": {}}']
)
def test_what_is_no_message_is_refused(frame):
    with pytest.raises(ValueError):  # noqa: PT011  (what JSON says of it)
        decode(frame)
