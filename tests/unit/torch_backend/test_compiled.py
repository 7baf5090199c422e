"""Models that torch.compile runs: what they offer, that it computes the same, and what it takes."""

import copy
import importlib
import sys
import types

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.compiled.budgets import VALUES, value_of
from autorecompute.backends.torch.compiled.checkpoints import CHOICE
from autorecompute.backends.torch.compiled.clock import CLOCK
from autorecompute.backends.torch.compiled.detection import board_of, detect_compiled
from autorecompute.backends.torch.compiled.forms import CompiledRun, eagerly, has_compiled, original_of
from autorecompute.backends.torch.compiled.live import AllocatedLive, LeastHeld
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.refusals import Reason, RefusedModelError
from autorecompute.backends.torch.space import space_of
from autorecompute.plans import Config
from compiled_models import COMPILING

pytestmark = COMPILING

WIDTH, BATCH = 32, 2
"""Gradients are compared on so few samples: what they compile is in the cache for the other tests."""
BLOCKS = "blocks.*:checkpoint"


class Block(nn.Module):
    """A block with what most have: a norm, two products, an activation and a dropout."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, *, scale=None):
        """The block's result."""
        del scale
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Blocks(nn.Module):
    """Two blocks and a loss."""

    def __init__(self, kind=Block):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(2))

    def forward(self, x):
        """The loss."""
        for block in self.blocks:
            x = block(x, scale=None) if type(original_of(block)) is Block else block(x)
        return x.square().mean()


def whole(model):
    """As most scripts do it."""
    return torch.compile(model)


def in_place(model):
    """The model keeps its class."""
    model.compile()
    return model


def by_blocks(model):
    """Regional compilation: a block is compiled once for all."""
    for block in model.blocks:
        block.compile()
    return model


def by_wrapped_blocks(model):
    """Regional compilation as it was done before modules could compile themselves."""
    for place, block in enumerate(model.blocks):
        model.blocks[place] = torch.compile(block)
    return model


