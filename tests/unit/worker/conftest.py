import pytest

from autorecompute.worker import agent
from stand_ins.training import FIRST, SECOND, TARGET, Training


@pytest.fixture
def make_training(make_detection, monkeypatch):
    def make(target=TARGET, orders=(FIRST, SECOND)):
        training = Training(make_detection(batch=0), target, orders)
        monkeypatch.setattr(agent, "meter_for", lambda _: training)
        return training

    return make


@pytest.fixture
def training(make_training):
    """One that has begun."""
    training = make_training()
    training.begin()
    return training
