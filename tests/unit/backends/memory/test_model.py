import dataclasses
import random

import numpy as np
import pytest

from autorecompute.backends.ortmodule.controller import make_plan
from autorecompute.backends.ortmodule.memory import OrtMemoryModel, OrtSimulator, draw_blueprint, step_model, write_out
from autorecompute.backends.ortmodule.memory.blueprint import settle_durations
from autorecompute.memory import Phase, StepProfiles, trace
from autorecompute.plans import Choice, Config, Space
from autorecompute.units import MIB
from unit.conftest import Graph, Node, build_step

CHUNK, REGION, DEAD = step_model.CHUNK_BYTES, step_model.FIRST_REGION_BYTES, step_model.LARGEST_DEAD_BYTES
ALLOCATIONS = {
    "whole chunks count": ({"a": 1000}, 4 * CHUNK),
    "memory that came back is given out again": ({"a": 3000, "-a": 0, "b": 5000, "-b": 0, "c": 2000}, 20 * CHUNK),
    "a hole is no help to a larger tensor": (
        {"a": 10 * CHUNK, "b": 10 * CHUNK, "c": 10 * CHUNK, "-b": 0, "d": 11 * CHUNK},
        41 * CHUNK,
    ),
    "a hole before a hole is one with it": (
        {"a": 10 * CHUNK, "b": 10 * CHUNK, "c": 10 * CHUNK, "-a": 0, "-b": 0, "d": 20 * CHUNK},
        30 * CHUNK,
    ),
    "a hole behind a hole is one with it": (
        {"a": 10 * CHUNK, "b": 10 * CHUNK, "c": 10 * CHUNK, "-b": 0, "-a": 0, "d": 20 * CHUNK},
        30 * CHUNK,
    ),
    "the best fit is taken": (
        {"a": 30 * CHUNK, "b": CHUNK, "c": 10 * CHUNK, "d": CHUNK, "-a": 0, "-c": 0, "e": 9 * CHUNK, "f": 30 * CHUNK},
        42 * CHUNK,
    ),
    "regions double": ({"a": REGION // 2, "b": REGION}, REGION * 3 // 2),
    "regions never join": ({"a": REGION // 2, "b": REGION, "-a": 0, "-b": 0, "c": 3 * REGION}, REGION * 9 // 2),
    "a huge chunk is split for what would lie dead": ({"a": 4 * DEAD, "-a": 0, "b": 3 * DEAD, "c": DEAD}, 4 * DEAD),
}


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_an_arena_takes_what_was_written(name):
    arena, (events, taken) = step_model.Arena(), ALLOCATIONS[name]
    for key, size in events.items():
        if key.startswith("-"):
            arena.release(ord(key[1]))
        else:
            arena.allocate(ord(key), size)
    assert arena.touched_bytes == taken


@pytest.mark.parametrize("seed", range(5))
def test_an_arena_never_holds_less_than_what_is_alive(seed):
    chance, arena, alive, most = random.Random(seed), step_model.Arena(), {}, 0
    for key in range(3000):
        alive[key] = chance.randrange(1, 3 * MIB)
        arena.allocate(key, alive[key])
        most = max(most, sum(alive.values()))
        while len(alive) > 50 or (alive and chance.random() < 0.45):
            gone = chance.choice(list(alive))
            arena.release(gone)
            del alive[gone]
    assert most <= arena.touched_bytes <= 3 * most


def test_a_step_takes_what_its_tensors_need():
    size = str(4 * step_model.CHUNK_BYTES)
    step = build_step("flb", ("x", 0, 0, size), ("y", 1, 1, size), ("z", 0, 3, size))
    assert step_model.taken_bytes(trace(step)) == 8 * step_model.CHUNK_BYTES
    assert step_model.taken_bytes(trace(build_step("fl", ("x", 0, 1, "0")))) == 0


RESTING, WORKSPACE = 400 * MIB, MIB // 4
HUGE = str(MIB)
PLAN = make_plan("Gelu+:1:-1", occurrences=1, saving_bytes=1, saving="batch")

NONE = build_step("ffl" + "bbb", ("x", 0, 5, "batch", HUGE), ("y", 1, 4, "batch", HUGE))
ALONE = build_step(
    "fflr" + "bbb", ("x", 0, 6, "batch", HUGE), ("y", 1, 1, "batch", "8"), ("again", 3, 5, "batch", str(MIB // 2))
)
HELD = RESTING + step_model.taken_bytes(trace(NONE))
PROFILES = {Config(): NONE, Config.of([PLAN]): ALONE}
MODEL = OrtMemoryModel(
    Space(plans=(PLAN,)), StepProfiles(peak_bytes=HELD + WORKSPACE, held_bytes=HELD, profiles=PROFILES)
)
"""At a batch of 2: 2 MiB are kept a sample, with the plan one, and half as much work is added."""


def test_only_tensors_grow_with_the_batch_and_far_from_what_was_checked_less_is_sure():
    """Noise of a small step is not made large."""
    assert MODEL.forecast(Config(), MODEL.dims).peak_bytes == MODEL.small.peak_bytes
    forecast = MODEL.forecast(Config(), {"batch": 200})
    assert forecast.live_bytes == 400 * MIB
    taken = step_model.taken_bytes(MODEL.timeline(Config(), {"batch": 200}))
    assert forecast.peak_bytes == RESTING + taken + 100 * WORKSPACE
    small = dataclasses.replace(MODEL.small, peak_bytes=MODEL.small.peak_bytes + 10 * MIB)
    noisy = OrtMemoryModel(MODEL.space, small)
    far = {"batch": 20_000}
    assert noisy.forecast(Config(), far).peak_bytes < 1.15 * MODEL.forecast(Config(), far).live_bytes
    shares = [MODEL.forecast(Config(), {"batch": batch}).error_share for batch in (2, 40, 42)]
    assert shares == [step_model.WORST_ERROR, step_model.WORST_ERROR, 2 * step_model.WORST_ERROR]


def test_a_plan_saves_at_the_stash_costs_time_and_has_its_tensors_and_the_largest_batch_holds_the_limit():
    ((told, alone, _),) = MODEL.effects({"batch": 2})
    none = MODEL.forecast(Config(), {"batch": 2})
    assert told == PLAN
    assert none.stash_bytes - alone.stash_bytes == 2 * MIB
    assert none.live_bytes - alone.live_bytes == MIB
    assert alone.recompute_share == pytest.approx(1 / 6)
    assert MODEL.plans_by_tensor() == {"y": PLAN, "again": PLAN}
    limit = 900 * MIB
    batch = MODEL.largest_batch(Config(), {"batch": 2}, limit)
    assert MODEL.forecast(Config(), {"batch": batch}).peak_bytes <= limit
    assert MODEL.forecast(Config(), {"batch": batch + 1}).peak_bytes > limit
    assert MODEL.largest_batch(Config(), {"batch": 2}, RESTING) == 0


@pytest.mark.parametrize("dims", [{"batch": 2}, {"batch": 20}])
def test_the_base_is_what_a_forecast_has_beyond_its_tensors(dims):
    tensors = trace(MODEL.profiles[Config()], dims).peak_bytes
    assert MODEL.base_bytes(dims) + tensors == MODEL.forecast(Config(), dims).peak_bytes


DROPOUT, ADD = Choice("Mul+Dropout+", "1"), Choice("Reshape+Add+", "1")
USUAL = {"Mul": 1.0, "Dropout": 2.0, "Reshape": 0.1, "Add": 0.5}

LAYERS = 3


def forward(layer):
    below, here = layer - 1, layer
    return [
        Node("Mul", (f"sum{below}",), {f"scaled{here}": 1}, again=True),
        Node("Dropout", (f"scaled{here}",), {f"dropped{here}": 10, f"mask{here}": 2}, again=True),
        Node("Reshape", (f"dropped{here}",), {f"flat{here}": 0}, again=True, shares=True),
        Node("Add", (f"flat{here}", f"sum{below}"), {f"sum{here}": 4}, again=True),
    ]


def backward(layer):
    return [
        Node("Reshape", (f"sum{layer}",), {f"long{layer}": 0}, shares=True),
        Node("WeightGrad", (f"long{layer}", f"dsum{layer}"), {f"weight{layer}": 3}),
        Node("DropoutGrad", (f"dropped{layer}", f"dsum{layer}"), {f"dsum{layer - 1}": 4}),
    ]


PLACES = range(1, LAYERS + 1)
LAYERED = Graph(
    [node for layer in PLACES for node in forward(layer)],
    [f"sum{LAYERS}"],
    [node for layer in reversed(PLACES) for node in backward(layer)],
    results=[f"weight{layer}" for layer in PLACES],
)
"""Each of three layers keeps the result of a Dropout and a sum with the layer below.

Nobody reads the mask of a Dropout, and what stands before it is read in the forward pass alone. Both passes
reshape what they read.
"""


def draw_half(draw, names, operators, *, values, again):
    nodes = []
    for name in names:
        # Mostly from near by, as in a model.
        reads = {draw.choice(values[-5:]) for _ in range(draw.choice((1, 2, 2, 3)))}
        shares = draw.random() < 0.2
        makes = {name: 0 if shares else draw.randint(1, 100)}
        if not shares and draw.random() < 0.25:
            makes[f"{name}_too"] = draw.randint(1, 100)
        can_run = draw.random() < again
        nodes.append(Node(draw.choice(operators), tuple(sorted(reads)), makes, again=can_run, shares=shares))
        values = [*values, *makes]
    return nodes, values


def draw_graph(draw):
    count = draw.randint(6, 16)
    forward, values = draw_half(draw, [f"f{i}" for i in range(count)], "ABCD", values=["input"], again=0.6)
    own = [value for node in forward for value in node.makes if not node.shares]
    outputs = sorted({own[-1], draw.choice(own)})
    # The backward pass reads from the end to the beginning.
    values = [*draw.sample(values, len(values)), *(f"d{value}" for value in outputs)]
    backward = []
    for place in range(count):
        read = draw.sample(values, draw.choice((1, 2, 2, 3)))
        shares = draw.random() < 0.2
        gradient = Node("G", tuple(read), {f"b{place}": 0 if shares else draw.randint(1, 100)}, shares=shares)
        backward.append(gradient)
        values.append(gradient.key)
    made = own + [node.key for node in backward if not node.shares]
    return Graph(forward, outputs, backward, results=draw.sample(made, 2))


def blueprint_of(graph):
    return draw_blueprint(graph.run(), graph.run(graph.space.all_on))


def simulate(graph, configs, *, batch=1):
    choices = [plan.choices[0] for plan in graph.space.plans]
    simulator = OrtSimulator(blueprint_of(graph), {"batch": batch}, choices)
    return simulator.simulate(simulator.matrix(configs))


def keys_of(subgraphs):
    return {words: [tuple(op.key for op in nodes) for nodes in group] for words, group in subgraphs.items()}


@pytest.mark.parametrize("seed", range(30))
def test_for_any_graph_what_is_foretold_is_what_its_own_run_counts(list_configs, seed):
    graph = draw_graph(random.Random(seed))
    blueprint, configs = blueprint_of(graph), list_configs(graph.space)
    assert keys_of(blueprint.subgraphs) == graph.subgraphs
    simulated = simulate(graph, configs)
    assert list(zip(simulated.peak_bytes, simulated.stash_bytes, strict=True)) == list(map(graph.count_live, configs))
    for config in configs[1:]:
        written, own = trace(write_out(blueprint, config)), trace(graph.run(config))
        assert written.live_bytes == own.live_bytes
        assert written.live_by_phase() == own.live_by_phase()


def test_a_blueprint_is_drawn_from_none_and_all_on_in_the_order_of_a_step_with_recompute():
    """An order that ORT has without recompute alone says nothing of all others."""
    plain, full = LAYERED.run(), LAYERED.run(LAYERED.space.all_on)
    *first, last, next_to_last = plain.operations
    swapped = dataclasses.replace(plain, operations=(*first, next_to_last, last))
    assert draw_blueprint(swapped, full).operations == draw_blueprint(plain, full).operations
    assert [op.key for op in draw_blueprint(plain, full).operations] == [op.key for op in plain.operations]
    configs = [Config.of(LAYERED.space.plans[:1]), Config(), LAYERED.space.all_on]
    profiles = {config: LAYERED.run(config) for config in configs}
    model = OrtMemoryModel(LAYERED.space, StepProfiles(peak_bytes=1, held_bytes=1, profiles=profiles))
    assert set(model.blueprint.subgraphs) == {plan.choices[0].site for plan in LAYERED.space.plans}
    assert model.blueprint.plain == model.profiles[Config()]


def test_a_choice_of_no_subgraph_changes_nothing_and_configs_that_are_simulated_in_parts_are_none_lost_or_moved(
    monkeypatch,
):
    unknown = Choice("Softmax+", "1")
    simulator = OrtSimulator(blueprint_of(LAYERED), {}, [DROPOUT, unknown])
    configs = [Config(frozenset(rows)) for rows in ([DROPOUT], [DROPOUT, unknown])]
    alone, both = simulator.simulate(simulator.matrix(configs)).peak_bytes
    assert alone == both
    simulator = OrtSimulator(blueprint_of(LAYERED), {}, [DROPOUT, ADD])
    monkeypatch.setattr("autorecompute.memory.CHUNK", 3)
    switches = np.array([[draw & 1, draw >> 1 & 1] for draw in random.Random(0).choices(range(4), k=10)])
    each = [simulator.simulate(line[None]).peak_bytes[0] for line in switches]
    assert list(simulator.simulate(switches).peak_bytes) == each


def test_the_written_step_has_the_simulated_peak_at_another_batch():
    blueprint, config = blueprint_of(LAYERED), LAYERED.space.all_on
    step = write_out(blueprint, config)
    assert trace(step, {"batch": 3}).peak_bytes == simulate(LAYERED, [config], batch=3).peak_bytes[0]
    assert sum(operation.phase is Phase.RECOMPUTE for operation in step.operations) == len(blueprint.repeatable)


def timed(profile, seconds):
    operations = (
        dataclasses.replace(operation, seconds=seconds(place, operation))
        for place, operation in enumerate(profile.operations)
    )
    return dataclasses.replace(profile, operations=tuple(operations))


@pytest.mark.parametrize("disturbed", range(0, 6, 2))
def test_an_operation_that_lost_its_core_takes_what_its_like_take(disturbed):
    def seconds(place, operation):
        return USUAL.get(operation.operator, 1.0) * (100 if place == disturbed else 1)

    plain, full = timed(LAYERED.run(), seconds), timed(LAYERED.run(LAYERED.space.all_on), lambda _, op: seconds(-1, op))
    for profile in settle_durations((plain, full)):
        for operation in profile.operations:
            assert operation.seconds == USUAL.get(operation.operator, 1.0)
    blueprint = draw_blueprint(plain, full)
    assert {op.operator: op.seconds for op in blueprint.repeatable} == USUAL