def batch():
    """A batch."""
    return torch.randn(BATCH, 16, WIDTH, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("compile_it", [whole, in_place, by_blocks, by_wrapped_blocks])
def test_each_way_to_compile_offers_blocks_and_distinct_budgets(compile_it):
    """Budgets that keep other values than the compiler does by itself, each saving more than the one before."""
    model = compile_it(Blocks())
    assert has_compiled(model)
    found, board = detect_compiled(model, (batch(),), {})
    space = space_of(found, board, None)
    plans = {plan.id: plan for plan in space.plans}
    assert plans[BLOCKS].occurrences == 2
    assert plans[BLOCKS].counts
    graphs = [plan for plan in space.plans if plan.sites == {"graph"}]
    budgets = [plan for plan in graphs if "keep" not in plan.option]
    assert 1 < len(budgets) < len(VALUES)
    by_value = sorted(budgets, key=lambda plan: -value_of(plan.option))
    savings = [plan.saving_bytes for plan in by_value]
    assert savings == sorted(set(savings))
    assert all(space.excludes(one.choices[0], plans[BLOCKS].choices[0]) for one in graphs)


def test_nothing_is_compiled_or_kept_by_looking(monkeypatch):
    """The model is traced and never run with its activations; random numbers and modules are as before."""
    model = whole(Blocks())
    monkeypatch.setattr("torch._inductor.codecache.CppCodeCache.load_async", None)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    detect_compiled(model, (batch(),), {})
    assert torch.equal(torch.rand(1), expected)
    assert not any(CHOICE in vars(module) for module in model.modules())


def test_a_compiled_part_leaves_the_model_as_it_is():
    """A model of which some blocks are compiled is tuned around them."""
    model = Blocks()
    model.blocks[0].compile()
    assert not has_compiled(model)


@pytest.fixture(scope="module")
def compiled():
    """A compiled model with its switches."""
    torch.manual_seed(0)
    model = whole(Blocks())
    return model, board_of(model)


@pytest.mark.parametrize("texts", [["graph:budget_0.1"], [f"{BLOCKS}:1"], ["blocks.*:keep_matmul"]])
def test_gradients_are_those_of_the_compiled_model(compiled, texts):
    """With dropout on: what is run again draws the same masks, also under a budget, where PyTorch draws others."""
    model, board = compiled
    check = check_gradients(model, board, Config.parse(texts).choices, (batch(),), {})
    assert check.agrees, check


def test_pytorch_alone_draws_other_masks_under_a_budget(compiled):
    """Why the compiler is told to keep what was drawn: once this fails, budgets need nothing but their value."""
    model, _ = compiled
    found = []
    for value in (1.0, 0.1):
        with torch._functorch.config.patch(activation_memory_budget=value):
            torch._dynamo.reset()
            model.zero_grad()
            torch.manual_seed(3)
            loss = model(batch())
            loss.backward()
            found.append((loss.item(), original_of(model).blocks[0].up.weight.grad.clone()))
    assert found[0][0] == found[1][0]
    assert not torch.allclose(found[0][1], found[1][1], rtol=1e-3)


def test_a_swap_back_is_found_in_the_caches(compiled):
    """Compilers' time is counted, and a config that was compiled before takes a fraction of it."""
    model, board = compiled
    CLOCK.take()
    seconds = []
    for texts in ([f"{BLOCKS}:2"], [], [f"{BLOCKS}:2"]):
        board.set(Config.parse(texts).choices)
        model(batch()).backward()
        seconds.append(CLOCK.take())
        model(batch()).backward()
        assert CLOCK.take() == 0
    assert seconds[0] > seconds[2] > 0


def test_a_budget_is_undone(compiled):
    """Without a choice the compiler has what the script gave it."""
    _, board = compiled
    with torch._functorch.config.patch(activation_memory_budget=0.7):
        board.set(Config.parse(["graph:budget_0.5"]).choices)
        assert torch._functorch.config.activation_memory_budget == 0.5
        board.set([])
        assert torch._functorch.config.activation_memory_budget == 0.7
    assert torch._inductor.config.joint_custom_post_pass is None


MIB = 1 << 20


def test_bytes_of_eager_tensors_are_counted_to_the_byte():
    """What comes and goes, and what was there before and is let go of first."""
    before = [torch.zeros(2 * MIB // 4)]
    live = AllocatedLive(lambda: before, LeastHeld())
    live.start()
    before.clear()
    kept = torch.zeros(3 * MIB // 4)
    gone = torch.zeros(4 * MIB // 4)
    del gone
    last = torch.zeros(MIB // 4)
    assert live.stop() == 5 * MIB
    del kept, last


def test_bytes_of_compiled_code_are_counted():
    """Its tensors pass by the dispatcher: a result, and one more that lives between two matrix products."""
    compiled = torch.compile(lambda x, y: (x @ y).relu() @ y)
    x, y = torch.ones(512, 512), torch.ones(512, 512)
    compiled(x, y)
    live = AllocatedLive(lambda: [x, y], LeastHeld())
    live.start()
    result = compiled(x, y)
    assert live.stop() == 2 * MIB
    del result


def test_what_compilations_leave_behind_is_not_counted_as_held():
    """A process that trains compiles one config alone."""
    run = CompiledRun()
    held = [run.live_meter(list).held_bytes(measured) for measured in (500, 700, 400)]
    assert held == [500, 500, 400]


class Statistics(nn.Module):
    """A block with running statistics."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(16), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """The block's result."""
        return self.up(self.norm(x)).relu()


def test_blocks_with_running_statistics_are_not_offered():
    """A second run would write them again; budgets are offered all the same."""
    found, _ = detect_compiled(whole(Blocks(Statistics)), (batch(),), {})
    assert found.blocks == ()
    assert any(site.name == "graph" for site in found.sites)
    assert Reason.COMPILED_STATISTICS in {refusal.reason for refusal in found.refusals}


@pytest.mark.parametrize("compile_it", [torch.compile, lambda model, **how: model.compile(**how) or model])
def test_another_compiler_is_refused(compile_it):
    """Its budget is not known."""
    with pytest.raises(RefusedModelError, match="another backend than inductor"):
        detect_compiled(compile_it(Blocks(), backend="eager", fullgraph=True), (batch(),), {})


def test_a_torch_whose_compiler_tells_nothing_is_refused(monkeypatch):
    """Older ones have no hook where a joint graph is cut: a sentence says so, not an import that fails."""
    importlib.import_module("torch._inductor.compile_fx")  # this torch's own parts have it by now
    monkeypatch.delattr("torch._inductor.custom_graph_pass.CustomPartitionerFn")
    monkeypatch.delitem(sys.modules, "autorecompute.backends.torch.compiled.joint", raising=False)
    with pytest.raises(RefusedModelError, match=r"take a later one, or leave torch\.compile out"):
        detect_compiled(torch.compile(Blocks()), (batch(),), {})


def test_cuda_graphs_are_refused_on_a_card():
    """They hold memory of their own; on a CPU the mode does nothing."""
    model = torch.compile(Blocks(), mode="reduce-overhead")
    detect_compiled(model, (batch(),), {})
    on_card = types.SimpleNamespace(device=torch.device("cuda"))
    model.parameters = lambda: iter([on_card])
    with pytest.raises(RefusedModelError, match="CUDA graphs"):
        detect_compiled(model, (batch(),), {})


def test_a_model_that_cannot_be_traced_says_why_it_has_no_budgets():
    """Its blocks are offered all the same."""

    def refuse(_graph, _inputs):
        raise ValueError("no graph of mine")

    class Fails(Block):
        def forward(self, x):
            return super().forward(x) if not torch.compiler.is_compiling() else refuse(None, None)

    found, _ = detect_compiled(torch.compile(Blocks(Fails), fullgraph=True), (batch(),), {})
    assert any("could not be traced" in str(refusal) for refusal in found.refusals)
    assert found.blocks == ("blocks.*",)


def test_a_compiled_model_runs_eagerly_when_it_is_looked_at():
    """No compilation is begun."""
    model = whole(Blocks())
    CLOCK.take()
    with eagerly():
        model(batch())
    assert CLOCK.take() == 0


def test_a_class_is_as_it_was_when_nothing_is_chosen():
    """Of a model that is switched off, and one whose class has its forward from another."""

    class Inherits(Block):
        """A block of another name."""

    model = whole(Blocks(Inherits))
    board = board_of(model)
    before = Block.forward
    board.set(Config.parse([BLOCKS]).choices)
    assert "forward" in vars(Inherits)
    assert Block.forward is before
    board.set([])
    assert "forward" not in vars(Inherits)


def test_a_model_beside_one_that_is_checkpointed_is_looked_at_like_it():
    """Those of an ensemble share their classes."""
    first, second = (whole(Blocks()) for _ in range(2))
    board_of(first).set(Config.parse([f"{BLOCKS}:1"]).choices)
    found, _ = detect_compiled(second, (batch(),), {})
    assert "blocks.*" in found.blocks


def test_a_copy_computes_with_its_own_weights():
    """As an average of weights is made."""
    model = Blocks().eval()
    model.compile()
    board = board_of(model)
    board.set(Config.parse([BLOCKS]).choices)
    twin = copy.deepcopy(model)
    with torch.no_grad(), eagerly():
        for parameter in twin.parameters():
            parameter.zero_()
        assert twin(batch()).item() != model(batch()).item()
    board.set([])
