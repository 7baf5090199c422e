"""PyTorch's CUDA caching allocator, by the rules of its source: each figure is computed by hand."""

import itertools
import random

import pytest

from autorecompute.backends.torch.allocator_pools import LARGE_SEGMENT, SMALL_SEGMENT
from autorecompute.backends.torch.caching_allocator import (
    AllocatorSettings,
    AllocatorStats,
    CachingAllocator,
    OutOfCardMemoryError,
    Request,
)
from autorecompute.errors import SetupError
from autorecompute.units import MIB

GROWING = AllocatorSettings(expandable_segments=True)
UNSPLIT = AllocatorSettings(max_split_size=32 * MIB)


def filled(*sizes, settings=None, limit=None):
    """An allocator with a block for each size: the storages are numbered from 0."""
    allocator = CachingAllocator(settings, limit)
    allocator.answer(Request(number, int(size)) for number, size in enumerate(sizes))
    return allocator


def emptied(*sizes, settings=None, limit=None):
    """An allocator whose segments for these sizes are free."""
    allocator = filled(*sizes, settings=settings, limit=limit)
    for number in range(len(sizes)):
        allocator.free(number)
    return allocator


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", AllocatorSettings()),
        ("expandable_segments:True", GROWING),
        ("backend:native, max_split_size_mb:32,garbage_collection_threshold:0.8", UNSPLIT),
    ],
)
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_settings_are_those_of_the_environment(name, text, settings):
    """Under either name, and what reserves nothing more is passed over."""
    assert AllocatorSettings.of({name: text}) == settings


@pytest.mark.parametrize(
    "text",
    [
        "roundup_power2_divisions:[256:1,512:2]",
        "backend:cudaMallocAsync",
        "max_split_size_mb:many",
        "max_split_size_mb:",
        "max_split_size_mb:5",
        "expandable_segments:True,max_split_size_mb:32",
    ],
)
def test_settings_that_are_not_modelled_are_refused(text):
    """No figure is better than that of other settings."""
    with pytest.raises(SetupError, match="Unset it, or leave out --card"):
        AllocatorSettings.of({"PYTORCH_CUDA_ALLOC_CONF": text})


@pytest.mark.parametrize(("size", "allocated"), [(1, 512), (512, 512), (513, 1024), (0, 0)])
def test_a_request_is_rounded_up_to_512_bytes(size, allocated):
    """What is asked for stays known, and no bytes take no block."""
    now = filled(size).now
    assert (now.allocated, now.requested) == (allocated, size)


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_a_segment_has_2_mib_or_20_mib_or_as_much_as_one_large_request(size, reserved):
    """Up to 1 MiB, below 10 MiB, and above that in steps of 2 MiB."""
    assert filled(size).now.reserved == reserved


def test_small_and_large_requests_share_no_segment():
    """A small one takes a segment of its own where a large one has room."""
    assert filled(2 * MIB, MIB).now.reserved == 22 * MIB


def test_a_small_segment_is_used_to_its_last_block():
    """A rest of 512 bytes is a block."""
    full = [MIB, MIB - 512, 512]
    assert filled(*full).now.reserved == 2 * MIB
    assert filled(*full, 1).now.reserved == 4 * MIB


@pytest.mark.parametrize(("size", "allocated"), [(11 * MIB, 12 * MIB), (11 * MIB - 512, 11 * MIB - 512)])
def test_a_large_block_is_split_where_more_than_1_mib_is_left(size, allocated):
    """A request takes the whole block otherwise."""
    allocator = emptied(12 * MIB)
    allocator.allocate(1, size)
    assert allocator.now == AllocatorStats(allocated, size, 12 * MIB)


def test_the_smallest_block_that_holds_a_request_is_taken():
    """So the larger one is left for a larger request."""
    allocator = emptied(30 * MIB, 14 * MIB)
    allocator.answer([Request(2, 12 * MIB), Request(3, 30 * MIB)])
    assert allocator.now.reserved == 44 * MIB


def test_of_blocks_of_one_size_the_lowest_address_is_taken():
    """Holes fill up from the front."""
    allocator = filled(4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB)
    hole = allocator.blocks[1].address
    for number in (3, 1):
        allocator.free(number)
    allocator.allocate(5, 4 * MIB)
    assert allocator.blocks[-1].address == hole


@pytest.mark.parametrize(("mib", "taken"), [(32, 2), (12, 2), (10, 0)])
def test_of_segments_of_one_size_the_lowest_address_is_taken(mib, taken):
    """A driver gives ranges of 32 MiB from above, and fills each from below: the third of 12 MiB begins another one."""
    allocator = filled(mib * MIB, mib * MIB, mib * MIB)
    addresses = [block.address for block in allocator.blocks]
    for number in range(3):
        allocator.free(number)
    allocator.allocate(3, mib * MIB)
    assert allocator.blocks[0].address == addresses[taken]


