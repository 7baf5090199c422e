"""Steps that are written out for a config, beside the graph's own."""

import random

import pytest

from autorecompute.backends.ortmodule.memory import OrtSimulator, draw_blueprint, write_out
from autorecompute.memory import Phase, trace


def blueprint_of(graph):
    """What two runs of the graph tell."""
    return draw_blueprint(graph.run(), graph.run(graph.space.all_on))


@pytest.mark.parametrize("seed", range(25))
def test_a_step_is_written_out_as_it_would_run(draw_graph, list_configs, seed):
    """For every config of a graph drawn by chance, the same is alive at each moment as in the graph's own run."""
    graph = draw_graph(random.Random(seed))
    blueprint = blueprint_of(graph)
    for config in list_configs(graph.space)[1:]:
        ours, own = trace(write_out(blueprint, config)), trace(graph.run(config))
        assert ours.live_bytes == own.live_bytes
        assert ours.live_by_phase() == own.live_by_phase()


def test_the_written_step_has_the_simulated_peak(make_layers):
    """What is drawn and what is searched with are the same figures, at another batch too."""
    graph = make_layers()
    blueprint = blueprint_of(graph)
    simulator = OrtSimulator(blueprint, {"batch": 3}, [plan.choices[0] for plan in graph.space.plans])
    peak = simulator.simulate(simulator.matrix([graph.space.all_on])).peak_bytes[0]
    step = write_out(blueprint, graph.space.all_on)
    assert trace(step, {"batch": 3}).peak_bytes == peak
    assert sum(operation.phase is Phase.RECOMPUTE for operation in step.operations) == len(blueprint.repeatable)
