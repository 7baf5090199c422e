"""Knobs that no machine has."""

from autorecompute.backends.interface import Knob
from fake_backend.controller import plans_of_whole

FAST, SLOW, GRAPH, WHOLE = "FAST_ALLOCATOR", "SLOW_ALLOCATOR", "OTHER_GRAPH", "WHOLE_GRAPH"


def knob(variable, why_not=""):
    """A knob that sets one variable, and cannot be tried for the reason that is given."""
    plans = plans_of_whole if variable == WHOLE else None
    name, sets = variable.lower(), {variable: "1"}
    return Knob(name=name, variables=sets, effect="something", why_not=lambda *_: why_not, plans=plans)


def by_name(result):
    return {figures.name: figures for figures in result.knobs}


def tried_under(variable, tuning):
    """The configs of fresh processes that had this variable."""
    watched = zip(tuning.bench.watched, tuning.bench.environments, strict=True)
    return {config for (config, _), environment in watched if variable in environment}
