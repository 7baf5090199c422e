import contextlib

import pytest
import torch  # noqa: F401  (the agent asks its core, which stays while a fake is installed in its place)

from autorecompute.plans import Config
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from autorecompute.worker.agent import Agent
from autorecompute.worker.protocol import Order, Settings
from fake_gpu import FakeCard, FakeCuda, FakeNvml
from stand_ins.training import Detached, Training

BATCH = 8
ORDER = Order(config=Config(), warmup=1, steps=2)
MODEL = 2 * GIB
POWER_CAP, IDLE = 0x004, 0x001


class Loss(Detached):
    """A scalar on the card: whoever reads it waits until the card is idle."""

    def __init__(self, card):
        self.card = card

    def __float__(self):
        self.card.clock_reasons = IDLE
        return 1.0


class OnCard(Training):
    """A script with 2 GiB of weights on the card before the session exists."""

    def __init__(self, make_detection, **settings):
        super().__init__(None, BATCH, ())
        self.card = FakeCard(total_bytes=40 * GIB)
        self.cuda = FakeCuda(self.card)
        self.cuda.allocate(MODEL)
        self.detection = make_detection(device=Device(kind="cuda", name=self.card.name, total_bytes=40 * GIB))
        self.agent = Agent(self, self, Settings(target_batch=BATCH, **settings))

    def train(self, steps, *, activations):
        self.agent.on_session(lambda: self.detection)
        for _ in range(steps):
            self.agent.on_forward(BATCH, None)
            block = self.cuda.allocate(activations)
            self.card.clock_reasons = POWER_CAP
            self.agent.on_loss(Loss(self.card), Loss(self.card))
            self.cuda.free(block)
            self.agent.on_step(self)

    def receive_order(self):
        return ORDER


@pytest.fixture
def make_training(make_detection):
    with contextlib.ExitStack() as installed:

        def make(**settings):
            training = OnCard(make_detection, **settings)
            for stand_in in (FakeNvml(training.card), training.cuda):
                installed.enter_context(stand_in.installed())
            return training

        yield make


def test_the_detection_tells_what_lies_outside_of_the_allocator(make_training):
    training = make_training()
    training.card.processes[1] = 3 * GIB
    training.train(0, activations=0)
    assert training.sent[0].resting_bytes == MODEL
    assert training.sent[0].outside_bytes == 3 * GIB + 400 * MIB


@pytest.mark.parametrize("watch", [None, ORDER])
def test_a_trial_and_a_watched_run_are_held_to_the_limit(make_training, watch):
    training = make_training(limit_bytes=8 * GIB, watch=watch)
    with pytest.raises(training.cuda.OutOfMemoryError):
        training.train(4, activations=7 * GIB)


@pytest.mark.parametrize("settings", [{}, {"watch": ORDER}])
def test_a_card_at_work_is_seen_at_work(make_training, settings):
    """It is looked at before the loss is fetched: then it would be idle."""
    training = make_training(**settings)
    training.train(4, activations=GIB)
    assert training.sent[-1].marks == ("power cap",)
    assert training.sent[-1].retries == 0
