"""Models that are compiled in several graphs: broken ones, and those whose blocks are compiled one by one."""

import functools

import pytest
import torch

from autorecompute.backends.torch.compiled.checkpoints import choose
from autorecompute.backends.torch.compiled.detection import detect_compiled
from autorecompute.backends.torch.compiled.steps import trace_step
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.plans import Config
from compiled_models import COMPILING, Blocks, Broken, batch, by_blocks, live_bytes

pytestmark = COMPILING

BLOCKS, BUDGET, UP = "blocks.*:checkpoint", "graph:budget_0.1", "blocks.*.up/addmm:recompute"


@pytest.fixture(scope="module")
def broken():
    """A model with a break in its graph, with what it offers and its switches."""
    torch.manual_seed(0)
    model = torch.compile(Broken())
    return model, *detect_compiled(model, (batch(),), {})


def test_all_graphs_of_a_step_are_found():
    """In the order in which they run, each with the parameters that it is given."""
    step, _ = trace_step(torch.compile(Broken()), (batch(),), {})
    assert step.is_whole
    assert [call.graph for call in step.calls] == [0, 1]
    first, second = (call.parameters for call in step.calls)
    assert {name.split(".")[1] for name in first} == {"0"}
    assert {name.split(".")[1] for name in second} == {"0", "1", "2"}


def test_a_block_that_is_compiled_once_runs_several_times():
    """One graph for the first block, whose input needs no gradient, one for the others, and a loss outside of them."""
    step, _ = trace_step(by_blocks(Blocks()), (batch(),), {})
    assert [call.graph for call in step.calls] == [0, 1, 1]
    assert [{name.split(".")[1] for name in call.parameters} for call in step.calls] == [{"0"}, {"1"}, {"2"}]


def test_looking_leaves_the_training_as_it_is():
    """Random numbers and parameters' gradients are as before, and what is traced keeps nothing that it makes."""
    model = torch.compile(Broken())
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    trace_step(model, (batch(),), {})
    assert torch.equal(torch.rand(1), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_broken_model_offers_what_a_whole_one_does(broken):
    """Budgets hold for each graph, clusters and checkpoints for those that their modules are in."""
    _, found, _ = broken
    offered = {(site.name, option) for site in found.sites for option in site.options}
    assert {("graph", "budget_0.1"), ("blocks.*.up/addmm", "recompute"), ("blocks.*", "keep_up/addmm")} <= offered


def test_forecasts_of_several_graphs_are_those_of_steps(broken):
    """Forward each graph adds to what those before it left; within a fifth, as kernels are guessed."""
    model, found, board = broken
    expected = {tuple(peak.config.texts): peak.peak_bytes for peak in found.compiled_peaks}
    for texts in ([], [BUDGET], [BLOCKS]):
        assert expected[tuple(texts)] == pytest.approx(live_bytes(model, board, texts), rel=0.2), texts


def test_forecasts_of_blocks_are_those_of_steps():
    """What lies outside of the blocks is what autograd saves there."""
    torch.manual_seed(0)
    model = by_blocks(Blocks())
    found, board = detect_compiled(model, (batch(),), {})
    expected = {tuple(peak.config.texts): peak.peak_bytes for peak in found.compiled_peaks}
    for texts in ([], [f"{BLOCKS}:1"], [BLOCKS]):
        assert expected[tuple(texts)] == pytest.approx(live_bytes(model, board, texts), rel=0.2), texts


def test_a_library_that_replaces_checkpoints_changes_nothing(monkeypatch):
    """As ONNX Runtime's import does: the graph stays whole, so that dropouts draw the same masks."""
    original = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr("torch.utils.checkpoint.checkpoint", functools.partial(original))
    model, graphs = Blocks(), []
    choose(model.blocks[0], "checkpoint")
    torch.compile(model, backend=lambda graph, _inputs: graphs.append(graph) or graph)(batch()[:2])
    choose(model.blocks[0], None)
    assert len(graphs) == 1


@pytest.mark.parametrize("texts", [[UP, f"{BLOCKS}:1"], [BUDGET]], ids=str)
def test_gradients_are_those_of_the_compiled_model(broken, texts):
    """With dropout on, in both graphs."""
    model, _, board = broken
    check = check_gradients(model, board, Config.parse(texts).choices, (batch()[:2],), {})
    assert check.agrees, check
