import contextlib

import pytest

from autorecompute.meters.cuda import CudaMeter
from autorecompute.units import GIB
from fake_gpu import FakeCard, FakeCuda, FakeNvml


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def card():
    return FakeCard(total_bytes=40 * GIB)


@pytest.fixture
def nvml(card):
    with FakeNvml(card).installed() as nvml:
        yield nvml


@pytest.fixture
def begin(nvml):
    with contextlib.ExitStack() as stack:

        def begin(**options):
            cuda = stack.enter_context(FakeCuda(nvml.cards[0], **options).installed())
            return cuda, CudaMeter()

        yield begin
