"""Knobs that no machine has."""

from __future__ import annotations

from autorecompute.backends.interface import Knob

FAST, SLOW, GRAPH, LAYERS = "FAST_ALLOCATOR", "SLOW_ALLOCATOR", "OTHER_GRAPH", "LAYER_BOUNDARIES"


def knob(variable):
    """A knob that sets one variable."""
    return Knob(name=variable.lower(), variables={variable: "1"}, effect="something")


def by_name(result):
    """What each knob did."""
    return {figures.name: figures for figures in result.knobs}
