import pytest

from autorecompute.worker import agent
from stand_ins.training import FIRST, SECOND, TARGET, Training


@pytest.fixture
def make_training(make_detection, monkeypatch):
    def make(target=TARGET, orders=(FIRST, SECOND), *, begins=False):
        training = Training(make_detection(batch=0), target, orders)
        monkeypatch.setattr(agent, "meter_for", lambda _: training)
        if begins:
            training.begin()
        return training

    return make


@pytest.fixture
def training(make_training):
    """One that has begun."""
    return make_training(begins=True)
