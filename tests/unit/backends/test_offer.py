"""What a user has switched on, and what ORT makes of it."""

import pytest

from autorecompute.backends.ortmodule.already_on import Request, count_recomputed
from autorecompute.backends.ortmodule.grammar import COMPROMISE, RECOMPUTE, Level, write_row
from autorecompute.plans import Activation, Alternative, Choice, Cluster, Plan

WHOLE, PART = Choice("Less+Cast+", RECOMPUTE), Choice("Cast+", COMPROMISE)
GELU, BOTH = Choice("Gelu+", RECOMPUTE), Choice("Cast+", RECOMPUTE)
KEPT = (Activation(output=0, shape=("batch",), element_bytes=4, saved_bytes=4),)


def make_cluster(occurrences, *choices):
    """Nodes with these options."""
    ways = tuple(Alternative(choice=choice, activations=KEPT) for choice in choices)
    return Cluster(occurrences=occurrences, alternatives=ways)


def make_plan(choice):
    """A plan of one choice."""
    return Plan(choices=(choice,), label=choice.site, occurrences=3, saving_bytes=1, saving="batch")


@pytest.mark.parametrize(("count", "recomputed"), [(-1, 4), (1, 4), (3, 4), (100, 4), (0, 3)])
def test_a_count_does_not_limit_what_is_recomputed(count, recomputed):
    """Whatever is asked for, all nodes are recomputed, and all but one for 0."""
    assert count_recomputed(GELU, {GELU: count}, [make_cluster(3, GELU), make_cluster(1, GELU)]) == recomputed


def test_the_first_of_two_options_takes_effect():
    """A node with both options on is recomputed whole; the compromise is left with the others."""
    clusters = [make_cluster(2, WHOLE, PART), make_cluster(1, PART)]
    counts = {WHOLE: -1, PART: -1}
    assert count_recomputed(WHOLE, counts, clusters) == 2
    assert count_recomputed(PART, counts, clusters) == 1
    assert count_recomputed(PART, {PART: -1}, clusters) == 3


def test_what_is_off_is_not_recomputed():
    """A choice that nobody asked for recomputes nothing, and less than nothing is nothing."""
    assert count_recomputed(GELU, {}, [make_cluster(3, GELU)]) == 0
    assert count_recomputed(GELU, {GELU: 0}, []) == 0


def test_plans_that_the_graph_does_not_offer_are_named():
    """They take no effect, and ORT says nothing of them."""
    request = Request(counts={GELU: -1, PART: -1})
    assert request.is_on
    assert request.resolve([make_plan(GELU)]) == {GELU: -1}
    assert request.unknown([make_plan(GELU)]) == [write_row(PART)]


def test_a_level_takes_the_options_up_to_its_own():
    """Level 1 takes no compromise; level 2 takes the last option of each subgraph."""
    plans = [make_plan(GELU), make_plan(BOTH), make_plan(PART)]
    assert Request(level=Level.LAYERWISE).resolve(plans) == {GELU: -1, BOTH: -1}
    assert Request(level=Level.LAYERWISE_WITH_COMPROMISE).resolve(plans) == {GELU: -1, PART: -1}


def test_nothing_asked_for_is_off():
    """An empty environment switches nothing on."""
    assert not Request().is_on
    assert Request().resolve([make_plan(GELU)]) == {}
