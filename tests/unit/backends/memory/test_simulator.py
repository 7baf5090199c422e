"""The peak of configs that never ran, beside graphs in which their recompute is written out."""

import random

import numpy as np
import pytest

from autorecompute.backends.ortmodule.memory import OrtSimulator, draw_blueprint
from autorecompute.plans import Choice, Config

DROPOUT, ADD = Choice("Mul+Dropout+", "1"), Choice("Reshape+Add+", "1")


@pytest.fixture
def simulate():
    """Simulates configs of a graph, profiled at one sample."""

    def simulate(graph, configs, *, batch=1):
        space = graph.space
        blueprint = draw_blueprint(graph.run(), graph.run(space.all_on))
        simulator = OrtSimulator(blueprint, {"batch": batch}, [plan.choices[0] for plan in space.plans])
        return simulator.simulate(simulator.matrix(configs))

    return simulate


@pytest.fixture
def every(make_layers, simulate):
    """The three layers under each of their four configs, at one sample and at three."""
    configs = [Config(), Config(frozenset([DROPOUT])), Config(frozenset([ADD])), Config(frozenset([DROPOUT, ADD]))]
    return {batch: simulate(make_layers(), configs, batch=batch) for batch in (1, 3)}


def test_stashes_are_those_worked_out_on_paper(every):
    """Three masks of 2 stay; so do three results of 10 and three sums of 4, of which recompute leaves the last."""
    assert list(every[1].stash_bytes) == [6 + 30 + 12, 6 + 12, 6 + 30 + 4, 6 + 4]


def test_peaks_are_those_worked_out_on_paper(every):
    """One plan alone saves; with both a chain runs through all layers, and keeps more than there was to save.

    Without recompute the first gradients (4 and 3, then 4 in place of the last sum) come on top of the stash. What a
    Dropout makes again lives for one layer, together with the masks made until then: most of it in the last one. The
    sums made again are as large as those kept. With both plans, all of the three layers is there a second time.
    """
    none = 48 + 4 + 3
    dropout = 6 + 3 * 3 + 4 + 4 + 10 + 3 * 2
    add = 40 - 4 + 12 + 4 + 3
    both = 6 + 4 + 3 * (10 + 2 + 4) + 3
    assert list(every[1].peak_bytes) == [none, dropout, add, both]


def test_everything_grows_with_the_batch(every):
    """At three times the batch everything is three times as large: all of it has the batch in its shape."""
    assert list(every[3].peak_bytes) == list(3 * every[1].peak_bytes)
    assert list(every[3].stash_bytes) == list(3 * every[1].stash_bytes)


def test_time_is_that_of_what_runs_once_more(every):
    """Two of the seven operations that a layer has in both passes belong to each plan."""
    assert every[1].recompute_share == pytest.approx([0, 2 / 7, 2 / 7, 4 / 7])


@pytest.mark.parametrize("seed", range(40))
def test_peaks_are_those_of_the_graph_written_out(draw_graph, simulate, list_configs, seed):
    """For every config of a graph drawn by chance, what is simulated is what a walk through its own graph counts."""
    graph = draw_graph(random.Random(seed))
    configs = list_configs(graph.space)
    simulated = simulate(graph, configs)
    counted = [graph.count_live(config) for config in configs]
    assert list(zip(simulated.peak_bytes, simulated.stash_bytes, strict=True)) == counted


def test_many_configs_are_simulated_as_each_by_itself(make_layers, monkeypatch):
    """Configs are taken in parts, and none of them is lost or moved."""
    graph = make_layers()
    simulator = OrtSimulator(draw_blueprint(graph.run(), graph.run(graph.space.all_on)), {}, [DROPOUT, ADD])
    monkeypatch.setattr("autorecompute.backends.ortmodule.memory.simulator.CHUNK", 3)
    switches = np.array([[draw & 1, draw >> 1 & 1] for draw in random.Random(0).choices(range(4), k=10)])
    each = [simulator.simulate(line[None]).peak_bytes[0] for line in switches]
    assert list(simulator.simulate(switches).peak_bytes) == each


def test_a_choice_of_no_subgraph_changes_nothing(make_layers):
    """A plan that was not found among what runs once more is taken to do nothing."""
    graph = make_layers()
    unknown = Choice("Softmax+", "1")
    simulator = OrtSimulator(draw_blueprint(graph.run(), graph.run(graph.space.all_on)), {}, [DROPOUT, unknown])
    configs = [Config(frozenset(rows)) for rows in ([DROPOUT], [DROPOUT, unknown])]
    alone, both = simulator.simulate(simulator.matrix(configs)).peak_bytes
    assert alone == both
