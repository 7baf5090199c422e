import socket
import tempfile
from multiprocessing.connection import Connection, Listener
from unittest import mock

import pytest
from torch.distributed import HashStore

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.worker.protocol import Beat, Channel, Ended, Failed, KeepConfig, Order, decode, encode
from autorecompute.worker.training_line import FollowingLine, LeadingLine, SearchEndedError, SideChannel

ORDER = Order(config=Config.parse(["blocks.*/gelu:drop"]), warmup=1, steps=2)


def test_a_worker_without_a_tuner_leaves():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, Listener(f"{folder}/s", family="AF_UNIX") as listener:
        channel = Channel(f"{folder}/s")
        listener.accept().close()
        for speak in (channel.receive_order, lambda: channel.send(Ended(steps=3))):
            with pytest.raises(SystemExit, match="the tuner is gone"):
                speak()
        channel._connection.close()


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
    for speak in (lambda: channel.poll(0.0), lambda: channel.send(Beat(step=1))):
        with pytest.raises(ConnectionError, match="without an answer"):
            speak()


MOMENT = 0.001


class Controller:
    def __init__(self):
        self.orders, self.heard = [], []

    def send(self, message):
        self.heard.append(message)

    def poll(self, _seconds):
        return self.orders.pop(0) if self.orders else None


class Ranks:
    def __init__(self):
        self.controller, store = Controller(), HashStore()
        self.first = LeadingLine(self.controller, store, 0, 2, 60.0)
        self.second = FollowingLine(store, 1, 2, 60.0)
        self.step = 0

    def answer(self, measurement, *lines):
        for line in lines or (self.first, self.second):
            line.send(measurement)

    def end_step(self):
        self.step += 1
        self.first.end_step(self.step)
        self.second.end_step(self.step)

    def poll(self, seconds=0.0):
        return self.first.poll(seconds), self.second.poll(seconds)


@pytest.fixture
def ranks():
    ranks = Ranks()
    ranks.end_step()
    return ranks


def test_a_rank_that_goes_on_before_the_order_gets_it_a_step_later(ranks, make_measurement):
    ranks.controller.orders.append(ORDER)
    ranks.answer(make_measurement(), ranks.second)
    assert ranks.second.poll(MOMENT) is None
    ranks.answer(make_measurement(), ranks.first)
    assert ranks.first.poll(MOMENT) is None
    ranks.end_step()
    assert ranks.poll() == (ORDER, ORDER)


def test_an_answer_that_is_late_is_still_the_answer(ranks, make_measurement):
    ranks.answer(make_measurement(), ranks.first)
    assert ranks.first.poll(MOMENT) is None
    ranks.answer(make_measurement(), ranks.second)
    assert ranks.second.poll(MOMENT) is None
    ranks.controller.orders.append(ORDER)
    ranks.end_step()
    assert ranks.poll() == (None, None)
    ranks.end_step()
    assert ranks.poll() == (ORDER, ORDER)
    ranks.controller.orders.append(ORDER)
    ranks.answer(make_measurement())
    assert ranks.poll(MOMENT) == (ORDER, ORDER)
    assert len(ranks.controller.heard) == 2


def test_a_rank_that_measures_nothing_ends_the_search_of_both(ranks, make_measurement):
    ranks.answer(make_measurement(), ranks.first)
    ranks.second.report_fault(Failed(outcome=Outcome.LOST, message="its meter is broken"))
    for line in (ranks.first, ranks.second):
        with pytest.raises(SearchEndedError, match="rank 1: its meter is broken"):
            line.poll(MOMENT if line is ranks.first else 0.0)


def test_the_end_of_the_search_is_at_the_same_step_too(ranks, make_measurement):
    ranks.controller.poll = mock.Mock(
        side_effect=SearchEndedError(KeepConfig(config=None, message="the search is over"))
    )
    ranks.answer(make_measurement())
    for line in (ranks.first, ranks.second):
        with pytest.raises(SearchEndedError, match="is over"):
            line.poll(MOMENT)
