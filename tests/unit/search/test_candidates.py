import dataclasses
import itertools
import random

import numpy as np
import pytest

from autorecompute.backends.ortmodule.memory import OrtSimulator, draw_blueprint
from autorecompute.measurement import Outcome
from autorecompute.memory import STEP_ERROR, Simulated
from autorecompute.plans import Config, Space
from autorecompute.search.candidates import (
    MOST_MIXES,
    MOST_PLANS,
    Candidates,
    chance_to_work,
    choices_of,
    predict_frontier,
    undominated,
)
from fake_backend.space import BLOCKS, CHECKPOINT, GELU, HEAD, NORM, SPACE
from stand_ins.plans import plan_of_id
from unit.conftest import Graph, Node, build_trial


def make_tower(sizes):
    names = [f"Node{number}" for number in range(len(sizes))]
    forward = [
        Node(name, ("input",), {f"kept{name}": size}, again=True) for name, size in zip(names, sizes, strict=True)
    ]
    forward.append(Node("Sum", tuple(node.key for node in forward), {"sum": 1}))
    peak = [Node("Expand", ("dsum",), {"wide": 10_000}), Node("Reduce", ("wide",), {"narrow": 1})]
    backward = [Node("Grad", (f"kept{name}", "narrow"), {f"d{name}": 1}) for name in reversed(names)]
    return Graph(forward, ["sum"], [*peak, *backward])


def list_candidates(space, sizes=None):
    graph = make_tower(sizes or [1] * len(space.plans))
    blueprint = draw_blueprint(graph.run(), graph.run(graph.space.all_on))
    return Candidates(space, OrtSimulator(blueprint, {}, choices_of(space)))


def configs_of(candidates):
    return [candidates.config(place) for place in range(len(candidates))]


def test_every_subset_of_the_plans_is_there_once_and_no_config_twice(list_configs):
    """Nor where plans share rows, or a subgraph has both options."""
    space = make_tower([1] * 4).space
    candidates = list_candidates(space)
    configs = configs_of(candidates)
    assert len(configs) == 2**4
    assert set(configs) == set(list_configs(space))
    assert [candidates.places[config] for config in configs] == list(range(len(candidates)))
    assert [sum(line) for line in candidates.switches] == [len(config.choices) for config in configs]
    plans = [plan_of_id(key) for key in ("Node0+:1:-1", "Node0+:2:-1", "Node1+:1:-1", "Node2+:1:-1")]
    configs = configs_of(list_candidates(Space(plans=tuple(plans))))
    assert len(configs) == len(set(configs)) == 3 * 2 * 2
    assert all(any(config.has(plan) for config in configs) for plan in plans)
    space = Space(plans=(plan_of_id("Node0+:1:-1"), plan_of_id("Node0+:1:-1,Node1+:1:-1")))
    assert sorted(len(config.choices) for config in configs_of(list_candidates(space, [1, 1]))) == [0, 1, 2]


def test_of_many_plans_those_that_matter_are_taken():
    sizes = list(range(10, 10 * (MOST_PLANS + 3), 10))
    random.Random(0).shuffle(sizes)
    space = make_tower(sizes).space
    candidates = list_candidates(space, sizes)
    assert len(candidates) == 2**MOST_PLANS
    taken = {choices_of(space)[column].site for column in np.flatnonzero(candidates.switches.any(axis=0))}
    assert taken == {f"Node{number}+" for number, size in enumerate(sizes) if size > 20}


def test_a_plan_that_counts_is_there_at_each_count_and_some_blocks_are_mixed_with_parts_of_the_others(count_candidates):
    candidates = count_candidates(SPACE)
    configs = configs_of(candidates)
    assert len(set(configs)) == len(configs)
    assert [candidates.places[config] for config in configs] == list(range(len(configs)))
    assert not [
        config
        for config in configs
        for one, other in itertools.combinations(config.choices, 2)
        if SPACE.excludes(one, other)
    ]
    counted = [plan for plan in SPACE.plans if plan.counts]
    alone = [Config(frozenset(plan.chosen(count))) for plan in counted for count in range(1, BLOCKS + 1)]
    assert set(alone) | set(SPACE.presets.values()) <= set(configs)
    five, four, all_of_them = (candidates.places[Config(frozenset(CHECKPOINT.chosen(k)))] for k in (5, 4, None))
    above = candidates.supersets(five)
    assert (above[five], above[four], above[all_of_them]) == (True, False, True)
    peaks = candidates.simulated.peak_bytes
    saved = peaks[candidates.places[Config()]] - peaks
    assert saved[five] / saved[all_of_them] == pytest.approx(5 / BLOCKS, rel=1e-5)
    for count in range(1, BLOCKS):
        mixed = SPACE.with_plan(Config.of([GELU, NORM]), CHECKPOINT, count)
        shares = candidates.shares[candidates.places[mixed]]
        assert sum(shares) == pytest.approx(count / BLOCKS + 2 * (BLOCKS - count) / BLOCKS, rel=1e-5)


@pytest.mark.parametrize(("plans", "blocks"), [(8, 48), (30, 12), (40, 100)])
def test_there_are_never_more_mixes_than_can_be_looked_at(count_candidates, plans, blocks):
    offered = [dataclasses.replace(plan_of_id(f"site{n}:drop"), occurrences=blocks, counts=True) for n in range(plans)]
    space = Space(plans=tuple(offered))
    candidates = count_candidates(space)
    assert len(candidates) <= 2 * MOST_MIXES
    assert {*(Config.of([plan]) for plan in offered), Config(), space.all_on} <= set(candidates.places)


