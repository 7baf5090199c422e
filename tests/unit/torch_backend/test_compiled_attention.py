"""A compiled Llama as people have it: attention in one kernel, which gives several results."""

import pytest
import torch

from autorecompute.backends.torch.compiled.detection import detect_compiled
from autorecompute.backends.torch.refusals import Reason
from autorecompute.plans import Config
from compiled_models import COMPILING
from tiny_models import make

pytestmark = COMPILING

BLOCKS = "model.layers.*"


@pytest.fixture
def compiled():
    """Attention without a dropout takes the fused kernel."""
    training = make("llama")
    for module in training.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    training.model = torch.compile(training.model)
    return training


def test_all_kinds_of_plans_are_offered_and_leave_gradients_as_they_are(compiled):
    """Attention that is kept is kept with all of its results, or the graph could not be cut."""
    found, board = detect_compiled(compiled.model, (), compiled.batch)
    assert not found.refusals
    options = {site.name: site.options for site in found.sites}
    assert {"checkpoint", "keep_matmul"} <= {*options[BLOCKS]}
    assert any(option.startswith("budget") for option in options["graph"])
    assert "recompute" in options[f"{BLOCKS}.mlp/mul"]
    expected = compiled.gradients()
    try:
        for text in (f"{BLOCKS}:checkpoint:1", "graph:budget_0.1"):
            board.set(Config.parse([text]).choices)
            torch.testing.assert_close(compiled.gradients(), expected, rtol=1e-4, atol=1e-6)
    finally:
        board.set(())


def test_blocks_that_are_given_a_cache_are_left_alone_and_budgets_are_not(compiled):
    """To make a cache inside of a checkpoint would break the compiler's graph."""
    found, _ = detect_compiled(compiled.model, (), {**compiled.batch, "use_cache": True})
    assert Reason.CACHE in {refusal.reason for refusal in found.refusals if refusal.place == BLOCKS}
    options = {site.name: site.options for site in found.sites}
    assert BLOCKS not in options
    assert any(option.startswith("budget") for option in options["graph"])
    assert "recompute" in options[f"{BLOCKS}.mlp/mul"]