def test_a_free_block_joins_its_free_neighbours():
    """Both of them, so that the segment is whole again."""
    allocator = filled(4 * MIB, 4 * MIB, 4 * MIB)
    allocator.free(0)
    allocator.free(2)
    assert [block.size for block in allocator.pools[1].free_blocks] == [4 * MIB, 12 * MIB]
    allocator.free(1)
    assert [block.size for block in allocator.pools[1].free_blocks] == [20 * MIB]


def test_segments_never_join():
    """Two free segments hold no request of the size of both."""
    allocator = emptied(10 * MIB, 10 * MIB)
    allocator.allocate(2, 20 * MIB)
    assert allocator.now.reserved == 40 * MIB


def test_free_segments_go_back_before_a_request_fails():
    """Which counts as one retry, and the peak remembers them."""
    allocator = emptied(12 * MIB, 12 * MIB, limit=30 * MIB)
    allocator.allocate(2, 20 * MIB)
    assert allocator.now == AllocatorStats(20 * MIB, 20 * MIB, 20 * MIB, retries=1)
    assert allocator.peak == AllocatorStats(24 * MIB, 24 * MIB, 24 * MIB, retries=1)


def test_a_segment_with_one_live_block_does_not_go_back():
    """So a request fails that would have room beside what is allocated."""
    allocator = filled(4 * MIB, limit=30 * MIB)
    with pytest.raises(OutOfCardMemoryError, match=f"{12 * MIB} bytes .* {20 * MIB} reserved"):
        allocator.answer([Request(1, 16 * MIB), Request(2, 12 * MIB)])


def test_a_limit_can_be_used_to_the_last_byte():
    """What goes beyond it is refused, not what reaches it."""
    assert filled(30 * MIB, limit=30 * MIB).now.reserved == 30 * MIB


@pytest.mark.parametrize(
    ("cached", "size", "now"),
    [
        (40 * MIB, 16 * MIB, AllocatorStats(16 * MIB, 16 * MIB, 56 * MIB)),
        (40 * MIB, 32 * MIB, AllocatorStats(40 * MIB, 32 * MIB, 40 * MIB)),
        (60 * MIB, 40 * MIB, AllocatorStats(40 * MIB, 40 * MIB, 100 * MIB)),
        (60 * MIB, 41 * MIB, AllocatorStats(60 * MIB, 41 * MIB, 60 * MIB)),
    ],
    ids=["not for small", "never split", "20 MiB too large", "less than 20 MiB too large"],
)
def test_blocks_of_max_split_size_are_for_requests_of_their_size(cached, size, now):
    """They are not split, and are given whole to requests that need almost all of them."""
    allocator = emptied(cached, settings=UNSPLIT)
    allocator.allocate(1, size)
    assert allocator.now == now


def test_with_max_split_size_only_what_a_request_needs_goes_back():
    """The largest unsplit blocks, until they hold it; that is no retry."""
    allocator = emptied(34 * MIB, 40 * MIB, 50 * MIB, settings=UNSPLIT, limit=130 * MIB)
    allocator.allocate(3, 80 * MIB)
    assert allocator.now == AllocatorStats(80 * MIB, 80 * MIB, (34 + 80) * MIB)


def test_with_max_split_size_one_block_goes_back_where_it_is_enough():
    """The smallest of those."""
    allocator = emptied(90 * MIB, 80 * MIB, settings=UNSPLIT, limit=170 * MIB)
    allocator.allocate(2, 59 * MIB)
    assert allocator.now == AllocatorStats(60 * MIB, 59 * MIB, (90 + 60) * MIB)


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [((1,), 2), ((MIB + 1,), 20), ((1.5 * MIB, 30 * MIB), 40), ((1.5 * MIB, 30 * MIB, MIB), 42)],
)
def test_a_growing_segment_grows_by_pages(sizes, reserved):
    """Of 2 MiB for small requests and of 20 MiB for large ones, whatever one request takes."""
    assert filled(*sizes, settings=GROWING).now.reserved == reserved * MIB


def test_a_growing_segment_splits_large_blocks_too():
    """A rest of less than 1 MiB stays free."""
    allocator = emptied(12 * MIB, settings=GROWING)
    allocator.allocate(1, int(11.5 * MIB))
    assert allocator.now.allocated == 11.5 * MIB


def test_what_is_free_at_the_end_of_a_growing_segment_is_the_front_of_what_comes():
    """15 and 10 MiB take 25 MiB in a row, behind which there are two pages."""
    allocator = filled(15 * MIB, 10 * MIB, settings=GROWING)
    assert [block.address for block in allocator.blocks] == [0, 15 * MIB]
    assert allocator.now.reserved == 40 * MIB


