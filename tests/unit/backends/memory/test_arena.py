import random

import pytest

from autorecompute.backends.ortmodule.memory.arena import (
    CHUNK_BYTES,
    FIRST_REGION_BYTES,
    LARGEST_DEAD_BYTES,
    Arena,
    taken_bytes,
)
from autorecompute.memory import trace
from autorecompute.units import MIB


@pytest.fixture
def arena():
    return Arena()


def test_what_is_taken_is_what_was_written(arena):
    arena.allocate(1, 1000)
    assert arena.touched_bytes == 4 * CHUNK_BYTES


def test_memory_that_came_back_is_given_out_again(arena):
    for size in (3000, 5000, 2000):
        arena.allocate(size, size)
        arena.release(size)
    assert arena.touched_bytes == 20 * CHUNK_BYTES


def test_a_hole_is_no_help_to_a_larger_tensor(arena):
    for key in (1, 2, 3):
        arena.allocate(key, 10 * CHUNK_BYTES)
    arena.release(2)
    arena.allocate(4, 11 * CHUNK_BYTES)
    assert arena.touched_bytes == 41 * CHUNK_BYTES


def test_holes_side_by_side_are_one():
    for order in ((1, 2), (2, 1)):
        fresh = Arena()
        for key in (1, 2, 3):
            fresh.allocate(key, 10 * CHUNK_BYTES)
        for key in order:
            fresh.release(key)
        fresh.allocate(4, 20 * CHUNK_BYTES)
        assert fresh.touched_bytes == 30 * CHUNK_BYTES


def test_the_best_fit_is_taken(arena):
    for key, chunks in ((1, 30), (2, 1), (3, 10), (4, 1)):
        arena.allocate(key, chunks * CHUNK_BYTES)
    arena.release(1)
    arena.release(3)
    arena.allocate(5, 9 * CHUNK_BYTES)
    arena.allocate(6, 30 * CHUNK_BYTES)
    assert arena.touched_bytes == 42 * CHUNK_BYTES


def test_regions_double_and_never_join(arena):
    arena.allocate(1, FIRST_REGION_BYTES // 2)
    arena.allocate(2, FIRST_REGION_BYTES)
    assert arena.touched_bytes == FIRST_REGION_BYTES * 3 // 2
    arena.release(1)
    arena.release(2)
    arena.allocate(3, 3 * FIRST_REGION_BYTES)
    assert arena.touched_bytes == FIRST_REGION_BYTES * 9 // 2


def test_a_huge_chunk_is_split_for_what_would_lie_dead(arena):
    whole = 4 * LARGEST_DEAD_BYTES
    arena.allocate(1, whole)
    arena.release(1)
    arena.allocate(2, 3 * LARGEST_DEAD_BYTES)
    arena.allocate(3, LARGEST_DEAD_BYTES)
    assert arena.touched_bytes == whole


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


def test_nothing_takes_nothing(make_step):
    assert taken_bytes(trace(make_step("fl", ("x", 0, 1, "0")))) == 0
