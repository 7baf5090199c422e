"""Models of which the script compiles a part: it is compiled in the script's own steps, whatever ran before them."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.fake.live import StepLive, tensors_of
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.structure import structure_of
from autorecompute.backends.torch.forecast.records import CHECKPOINT, EVERY_2ND
from autorecompute.plans import Choice

X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.begin = Block()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Counting:
    """A compiler that runs the graph as it is, and counts how often it was asked to, and each run."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, _inputs):
        self.graphs += 1

        def run(*args):
            self.runs += 1
            return graph(*args)

        return run


@pytest.fixture
def counting():
    """A compiler; what dynamo knows of the classes above is forgotten before."""
    torch._dynamo.reset()
    yield Counting()
    torch._dynamo.reset()


def in_place(model, **how):
    model.begin.compile(**how)


def module(model, **how):
    model.begin = torch.compile(model.begin, **how)


def function(model, **how):
    """As ``flex = torch.compile(flex_attention)``."""
    begin = model.begin
    run = torch.compile(lambda x: begin.second(torch.tanh(begin.first(x))), **how)
    model.begin.forward = lambda x: x + run(x)


@pytest.fixture(params=itertools.product([in_place, module, function], [False, True]))
def net(request, counting):
    compile_begin, fullgraph = request.param
    model = Net()
    compile_begin(model, backend=counting, fullgraph=fullgraph)
    return model


def peak_of(model, x, found, choices=()):
    steps = FakeSteps(model, structure_of(model).units, Script((x,), {}), found.values)
    return steps.run(found.switchboard(model), choices).peak


def test_a_part_is_compiled_in_training_after_it_was_looked_at_and_stays_so_while_live_bytes_are_counted(net, counting):
    """Under a dispatch mode dynamo would skip its code for good."""
    assert peak_of(net, X, detect(net, (X,), {})) > 0
    assert counting.graphs == 0
    meter = StepLive(lambda: tensors_of(net, ()))
    net(X).backward()
    net.zero_grad()
    meter.start()
    net(X).backward()
    assert meter.stop() > 0
    net(X).backward()
    assert (counting.graphs, counting.runs) == (1, 3)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
def test_parts_stay_compiled_whatever_is_recomputed_around_them(counting):
    """A checkpoint that keeps products is a dispatch mode, under which an older torch skips code for good."""
    model = nn.Sequential(*(nn.Sequential(Block(), nn.Linear(8, 8)) for _ in range(3)))
    for part in model:
        part[0].compile(backend=counting)
    board = detect(model, (X,), {}).switchboard(model)
    for option in board.sites["*"].options:
        board.set([Choice("*", option)])
        model(X).sum().backward()
        before = counting.runs
        model(X).sum().backward()
        assert counting.runs - before == (5 if option == EVERY_2ND else 6)
    assert board.sites["*"].options[0] == CHECKPOINT


class Attention(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.project, self.attend = nn.Linear(16, 48), attend

    def forward(self, x):
        query, key, value = (part.unsqueeze(1) for part in self.project(x).chunk(3, -1))
        return x + self.attend(query, key, value).squeeze(1)


@pytest.mark.skipif(not hasattr(TorchDispatchMode, "supports_higher_order_operators"), reason="needs a newer torch")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_compiled_flex_attention_is_run_by_itself(counting, monkeypatch):
    """It is one operator, which a dispatch mode has to let through; on a CPU its backward pass runs in eager code."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    attend = torch.compile(flex_attention.flex_attention, backend=counting)
    model = nn.Sequential(*(Attention(attend) for _ in range(3)))
    x = torch.linspace(-1, 1, 2 * 32 * 16).reshape(2, 32, 16)
    found = detect(model, (x,), {})
    assert "*" in found.blocks
    assert peak_of(model, x, found) > peak_of(model, x, found, [Choice("*", "checkpoint")]) > 0
