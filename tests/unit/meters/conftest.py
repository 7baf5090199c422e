"""A card on paper, with what tells of it in the places of pynvml and torch."""

import contextlib

import pytest

from autorecompute.meters.cuda import CudaMeter
from autorecompute.units import GIB
from fake_gpu import FakeCard, FakeCuda, FakeNvml


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    """The variables of the machine that runs the tests say nothing."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def card():
    """A card with 40 GiB, of which the driver keeps half a GiB."""
    return FakeCard(total_bytes=40 * GIB)


@pytest.fixture
def nvml(card):
    """A driver that shows the card."""
    with FakeNvml(card).installed() as nvml:
        yield nvml


@pytest.fixture
def begin(nvml):
    """Takes the card into use, and makes the meter of that process."""
    with contextlib.ExitStack() as stack:

        def begin(**options):
            cuda = stack.enter_context(FakeCuda(nvml.cards[0], **options).installed())
            return cuda, CudaMeter()

        yield begin
