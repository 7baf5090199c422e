"""Every small model in turn, on one thread."""

import socket
import sys

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


@pytest.fixture
def uncompiled():
    """A process in which nothing was compiled before, whatever other tests have done in it."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def fresh_compiler(tmp_path_factory, monkeypatch):
    """Nothing is compiled before or after; one cache for all tests."""
    from autorecompute.backends.torch.compiled.budgets import Asked  # which imports the compiler

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    torch._dynamo.reset()
    yield
    Asked().set(None)
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def compiled_blocks():
    """A compiled model with what it offers and its switches."""
    from autorecompute.backends.torch.compiled.detection import detect_compiled
    from compiled_models import Blocks, batch

    torch.manual_seed(0)
    model = torch.compile(Blocks())
    return model, *detect_compiled(model, (batch(),), {})