def test_a_hole_is_taken_before_the_end_that_can_grow():
    """Even where the end fits better as it is."""
    allocator = filled(14 * MIB, 20 * MIB, settings=GROWING)
    allocator.free(0)
    allocator.allocate(2, 5 * MIB)
    assert allocator.blocks[-1].address == 0


def test_whole_pages_of_free_blocks_go_back():
    """Parts of pages stay, and so does what lies beside them."""
    allocator = filled(20 * MIB, 20 * MIB, 20 * MIB, settings=GROWING)
    allocator.free(0)
    allocator.free(2)
    allocator.empty_cache()
    assert allocator.now.reserved == 20 * MIB
    crossing = filled(10 * MIB, 20 * MIB, 10 * MIB, settings=GROWING)
    crossing.free(1)
    crossing.empty_cache()
    assert crossing.now.reserved == 40 * MIB


def test_pages_come_back_at_the_lowest_address_with_room():
    """A gap of 20 MiB holds a page again, and is passed over by what needs more."""
    allocator = filled(20 * MIB, 20 * MIB, settings=GROWING)
    allocator.free(0)
    allocator.empty_cache()
    allocator.answer([Request(2, 40 * MIB), Request(3, 20 * MIB)])
    assert [block.address // MIB for block in allocator.blocks] == [20, 40, 0]
    assert allocator.now.reserved == 80 * MIB


def test_a_growing_segment_has_room_where_segments_do_not():
    """Free pages in front and behind hold a request of both sizes within the limit."""
    sizes, request = (20 * MIB, 20 * MIB), Request(2, 40 * MIB)
    growing, fixed = emptied(*sizes, settings=GROWING, limit=40 * MIB), emptied(*sizes, limit=40 * MIB)
    growing.answer([request])
    fixed.answer([request])
    assert (growing.now.retries, fixed.now.retries) == (0, 1)


def test_peaks_are_forgotten_where_they_are_reset():
    """From then on they are those of what is there."""
    allocator = emptied(12 * MIB)
    allocator.reset_peak()
    assert allocator.peak == AllocatorStats(reserved=12 * MIB)


@pytest.mark.parametrize(("growing", "size"), [(False, 20 * MIB), (True, 21 * MIB)])
def test_settings_that_pytorch_refuses_or_the_model_does_not_know_are_refused(growing, size):
    """In a sentence about the setting."""
    with pytest.raises(ValueError, match="max_split_size_mb"):
        AllocatorSettings(expandable_segments=growing, max_split_size=size)


def parts_of(pool, allocator, *, is_small):
    """Blocks of a pool that a tensor has, and those that are free, by address."""
    taken = [block for block in allocator.blocks if (block.size <= MIB) == is_small]
    return sorted([*taken, *pool.free_blocks], key=lambda block: block.address)


def check(allocator):
    """What holds whatever was requested."""
    assert allocator.now.reserved >= allocator.now.allocated >= allocator.now.requested
    assert allocator.now.allocated == sum(block.size for block in allocator.blocks)
    for pool, is_small in zip(allocator.pools, (True, False), strict=True):
        parts = parts_of(pool, allocator, is_small=is_small)
        assert sum(block.size for block in parts) == pool.reserved
        for block, following in itertools.pairwise(parts):
            assert block.end <= following.address
            if block.after is following:
                assert block.end == following.address
                assert following.before is block
                assert block.is_allocated or following.is_allocated, "free neighbours are one block"


@pytest.mark.parametrize("settings", [AllocatorSettings(), UNSPLIT, GROWING], ids=["fixed", "unsplit", "growing"])
@pytest.mark.parametrize("limit", [None, 600 * MIB], ids=["", "limited"])
@pytest.mark.parametrize("seed", range(4))
def test_any_requests_leave_the_allocator_sound(settings, limit, seed):
    """Blocks never overlap, all memory is in one, and when all are free every segment is whole and can go back."""
    chance, alive = random.Random(seed), []
    allocator = CachingAllocator(settings, limit)
    for number in range(600):
        if alive and chance.random() < 0.45:
            allocator.free(alive.pop(chance.randrange(len(alive))))
        else:
            try:
                allocator.allocate(number, int(10 ** chance.uniform(0, 7.9)))
                alive.append(number)
            except OutOfCardMemoryError:
                assert limit is not None
        if chance.random() < 0.01:
            allocator.empty_cache()
        check(allocator)
        assert limit is None or settings.expandable_segments or allocator.now.reserved <= limit
    for number in alive:
        allocator.free(number)
    assert allocator.now.allocated == allocator.now.requested == 0
    for pool, page in zip(allocator.pools, (SMALL_SEGMENT, LARGE_SEGMENT), strict=True):
        free = pool.free_blocks
        assert sum(block.size for block in free) == pool.reserved
        if settings.expandable_segments:
            assert all(block.address % page == block.size % page == 0 for block in free)
        else:
            assert not any(block.is_split for block in free)
    allocator.empty_cache()
    assert allocator.now.reserved == 0
