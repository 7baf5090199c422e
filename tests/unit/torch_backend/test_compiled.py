"""Models that torch.compile runs: what they offer, that it computes the same, and what it takes."""

import copy
import importlib
import sys
import types

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from autorecompute.backends.torch.compiled.detection import CHOICE, board_of, detect_compiled
from autorecompute.backends.torch.compiled.forms import (
    AllocatedLive,
    has_compiled,
    refusals_of_compiled,
    take_compile_seconds,
)
from autorecompute.backends.torch.compiled.partitions import VALUES, trace_step, value_of
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.find.refusals import Reason, RefusalError
from autorecompute.plans import Config
from autorecompute.units import MIB
from compiled_models import COMPILING, WIDTH, Block, Blocks, batch, broken, whole
from tiny_models import make

pytestmark = COMPILING

BLOCKS = "blocks.*:checkpoint"


@pytest.mark.parametrize(
    "compiled_model", ["whole", "in_place", "by_blocks", "by_wrapped_blocks", "broken"], indirect=True
)
def test_each_way_to_compile_offers_blocks_and_distinct_budgets(compiled_model):
    """Budgets that keep other values than the compiler does by itself, each saving more than the one before."""
    model, found, board = compiled_model
    assert has_compiled(model)
    space = space_of(found, board, None)
    plans = {plan.id: plan for plan in space.plans}
    assert plans[BLOCKS].occurrences == 3
    assert plans[BLOCKS].counts
    graphs = [plan for plan in space.plans if plan.sites == {"graph"}]
    budgets = [plan for plan in graphs if "keep" not in plan.option]
    assert 1 < len(budgets) < len(VALUES)
    savings = [plan.saving_bytes for plan in sorted(budgets, key=lambda plan: -value_of(plan.option))]
    assert savings == sorted(set(savings))
    assert all(space.excludes(one.choices[0], plans[BLOCKS].choices[0]) for one in graphs)


