"""What is said of a graph with hardly anything to recompute."""

from dataclasses import replace

import pytest

from autorecompute.plans.plan import plan_of_id
from autorecompute.plans.savings import NEGLIGIBLE_BYTES, explain_worthless


def make_plans(*savings):
    """A plan for each saving."""
    return [replace(plan_of_id(f"h.{number}:drop"), saving=saving) for number, saving in enumerate(savings)]


def test_a_graph_without_plans_is_explained():
    """Where nothing is offered, that is said with a way out."""
    text = explain_worthless([], {"batch": 8})
    assert "no plan" in text
    assert "smaller batch" in text


def test_plans_that_save_next_to_nothing_are_told_with_their_sum():
    """The figure is that of all plans, at the batch that counts."""
    assert "save 1,024 bytes" in explain_worthless(make_plans("8*batch", "24*batch"), {"batch": 32})


@pytest.mark.parametrize(
    "savings", [(str(NEGLIGIBLE_BYTES),), ("8", f"{NEGLIGIBLE_BYTES // 32}*batch"), ("8", "4*empty_dim_param1")]
)
def test_plans_that_may_be_worth_it_are_left_to_speak(savings):
    """A large saving, or one that nobody knows, is no reason to give up."""
    assert explain_worthless(make_plans(*savings), {"batch": 32}) == ""
