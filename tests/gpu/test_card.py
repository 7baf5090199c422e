import pytest

from autorecompute.measurement import Outcome
from autorecompute.units import MIB

pytestmark = pytest.mark.gpu


def test_the_card_is_found_by_the_uuid_that_torch_gives(record):
    figures = record.machine()
    assert figures["card_total_bytes"] >= figures["torch_total_bytes"] > 0


def test_the_three_figures_contain_each_other(record):
    figures = record.plain_loop()
    assert 0 < figures["peak_allocated_bytes"] <= figures["peak_reserved_bytes"]
    assert figures["reserved_now_bytes"] + 50 * MIB < figures["card_used_bytes"]
    assert figures["outside_bytes"] > 50 * MIB
    assert figures["retries"] == 0


def test_the_limit_is_enforced(record):
    figures = record.beyond_limit()
    assert figures["within_limit_fits"]
    assert figures["outcome"] == Outcome.OOM


def test_a_real_lack_of_memory_is_known_by_its_text(record):
    figures = record.beyond_card()
    assert "out of memory" in figures["text"]
    assert figures["outcome"] == Outcome.OOM


def test_retries_are_counted(record):
    figures = record.thrashing()
    assert figures["retries_before"] == 0
    assert figures["retries"] == 1
    assert figures["marks"][0] == "1 allocator retry: fits but thrashes"


def test_looking_at_the_clocks_is_possible(record):
    assert record.clock_events()["looks"] > 0


WORKSPACES = 80 * MIB  # what cuBLAS may take for two threads, 32 MiB each on Hopper, with their segments


@pytest.mark.parametrize(
    ("setting", "lacking_bytes"),
    # What reserves so much more where large blocks are not split is not known.
    [("", WORKSPACES), ("expandable_segments:True", WORKSPACES), ("max_split_size_mb:64", 300 * MIB)],
)
def test_the_model_of_the_allocator_reserves_what_the_card_does_but_for_workspaces(
    compared_memory, setting, lacking_bytes
):
    for name, figures in compared_memory[setting].items():
        assert figures["replayed"] == figures["card"], name
        # Workspaces of libraries are not tensors, so no fake step has them.
        assert abs(figures["card"] - figures["faked"]) <= lacking_bytes, name