@pytest.mark.parametrize(("compile_it", "look"), [(whole, detect_compiled), (broken, trace_step)])
def test_nothing_is_compiled_or_kept_by_looking(compile_it, look, monkeypatch):
    model = compile_it()
    monkeypatch.setattr("torch._inductor.codecache.CppCodeCache.load_async", None)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    look(model, (batch(2),), {})
    assert torch.equal(torch.rand(1), expected)
    assert not any(CHOICE in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.cpp
def test_a_swap_back_is_found_in_the_caches():
    """The compilers' time is counted all the same; a config that stays is not compiled again."""
    model = whole()
    board, misses = board_of(model), []
    take_compile_seconds()
    for texts in ([f"{BLOCKS}:2"], [], [f"{BLOCKS}:2"]):
        board.set(Config.parse(texts).choices)
        model(batch(2)).backward()
        assert take_compile_seconds() > 0
        model(batch(2)).backward()
        assert take_compile_seconds() == 0
        misses.append(counters["inductor"]["fxgraph_cache_miss"])
    assert misses[2] == misses[1]
    board.set([])


def test_a_budget_is_undone():
    board = board_of(whole())
    with torch._functorch.config.patch(activation_memory_budget=0.7):
        board.set(Config.parse(["graph:budget_0.5"]).choices)
        assert torch._functorch.config.activation_memory_budget == 0.5
        board.set([])
        assert torch._functorch.config.activation_memory_budget == 0.7
    assert torch._inductor.config.joint_custom_post_pass is None


def test_bytes_of_eager_tensors_are_counted_to_the_byte():
    """What comes and goes, and what was there before and is let go of first."""
    before = [torch.zeros(2 * MIB // 4)]
    live = AllocatedLive(lambda: before)
    live.start()
    before.clear()
    kept = torch.zeros(3 * MIB // 4)
    gone = torch.zeros(4 * MIB // 4)
    del gone
    last = torch.zeros(MIB // 4)
    assert live.stop() == 5 * MIB
    del kept, last


@pytest.mark.cpp
def test_bytes_of_compiled_code_are_counted():
    """Its tensors pass by the dispatcher: a result, and one more that lives between two matrix products."""
    compiled = torch.compile(lambda x, y: (x @ y).relu() @ y)
    x, y = torch.ones(512, 512), torch.ones(512, 512)
    compiled(x, y)
    live = AllocatedLive(lambda: [x, y])
    live.start()
    result = compiled(x, y)
    assert live.stop() == 2 * MIB
    del result


def test_what_compilations_leave_behind_is_not_counted_as_held():
    """A process that trains compiles one config alone."""
    held = []
    assert [AllocatedLive(list, held).held_bytes(measured) for measured in (500, 700, 400)] == [500, 500, 400]


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(16), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *, scale=None):
        del scale
        return self.up(self.norm(x)).relu()


def test_blocks_with_running_statistics_or_given_a_cache_are_not_offered_and_budgets_are(compiled_llama):
    """To make a cache inside of a checkpoint would break the compiler's graph."""
    found, _ = detect_compiled(whole(Statistics), (batch(2),), {})
    assert found.blocks == ()
    assert any(site.name == "graph" for site in found.sites)
    assert Reason.COMPILED_STATISTICS in {refusal.reason for refusal in found.refusals}
    found, _ = detect_compiled(compiled_llama.model, (), {**compiled_llama.batch, "use_cache": True})
    assert Reason.CACHE in {refusal.reason for refusal in found.refusals if refusal.place == LAYERS}
    options = {site.name: site.options for site in found.sites}
    assert LAYERS not in options
    assert any(option.startswith("budget") for option in options["graph"])
    assert "recompute" in options[f"{LAYERS}.mlp/mul"]


@pytest.mark.parametrize("compile_it", [torch.compile, lambda model, **how: model.compile(**how) or model])
def test_another_compiler_is_refused(compile_it):
    with pytest.raises(RefusalError, match="another backend than inductor"):
        detect_compiled(compile_it(Blocks(), backend="eager", fullgraph=True), (batch(2),), {})


def test_a_torch_whose_compiler_tells_nothing_is_refused(monkeypatch):
    """Older ones have no hook where a joint graph is cut: a sentence says so, not an import that fails."""
    importlib.import_module("torch._inductor.compile_fx")  # this torch's own parts have it by now
    monkeypatch.delattr("torch._inductor.custom_graph_pass.CustomPartitionerFn")
    monkeypatch.delitem(sys.modules, "autorecompute.backends.torch.compiled.joint", raising=False)
    with pytest.raises(RefusalError, match=r"take a later one, or leave torch\.compile out"):
        detect_compiled(whole(), (batch(2),), {})


def test_cuda_graphs_are_refused_on_a_card():
    """They hold memory of their own; on a CPU the mode does nothing."""
    model = torch.compile(Blocks(), mode="reduce-overhead")
    assert not list(refusals_of_compiled(model))
    on_card = types.SimpleNamespace(device=torch.device("cuda"))
    model.parameters = lambda: iter([on_card])
    with pytest.raises(RefusalError, match="CUDA graphs"):
        detect_compiled(model, (batch(2),), {})


def test_a_model_that_cannot_be_traced_or_cut_says_why_it_has_blocks_alone(monkeypatch):
    def refuse():
        raise ValueError("no graph of mine")

    class Fails(Block):
        def forward(self, x, *, scale=None):
            return super().forward(x, scale=scale) if not torch.compiler.is_compiling() else refuse()

    found, _ = detect_compiled(torch.compile(Blocks(Fails), fullgraph=True), (batch(2),), {})
    assert any("could not be traced" in str(refusal) for refusal in found.refusals)
    assert found.blocks == ("blocks.*",)

    def fail(*_args, **_options):
        raise RuntimeError("no cut of mine")

    monkeypatch.setattr("autorecompute.backends.torch.compiled.joint.min_cut_rematerialization_partition", fail)
    found, _ = detect_compiled(whole(), (batch(2),), {})
    assert [site.name for site in found.sites] == ["blocks.*"]
    assert any("no cut of mine" in str(refusal) for refusal in found.refusals)


def test_a_class_is_as_it_was_when_nothing_is_chosen():
    class Inherits(Block):
        pass

    model = whole(Inherits)
    board = board_of(model)
    before = Block.forward
    board.set(Config.parse([BLOCKS]).choices)
    assert "forward" in vars(Inherits)
    assert Block.forward is before
    board.set([])
    assert "forward" not in vars(Inherits)


def test_a_model_beside_one_that_is_checkpointed_is_looked_at_like_it():
    first, second = whole(), whole()
    board_of(first).set(Config.parse([f"{BLOCKS}:1"]).choices)
    found, _ = detect_compiled(second, (batch(2),), {})
    assert "blocks.*" in found.blocks


def test_a_copy_computes_with_its_own_weights():
    """As an average of weights is made."""
    model = Blocks().eval()
    model.compile()
    board = board_of(model)
    board.set(Config.parse([BLOCKS]).choices)
    twin = copy.deepcopy(model)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for parameter in twin.parameters():
            parameter.zero_()
        assert twin(batch(2)).item() != model(batch(2)).item()
    board.set([])


LAYERS = "model.layers.*"


@pytest.fixture
def compiled_llama():
    """As people have it: without a dropout, attention takes the fused kernel, which gives several results."""
    training = make("llama")
    for module in training.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    training.model = torch.compile(training.model)
    return training


@pytest.mark.cpp
def test_attention_that_is_kept_is_kept_with_all_of_its_results(compiled_llama):
    found, board = detect_compiled(compiled_llama.model, (), compiled_llama.batch)
    assert not found.refusals
    options = {site.name: site.options for site in found.sites}
    assert {"checkpoint", "keep_matmul"} <= {*options[LAYERS]}
    assert any(option.startswith("budget") for option in options["graph"])
    assert "recompute" in options[f"{LAYERS}.mlp/mul"]
    expected = compiled_llama.gradients()
    for text in (f"{LAYERS}:checkpoint:1", "graph:budget_0.1"):
        board.set(Config.parse([text]).choices)
        torch.testing.assert_close(compiled_llama.gradients(), expected, rtol=1e-4, atol=1e-6)
    board.set([])
