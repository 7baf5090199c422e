"""Which operations a config repeats, read off a step in which all that can be is repeated."""

import dataclasses
import random

import pytest

from autorecompute.backends.ortmodule.memory import draw_blueprint


@pytest.fixture
def draw():
    """Draws the blueprint of a graph."""
    return lambda graph: draw_blueprint(graph.run(), graph.run(graph.space.all_on))


def keys_of(subgraphs):
    """The subgraphs as keys of their operations."""
    return {words: [tuple(op.key for op in nodes) for nodes in group] for words, group in subgraphs.items()}


def test_a_subgraph_has_the_words_of_its_operations(make_layers, draw):
    """From the last thing kept anyway to the one that backward reads, in order, as ORT writes it."""
    found = keys_of(draw(make_layers()).subgraphs)
    assert found == {
        "Mul+Dropout+": [(f"scaled{layer}", f"dropped{layer}") for layer in (1, 2, 3)],
        "Reshape+Add+": [(f"flat{layer}", f"sum{layer}") for layer in (1, 2, 3)],
    }


@pytest.mark.parametrize("seed", range(20))
def test_subgraphs_are_those_of_the_graph(draw_graph, draw, seed):
    """For graphs drawn by chance they are what a walk from each kept activation backwards finds."""
    graph = draw_graph(random.Random(seed))
    assert keys_of(draw(graph).subgraphs) == graph.subgraphs


def test_what_the_model_returns_is_not_kept_for_backward(make_node, make_graph, draw):
    """A value that PyTorch gets and backward does not read ends no subgraph: the hand-over is no part of backward.

    The Gelu reads it when it runs once more, and so it is made again just then.
    """
    forward = [
        make_node("MatMul", ("input",), {"projected": 5}),
        make_node("Add", ("projected",), {"hidden": 5}, again=True),
        make_node("Gelu", ("hidden",), {"active": 5}, again=True),
    ]
    backward = [make_node("GeluGrad", ("active", "dhidden"), {"gradient": 5})]
    blueprint = draw(make_graph(forward, ["hidden"], backward))
    assert keys_of(blueprint.subgraphs) == {"Add+Gelu+": [("hidden", "active")]}


def test_operations_run_in_the_order_of_a_step_with_recompute(make_layers):
    """Where ORT has another order without recompute, that one says nothing of all others."""
    graph = make_layers()
    plain, full = graph.run(), graph.run(graph.space.all_on)
    ahead = list(plain.operations)
    ahead[-1], ahead[-2] = ahead[-2], ahead[-1]
    swapped = dataclasses.replace(plain, operations=tuple(ahead))
    assert draw_blueprint(swapped, full).operations == draw_blueprint(plain, full).operations
    assert [op.key for op in draw_blueprint(plain, full).operations] == [op.key for op in plain.operations]
