"""What is alive when, in steps that can be followed on paper."""

from __future__ import annotations

import pytest

from autorecompute.memory import Phase, find_chain, trace


@pytest.fixture
def step(make_step):
    """Two layers: each keeps ten bytes a sample for its backward, and the second makes twenty more on its way."""
    return make_step(
        "fflbb", ("x", 0, 4, "batch", "10"), ("y", 1, 3, "10*batch"), ("z", 1, 1, "batch", "20"), ("dy", 3, 4, "7")
    )


def test_a_tensor_is_alive_from_its_maker_to_its_last_reader(step):
    """The bytes of each moment are those of the tensors that live then, both ends included."""
    assert trace(step).live_bytes == (20, 80, 40, 47, 27)


def test_the_peak_is_where_most_is_alive(step):
    """The peak has a place, a size, and the tensors that make it up, largest first."""
    timeline = trace(step)
    assert (timeline.peak, timeline.peak_bytes) == (1, 80)
    assert [(tensor.name, size) for tensor, size in timeline.alive_at(1)] == [("z", 40), ("x", 20), ("y", 20)]


def test_the_stash_is_what_backward_reads_of_forward(step):
    """Neither what forward alone needs nor what backward makes is part of it."""
    assert trace(step).stash_bytes == 40


def test_shapes_follow_the_dimensions(step):
    """At five times the batch everything grows that depends on it, and nothing else."""
    assert trace(step, {"batch": 10}).live_bytes == (100, 400, 200, 207, 107)


def test_an_unknown_dimension_is_an_error(make_step):
    """A step in which a tensor has no size is none."""
    with pytest.raises(ValueError, match=r"2\*heads"):
        make_step("fl", ("x", 0, 1, "2*heads"))


def test_phases_add_up_to_the_whole(step):
    """What the phases hold at a moment is all that is held then."""
    timeline = trace(step)
    by_phase = timeline.live_by_phase()
    assert by_phase[Phase.BACKWARD] == (0, 0, 0, 7, 7)
    assert tuple(map(sum, zip(*by_phase.values(), strict=True))) == timeline.live_bytes


def test_what_outlives_the_step_is_alive_to_its_end(make_step):
    """A gradient that the step hands over is held until the last operation, and not beyond."""
    assert trace(make_step("flb", ("gradient", 2, 3, "4"))).live_bytes == (0, 0, 4)


def test_a_chain_is_what_has_to_be_recomputed_before_the_peak(make_step):
    """Three of four recomputed operations run before any backward: their tensors are most of the peak."""
    tensors = [(f"r{place}", place, last, "batch", "10") for place, last in ((3, 9), (4, 8), (5, 6), (7, 8))]
    chain = find_chain(trace(make_step("fflrrrbrbb", ("x", 0, 3, "6"), *tensors)))
    assert [operation.name for operation in chain.operations] == [
        "/model/layer.3/r",
        "/model/layer.4/r",
        "/model/layer.5/r",
    ]
    assert (chain.recomputed, chain.waiting_bytes) == (4, 60)
    assert chain.share_of_work == pytest.approx(0.75)


def test_a_step_without_recompute_has_no_chain(step):
    """Nothing is recomputed, so nothing waits."""
    chain = find_chain(trace(step))
    assert (chain.operations, chain.share_of_work, chain.waiting_bytes) == ((), 0.0, 0)
