"""Knobs that no machine has."""

from autorecompute.backends.interface import Knob

FAST, SLOW, GRAPH, WHOLE = "FAST_ALLOCATOR", "SLOW_ALLOCATOR", "OTHER_GRAPH", "WHOLE_GRAPH"


def knob(variable):
    """A knob that sets one variable."""
    return Knob(name=variable.lower(), variables={variable: "1"}, effect="something")


def by_name(result):
    """What each knob did."""
    return {figures.name: figures for figures in result.knobs}
