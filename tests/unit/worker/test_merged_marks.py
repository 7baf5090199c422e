"""What cards did meanwhile, told of several ranks as one."""

from autorecompute.worker.merging import merge


def test_marks_of_all_ranks_are_kept_once(make_measurement):
    """Ranks share a machine and say the same of it; what only one of them saw is not lost."""
    first = make_measurement(marks=("power cap",), retries=0)
    second = make_measurement(marks=("power cap", "thermal slowdown"), retries=3)
    merged = merge({0: first, 1: second})
    assert merged.marks == ("power cap", "thermal slowdown")
    assert merged.retries == 3


def test_ranks_that_count_no_retries_have_none(make_measurement):
    """On CPUs there is no allocator that could."""
    assert merge({0: make_measurement(), 1: make_measurement()}).retries is None


def test_the_fullest_card_decides_what_is_free(make_detection):
    """One limit holds for all ranks."""
    merged = merge({0: make_detection(outside_bytes=3), 1: make_detection(outside_bytes=7)})
    assert merged.outside_bytes == 7
