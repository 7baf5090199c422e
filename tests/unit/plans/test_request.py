"""What a user has switched on, and what ORT makes of it."""

from __future__ import annotations

import pytest

from autorecompute.plans import Activation, Choice, Insight, Level, Option, Plan, Request, Row
from autorecompute.plans.request import count_recomputed

WHOLE, PART = Row("Less+Cast+", Option.RECOMPUTE), Row("Cast+", Option.RECOMPUTE_WITH_COMPROMISE)
GELU, BOTH = Row("Gelu+", Option.RECOMPUTE), Row("Cast+", Option.RECOMPUTE)
KEPT = (Activation(output=0, shape=("batch",), element_bytes=4, saved_bytes=4),)


def make_insight(frequency, *rows):
    """Nodes with these options."""
    return Insight(frequency=frequency, choices=tuple(Choice(row=row, activations=KEPT) for row in rows))


def make_plan(row):
    """A plan of one row."""
    return Plan(rows=(row,), frequency=3, saving_bytes=1, saving_symbolic="batch")


@pytest.mark.parametrize(("count", "recomputed"), [(-1, 4), (1, 4), (3, 4), (100, 4), (0, 3)])
def test_a_count_does_not_limit_what_is_recomputed(count, recomputed):
    """Whatever is asked for, all nodes are recomputed, and all but one for 0."""
    assert count_recomputed(GELU, {GELU: count}, [make_insight(3, GELU), make_insight(1, GELU)]) == recomputed


def test_the_first_of_two_options_takes_effect():
    """A node with both options on is recomputed whole; the compromise is left with the others."""
    insights = [make_insight(2, WHOLE, PART), make_insight(1, PART)]
    counts = {WHOLE: -1, PART: -1}
    assert count_recomputed(WHOLE, counts, insights) == 2
    assert count_recomputed(PART, counts, insights) == 1
    assert count_recomputed(PART, {PART: -1}, insights) == 3


def test_what_is_off_is_not_recomputed():
    """A row that nobody asked for recomputes nothing, and less than nothing is nothing."""
    assert count_recomputed(GELU, {}, [make_insight(3, GELU)]) == 0
    assert count_recomputed(GELU, {GELU: 0}, []) == 0


def test_rows_that_the_graph_does_not_offer_are_named():
    """They take no effect, and ORT says nothing of them."""
    request = Request(counts={GELU: -1, PART: -1})
    assert request.is_on
    assert request.resolve([make_plan(GELU)]) == {GELU: -1}
    assert request.unknown([make_plan(GELU)]) == [PART]


def test_a_level_takes_the_options_up_to_its_own():
    """Level 1 takes no compromise; level 2 takes the last row of each subgraph."""
    plans = [make_plan(GELU), make_plan(BOTH), make_plan(PART)]
    assert Request(level=Level.LAYERWISE).resolve(plans) == {GELU: -1, BOTH: -1}
    assert Request(level=Level.LAYERWISE_WITH_COMPROMISE).resolve(plans) == {GELU: -1, PART: -1}


def test_nothing_asked_for_is_off():
    """An empty environment switches nothing on."""
    assert not Request().is_on
    assert Request().resolve([make_plan(GELU)]) == {}
