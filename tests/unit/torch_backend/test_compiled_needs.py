"""What is compiled for a config where blocks are compiled and not the model."""

import dataclasses

import pytest

from autorecompute import codec
from autorecompute.backends.torch.compiled.needs import code_of_blocks
from autorecompute.backends.torch.controller import needs_of
from autorecompute.backends.torch.extra import TorchDetection
from autorecompute.plans import Config, Plan
from autorecompute.plans.plan import parse_choices

PLANS = [
    Plan(choices=parse_choices([text]), label=text, occurrences=count, counts=count > 1, saving_bytes=1, saving="1")
    for text, count in (("a.*:checkpoint", 4), ("a.*:keep_matmul", 4), ("b.*:checkpoint", 2), ("graph:budget_0.5", 1))
]


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ([], ["a.*", "b.*"]),
        (["a.*:checkpoint"], ["a.*:checkpoint", "b.*"]),
        (["a.*:checkpoint:3"], ["a.*", "a.*:checkpoint", "b.*"]),
        (["a.*:keep_matmul:1", "b.*:checkpoint:1"], ["a.*", "a.*:keep_matmul", "b.*", "b.*:checkpoint"]),
        (["graph:budget_0.5"], ["graph:budget_0.5"]),
    ],
    ids=str,
)
def test_a_block_is_compiled_once_for_each_way_to_run_it(config, code):
    """How many of the blocks run in one way makes no difference; a budget is about all of them."""
    assert code_of_blocks(Config.parse(config), PLANS) == set(code)


@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_model_that_is_compiled_as_a_whole_is_compiled_for_each_config(make_detection, by_blocks):
    """Blocks that are compiled by themselves are shared by configs; what is not compiled needs nothing."""
    extra = TorchDetection(is_compiled=True, by_blocks=by_blocks)
    detection = dataclasses.replace(make_detection(), plans=tuple(PLANS), extra=codec.to_plain(extra))
    one, two, both = (
        needs_of(detection)(Config.parse([f"a.*:checkpoint:{count}", "b.*:checkpoint"])) for count in (1, 2, 3)
    )
    assert (one == two == both) is by_blocks
    assert needs_of(dataclasses.replace(detection, extra={}))(Config()) == frozenset()
