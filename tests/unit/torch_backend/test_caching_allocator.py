"""PyTorch's CUDA caching allocator, by the rules of its source: each figure is computed by hand."""

import itertools
import random

import pytest

from autorecompute.backends.torch.forecast import caching_allocator
from autorecompute.errors import SetupError
from autorecompute.units import MIB

FIXED = {"expandable_segments": False, "max_split_size": None}
GROWING, UNSPLIT = FIXED | {"expandable_segments": True}, FIXED | {"max_split_size": 32 * MIB}


def after(requests, freed=(), then=(), settings=FIXED):
    """An allocator after requests of so many MiB, of which some are freed, by their numbers, before others."""
    allocator = caching_allocator.CachingAllocator(**settings)
    sizes = [(number, int(size * MIB)) for number, size in enumerate([*requests, *then])]
    allocator.answer(sizes[: len(requests)])
    for number in freed:
        allocator.free(number)
    allocator.answer(sizes[len(requests) :])
    return allocator


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", FIXED),
        ("expandable_segments:True", GROWING),
        ("backend:native, max_split_size_mb:32,garbage_collection_threshold:0.8", UNSPLIT),
    ],
)
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_settings_are_those_of_the_environment(name, text, settings):
    assert caching_allocator.settings_in({name: text}) == settings


@pytest.mark.parametrize(
    "text",
    [
        *("roundup_power2_divisions:[256:1,512:2]", "backend:cudaMallocAsync", "max_split_size_mb:many"),
        *("max_split_size_mb:", "max_split_size_mb:20", "expandable_segments:True,max_split_size_mb:32"),
    ],
)
def test_settings_that_are_not_modelled_are_refused(text):
    with pytest.raises(SetupError, match="Unset it, or leave out --card"):
        caching_allocator.settings_in({"PYTORCH_CUDA_ALLOC_CONF": text})


ONE, REST = 1 / MIB, 512 / MIB


@pytest.mark.parametrize(
    ("settings", "requests", "reserved"),
    [
        (FIXED, [ONE], 2),
        (FIXED, [1], 2),
        (FIXED, [1 + ONE], 20),
        (FIXED, [10 - REST], 20),
        (FIXED, [10], 10),
        (FIXED, [10 + ONE], 12),
        (FIXED, [33], 34),
        pytest.param(FIXED, [2, 1], 22, id="small and large requests share no segment"),
        pytest.param(FIXED, [1, 1 - REST, REST], 2, id="a small segment is used to its last block"),
        pytest.param(FIXED, [1, 1 - REST, REST, ONE], 4, id="and not beyond"),
        (GROWING, [ONE], 2),
        (GROWING, [1 + ONE], 20),
        (GROWING, [1.5, 30], 40),
        (GROWING, [1.5, 30, 1], 42),
        pytest.param(GROWING, [15, 10, 10], 40, id="what is free at its end is the front of what comes"),
    ],
)
def test_a_segment_has_2_or_20_mib_or_as_much_as_one_large_request_and_a_growing_one_pages_of_these(
    settings, requests, reserved
):
    assert after(requests, settings=settings).now.reserved == reserved * MIB


@pytest.mark.parametrize(
    ("cached", "settings", "size", "now"),
    [
        pytest.param([12], FIXED, 11, (12, 12), id="1 MiB is left"),
        pytest.param([12], FIXED, 11 - REST, (11 - REST, 12), id="more than 1 MiB is left"),
        pytest.param([12], GROWING, 11.5, (11.5, 20), id="growing ones leave less"),
        pytest.param([10, 10], FIXED, 20, (20, 40), id="segments never join"),
        pytest.param([40], UNSPLIT, 16, (16, 56), id="not for small"),
        pytest.param([40], UNSPLIT, 32, (40, 40), id="never split"),
        pytest.param([60], UNSPLIT, 40, (40, 100), id="20 MiB too large"),
        pytest.param([60], UNSPLIT, 41, (60, 60), id="less than 20 MiB too large"),
    ],
)
def test_a_free_block_is_split_where_enough_is_left(cached, settings, size, now):
    found = after(cached, range(len(cached)), [size], settings).now
    assert found == caching_allocator.AllocatorStats(int(now[0] * MIB), int(size * MIB), now[1] * MIB)


def check(allocator):
    assert allocator.now.reserved >= allocator.now.allocated >= allocator.now.requested
    assert allocator.now.allocated == sum(block.size for block in allocator.blocks.values())
    for pool, is_small in zip(allocator.pools, (True, False), strict=True):
        taken = [block for block in allocator.blocks.values() if (block.size <= MIB) == is_small]
        parts = sorted([*taken, *pool.free_blocks], key=lambda block: block.address)
        assert sum(block.size for block in parts) == pool.reserved
        for block, following in itertools.pairwise(parts):
            assert block.end <= following.address
            if block.after is following:
                assert block.end == following.address
                assert following.before is block
                assert block.is_allocated or following.is_allocated, "free neighbours are one block"


@pytest.mark.parametrize("settings", [FIXED, UNSPLIT, GROWING], ids=["fixed", "unsplit", "growing"])
@pytest.mark.parametrize("seed", range(4))
def test_any_requests_leave_the_allocator_sound(settings, seed):
    """Blocks never overlap, all memory is in one, and when all are free every segment is whole."""
    chance, alive = random.Random(seed), []
    allocator = caching_allocator.CachingAllocator(**settings)
    for number in range(600):
        if alive and chance.random() < 0.45:
            allocator.free(alive.pop(chance.randrange(len(alive))))
        else:
            allocator.allocate(number, int(10 ** chance.uniform(0, 7.9)))
            alive.append(number)
        check(allocator)
    for number in alive:
        allocator.free(number)
    assert allocator.now.allocated == allocator.now.requested == 0
    pages = caching_allocator.SMALL_SEGMENT, caching_allocator.LARGE_SEGMENT
    for pool, page in zip(allocator.pools, pages, strict=True):
        free = pool.free_blocks
        assert sum(block.size for block in free) == pool.reserved
        if settings["expandable_segments"]:
            assert all(block.address % page == block.size % page == 0 for block in free)
        else:
            assert not any(block.before or block.after for block in free)
