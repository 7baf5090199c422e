from unittest import mock

import pytest
from torch.distributed import HashStore

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.worker.protocol import Failed, KeepConfig, Order
from autorecompute.worker.training_line import FollowingLine, LeadingLine, SearchEndedError

MOMENT = 0.001
ORDER = Order(config=Config.parse(["blocks.*/gelu:drop"]), warmup=0, steps=1)


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
