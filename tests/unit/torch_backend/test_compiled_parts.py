"""Models of which the script compiles a part: it is compiled in the script's own steps, whatever ran before them."""

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.live import StepLive, tensors_of
from autorecompute.backends.torch.options import CHECKPOINT, EVERY_2ND
from autorecompute.backends.torch.structure import structure_of
from autorecompute.plans import Choice

X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Block(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        """With a residual connection."""
        return x + self.second(torch.tanh(self.first(x)))


class Net(nn.Module):
    """Blocks behind a part that can be compiled."""

    def __init__(self):
        super().__init__()
        self.begin = Block()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        """A loss."""
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Counting:
    """A compiler that runs the graph as it is, and counts how often it was asked to."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, _inputs):
        """Each run of the graph is counted, too."""
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


def compiled_in_place(model, backend, fullgraph):
    """As ``self.begin.compile()``."""
    model.begin.compile(backend=backend, fullgraph=fullgraph)


def compiled_module(model, backend, fullgraph):
    """As ``torch.compile(self.begin)``."""
    model.begin = torch.compile(model.begin, backend=backend, fullgraph=fullgraph)


def compiled_function(model, backend, fullgraph):
    """As ``flex = torch.compile(flex_attention)``."""
    begin = model.begin
    function = torch.compile(lambda x: begin.second(torch.tanh(begin.first(x))), backend=backend, fullgraph=fullgraph)
    model.begin.forward = lambda x: x + function(x)


@pytest.mark.parametrize("compile_part", [compiled_in_place, compiled_module, compiled_function])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_part_is_compiled_in_training_after_it_was_looked_at(compile_part, fullgraph, counting):
    """Under a dispatch mode dynamo would skip its code for good."""
    model = Net()
    compile_part(model, counting, fullgraph)
    found = detect(model, (X,), {})
    steps = FakeSteps(model, structure_of(model).units, Script((X,), {}), found.values)
    assert steps.run(found.switchboard(model), []).peak > 0
    assert counting.graphs == 0
    model(X).backward()
    model(X).backward()
    assert (counting.graphs, counting.runs) == (1, 2)


@pytest.mark.parametrize("compile_part", [compiled_in_place, compiled_module, compiled_function])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_part_stays_compiled_while_live_bytes_are_counted(compile_part, fullgraph, counting):
    """In the first of all steps and in a later one."""
    model = Net()
    compile_part(model, counting, fullgraph)
    meter = StepLive(lambda: tensors_of(model, ()))
    model(X).backward()
    model.zero_grad()
    meter.start()
    model(X).backward()
    assert meter.stop() > 0
    model(X).backward()
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
    """FlexAttention, as scripts compile it."""

    def __init__(self, attend):
        super().__init__()
        self.project, self.attend = nn.Linear(16, 48), attend

    def forward(self, x):
        """With a residual connection."""
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
    steps = FakeSteps(model, structure_of(model).units, Script((x,), {}), found.values)
    peaks = [steps.run(found.switchboard(model), on).peak for on in ([], [Choice("*", "checkpoint")])]
    assert peaks[0] > peaks[1] > 0
