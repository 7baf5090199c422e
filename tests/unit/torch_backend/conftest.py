"""Every small model in turn, on one thread."""

from __future__ import annotations

import socket

import pytest
import torch

import tiny_models


@pytest.fixture(params=tiny_models.MODELS)
def training(request):
    """Every model in turn."""
    return tiny_models.make(request.param)


@pytest.fixture(autouse=True)
def one_thread():
    """The same order of additions in every run."""
    torch.set_num_threads(1)


@pytest.fixture
def unused_port():
    """A port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
