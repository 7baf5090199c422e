"""Every small model in turn, on one thread."""

from __future__ import annotations

import pytest
import tiny_models
import torch


@pytest.fixture(params=tiny_models.MODELS)
def training(request):
    """Every model in turn."""
    return tiny_models.make(request.param)


@pytest.fixture(autouse=True)
def one_thread():
    """The same order of additions in every run."""
    torch.set_num_threads(1)