class TwoPeaks:
    """Memory with a peak in each kind of blocks, which only what is dropped in that kind lowers."""

    SAVED = np.array([40.0, 25.0, 50.0, 10.0])
    WORK = np.array([0.08, 0.02, 0.14, 0.03])
    AT_PEAKS = np.array([[1.0, 0.2], [1.0, 0.2], [0.2, 1.0], [0.2, 1.0]])

    call_seconds = np.zeros(4)
    step_error = STEP_ERROR

    def matrix(self, configs):
        return np.array([[0.0 if config.is_none else 1.0] * 4 for config in configs], dtype=np.float32)

    def simulate(self, switches):
        peaks = 100 - switches * self.SAVED @ self.AT_PEAKS
        return Simulated(
            peak_bytes=peaks.max(axis=1), stash_bytes=peaks.sum(axis=1), recompute_share=switches @ self.WORK
        )


def test_either_of_two_kinds_of_blocks_has_counts_of_its_own():
    kinds = {"decoder": 8, "encoder": 12}
    plans = [
        dataclasses.replace(plan_of_id(f"{kind}.{part}:drop"), occurrences=blocks, counts=True)
        for kind, blocks in kinds.items()
        for part in ("act", "norm")
    ]
    counts = itertools.product(*(np.arange(plan.occurrences + 1) / plan.occurrences for plan in plans))
    every = TwoPeaks().simulate(np.array(list(counts)))
    looked_at = Candidates(Space(plans=tuple(plans)), TwoPeaks()).simulated
    for limit in np.linspace(every.peak_bytes.min(), every.peak_bytes.max(), 50):
        cheapest = min(every.recompute_share[every.peak_bytes <= limit + 1e-6])
        assert min(looked_at.recompute_share[looked_at.peak_bytes <= limit + 1e-3]) <= cheapest + 0.003


def test_every_config_is_on_the_frontier_from_the_least_peak_to_no_recompute_or_beaten_by_one_that_is(make_linear):
    chance = np.random.default_rng(0)
    peaks, costs = chance.integers(0, 40, 300), chance.integers(0, 40, 300)
    places = undominated(peaks, costs)
    found = list(zip(peaks[places], costs[places], strict=True))
    assert found == sorted(found)
    assert [cost for _, cost in found] == sorted({cost for _, cost in found}, reverse=True)
    for peak, cost in zip(peaks, costs, strict=True):
        assert any(least <= peak and work <= cost for least, work in found)
    memory, dims = make_linear(SPACE), {"batch": 2}
    found = predict_frontier(memory, dims)
    simulated = Candidates(SPACE, memory.simulator(dims, choices_of(SPACE))).simulated
    assert found[-1] == memory.forecast(Config(), dims)
    assert found[0].live_bytes == round(float(simulated.peak_bytes.min()))
    assert all(forecast == memory.forecast(forecast.config, dims) for forecast in found)


PLANS = {"checkpoint": CHECKPOINT, "gelu": GELU, "norm": NORM, "head": HEAD}


def mix(**counts):
    return Config(frozenset(on for name, count in counts.items() for on in PLANS[name].chosen(count)))


@pytest.fixture
def judge(count_candidates):
    candidates = count_candidates(SPACE)

    def judge(*outcomes):
        trials = [build_trial(config, description=str(config), outcome=outcome) for config, outcome in outcomes]
        chance = chance_to_work(candidates, trials)
        return lambda **counts: pytest.approx(float(chance[candidates.places[mix(**counts)]]))

    return judge


@pytest.mark.parametrize("outcome", [Outcome.SCRIPT_ERROR, Outcome.WRONG_GRADIENT, Outcome.CRASH])
def test_what_fails_alone_is_tried_at_no_other_count(judge, outcome):
    chance = judge((mix(checkpoint=7), outcome))
    assert [chance(checkpoint=count) for count in (1, 6, 7, 8, None)] == [0.0] * 5
    assert chance(checkpoint=3, head=None) == 0
    assert chance(gelu=7) == chance() == 1


def test_what_worked_is_allowed_as_far_as_it_was_on_and_a_mix_of_it_is_ruled_out_with_all_that_has_more(judge):
    """A block further on may be the one that fails."""
    chance = judge((mix(checkpoint=3), Outcome.OK), (mix(checkpoint=7), Outcome.SCRIPT_ERROR))
    assert [chance(checkpoint=count) for count in (1, 3, 4, 7, None)] == [1, 1, 0, 0, 0]
    parts = [(mix(norm=None), Outcome.OK), (mix(head=None), Outcome.OK)]
    chance = judge((mix(norm=5, head=None), Outcome.CRASH), *parts)
    assert chance(norm=5, head=None) == chance(norm=6, head=None) == 0
    assert chance(norm=4, head=None) == chance(norm=None) == 1


def test_a_mix_that_failed_makes_each_plan_as_doubtful_until_what_is_common_to_several_is_to_blame(judge):
    chance = judge((mix(gelu=4, head=None), Outcome.SCRIPT_ERROR))
    assert chance(gelu=4) == chance(head=None) == chance(checkpoint=2, head=None) == 1 / 2
    assert chance(gelu=None, head=None) == 0
    assert chance(norm=None) == 1
    chance = judge((mix(norm=None, head=None), Outcome.CRASH), (mix(gelu=None, head=None), Outcome.CRASH))
    assert chance(head=None) == 0
    assert chance(gelu=None) == chance(norm=2) == 1
    chance = judge((mix(norm=None, head=None), Outcome.SCRIPT_ERROR), (mix(gelu=3, head=None), Outcome.OVER_LIMIT))
    assert chance(norm=1) == 0
    assert chance(gelu=None, head=None) == 1


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.LOST])
def test_other_failures_blame_no_plan(judge, outcome):
    chance = judge((mix(gelu=4), outcome))
    assert chance(gelu=4) == chance(gelu=2, head=None) == 1
