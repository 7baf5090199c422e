import dataclasses
import random

import pytest

from autorecompute.backends.ortmodule.controller import make_plan
from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.backends.ortmodule.memory.step_model import (
    CHUNK_BYTES,
    FIRST_REGION_BYTES,
    LARGEST_DEAD_BYTES,
    WORST_ERROR,
    Arena,
    taken_bytes,
)
from autorecompute.memory import StepProfiles, trace
from autorecompute.plans import Config, Space
from autorecompute.units import MIB

CHUNK, REGION, DEAD = CHUNK_BYTES, FIRST_REGION_BYTES, LARGEST_DEAD_BYTES
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
    arena, (events, taken) = Arena(), ALLOCATIONS[name]
    for key, size in events.items():
        if key.startswith("-"):
            arena.release(ord(key[1]))
        else:
            arena.allocate(ord(key), size)
    assert arena.touched_bytes == taken


@pytest.mark.parametrize("seed", range(5))
def test_an_arena_never_holds_less_than_what_is_alive(seed):
    chance, arena, alive, most = random.Random(seed), Arena(), {}, 0
    for key in range(3000):
        alive[key] = chance.randrange(1, 3 * MIB)
        arena.allocate(key, alive[key])
        most = max(most, sum(alive.values()))
        while len(alive) > 50 or (alive and chance.random() < 0.45):
            gone = chance.choice(list(alive))
            arena.release(gone)
            del alive[gone]
    assert most <= arena.touched_bytes <= 3 * most


def test_a_step_takes_what_its_tensors_need(make_step):
    size = str(4 * CHUNK_BYTES)
    step = make_step("flb", ("x", 0, 0, size), ("y", 1, 1, size), ("z", 0, 3, size))
    assert taken_bytes(trace(step)) == 8 * CHUNK_BYTES
    assert taken_bytes(trace(make_step("fl", ("x", 0, 1, "0")))) == 0


RESTING, WORKSPACE = 400 * MIB, MIB // 4
HUGE = str(MIB)


@pytest.fixture
def plan():
    return make_plan("Gelu+:1:-1", occurrences=1, saving_bytes=1, saving="batch")


@pytest.fixture
def model(make_step, plan):
    """At a batch of 2: 2 MiB are kept a sample, with the plan one, and half as much work is added."""
    none = make_step("ffl" + "bbb", ("x", 0, 5, "batch", HUGE), ("y", 1, 4, "batch", HUGE))
    alone = make_step(
        "fflr" + "bbb", ("x", 0, 6, "batch", HUGE), ("y", 1, 1, "batch", "8"), ("again", 3, 5, "batch", str(MIB // 2))
    )
    profiles = {Config(): none, Config.of([plan]): alone}
    held = RESTING + taken_bytes(trace(none))
    small = StepProfiles(peak_bytes=held + WORKSPACE, held_bytes=held, profiles=profiles)
    return OrtMemoryModel(Space(plans=(plan,)), small)


def test_only_tensors_grow_with_the_batch_and_far_from_what_was_checked_less_is_sure(model):
    """Noise of a small step is not made large."""
    assert model.forecast(Config(), model.dims).peak_bytes == model.small.peak_bytes
    forecast = model.forecast(Config(), {"batch": 200})
    assert forecast.live_bytes == 400 * MIB
    taken = taken_bytes(model.timeline(Config(), {"batch": 200}))
    assert forecast.peak_bytes == RESTING + taken + 100 * WORKSPACE
    small = dataclasses.replace(model.small, peak_bytes=model.small.peak_bytes + 10 * MIB)
    noisy = OrtMemoryModel(model.space, small)
    far = {"batch": 20_000}
    assert noisy.forecast(Config(), far).peak_bytes < 1.15 * model.forecast(Config(), far).live_bytes
    shares = [model.forecast(Config(), {"batch": batch}).error_share for batch in (2, 40, 42)]
    assert shares == [WORST_ERROR, WORST_ERROR, 2 * WORST_ERROR]


def test_a_plan_saves_at_the_stash_costs_time_and_has_the_tensors_that_it_saves(model, plan):
    ((told, alone, _),) = model.effects({"batch": 2})
    none = model.forecast(Config(), {"batch": 2})
    assert told == plan
    assert none.stash_bytes - alone.stash_bytes == 2 * MIB
    assert none.live_bytes - alone.live_bytes == MIB
    assert alone.recompute_share == pytest.approx(1 / 6)
    assert model.plans_by_tensor() == {"y": plan, "again": plan}


def test_the_largest_batch_is_the_last_that_holds_the_limit(model):
    limit = 900 * MIB
    batch = model.largest_batch(Config(), {"batch": 2}, limit)
    assert model.forecast(Config(), {"batch": batch}).peak_bytes <= limit
    assert model.forecast(Config(), {"batch": batch + 1}).peak_bytes > limit
    assert model.largest_batch(Config(), {"batch": 2}, RESTING) == 0


@pytest.mark.parametrize("dims", [{"batch": 2}, {"batch": 20}])
def test_the_base_is_what_a_forecast_has_beyond_its_tensors(model, dims):
    tensors = trace(model.profiles[Config()], dims).peak_bytes
    assert model.base_bytes(dims) + tensors == model.forecast(Config(), dims).peak_bytes
