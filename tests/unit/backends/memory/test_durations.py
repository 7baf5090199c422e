"""Times of operations that were each measured once, on a machine with other work."""

import dataclasses
import itertools

import pytest

from autorecompute.backends.ortmodule.memory import draw_blueprint
from autorecompute.backends.ortmodule.memory.durations import settle_durations

USUAL = {"Mul": 1.0, "Dropout": 2.0, "Reshape": 0.1, "Add": 0.5}


def timed(profile, seconds):
    """The same profile, with a time for each operation by its position."""
    operations = (
        dataclasses.replace(operation, seconds=seconds(place, operation))
        for place, operation in enumerate(profile.operations)
    )
    return dataclasses.replace(profile, operations=tuple(operations))


@pytest.mark.parametrize("disturbed", range(6))
def test_an_operation_that_lost_its_core_takes_what_its_like_take(make_layers, disturbed):
    """One operation of the forward pass takes a hundred times as long in one profile: nothing of that is left."""
    graph = make_layers()

    def seconds(place, operation):
        return USUAL.get(operation.operator, 1.0) * (100 if place == disturbed else 1)

    plain, full = timed(graph.run(), seconds), timed(graph.run(graph.space.all_on), lambda _, op: seconds(-1, op))
    for profile in settle_durations((plain, full)):
        for operation in profile.operations:
            assert operation.seconds == USUAL.get(operation.operator, 1.0)
    blueprint = draw_blueprint(plain, full)
    assert {op.operator: op.seconds for op in blueprint.repeatable} == USUAL


def test_operations_of_other_sizes_are_told_apart(make_node, make_graph):
    """A product that reads a view of something larger takes longer than one of the same result."""
    forward = [
        make_node("Wide", ("input",), {"wide": 40}, again=True),
        make_node("Reshape", ("wide",), {"flat": 0}, again=True, shares=True),
        make_node("Gemm", ("flat",), {"down": 10}, again=True),
        make_node("Gemm", ("down",), {"out": 10}, again=True),
    ]
    graph = make_graph(forward, ["out"], [make_node("Grad", ("wide", "out", "dout"), {"gradient": 10})])
    counter = itertools.count(1)
    profile = timed(graph.run(), lambda *_: float(next(counter)))
    (found,) = settle_durations([profile])
    assert [operation.seconds for operation in found.operations] == [op.seconds for op in profile.operations]
