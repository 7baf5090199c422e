"""Knobs that no machine has."""

from __future__ import annotations

from autorecompute.knobs import Knob

FAST, SLOW, GRAPH, LAYERS = "FAST_ALLOCATOR", "SLOW_ALLOCATOR", "OTHER_GRAPH", "WITHIN_LAYERS"


def knob(variable, **changes):
    """A knob that sets one variable."""
    return Knob(name=variable.lower(), environment={variable: "1"}, effect="something", **changes)


def by_name(result):
    """What each knob did."""
    return {figures.name: figures for figures in result.knobs}
