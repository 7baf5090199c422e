"""NVML and torch's allocator on a real card."""

import pytest

from autorecompute.measurement import Outcome
from autorecompute.units import MIB

pytestmark = pytest.mark.gpu


def test_the_card_is_found_by_the_uuid_that_torch_gives(record):
    """And NVML's memory of it is at least torch's: the driver keeps a part."""
    figures = record.machine()
    assert figures["card_total_bytes"] >= figures["torch_total_bytes"] > 0


def test_the_three_figures_contain_each_other(record):
    """Tensors lie within what is reserved, and that within what is used on the card, with the context beside it."""
    figures = record.plain_loop()
    assert 0 < figures["peak_allocated_bytes"] <= figures["peak_reserved_bytes"]
    assert figures["reserved_now_bytes"] + 50 * MIB < figures["card_used_bytes"]
    assert figures["outside_bytes"] > 50 * MIB
    assert figures["retries"] == 0


def test_the_limit_is_enforced(record):
    """The allocator refuses what the card would have room for, and gives what lies within."""
    figures = record.beyond_limit()
    assert figures["within_limit_fits"]
    assert figures["outcome"] == Outcome.OOM


def test_a_real_lack_of_memory_is_known_by_its_text(record):
    """CUDA's own exception is an out-of-memory trial, not a fault of the script."""
    figures = record.beyond_card()
    assert "out of memory" in figures["text"]
    assert figures["outcome"] == Outcome.OOM


def test_retries_are_counted(record):
    """Giving free blocks back to meet a request is one retry, and is marked."""
    figures = record.thrashing()
    assert figures["retries_before"] == 0
    assert figures["retries"] == 1
    assert figures["marks"][0] == "1 allocator retry: fits but thrashes"


def test_looking_at_the_clocks_is_possible_and_cheap(record):
    """A card answers what holds its clocks down, in less than a step takes."""
    figures = record.clock_events()
    assert figures["looks"] > 0
    assert figures["median_look_seconds"] < 0.01
