"""What the answer says of memory that a card's allocator holds beyond the tensors."""

import dataclasses

import pytest

from autorecompute.reports.answer import describe_fragments
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB


@pytest.mark.parametrize(
    ("kind", "allocated", "is_told"),
    [("cuda", 600, True), ("cuda", 690, False), ("cpu", 600, False)],
    ids=["a seventh lost", "little lost", "no card"],
)
def test_what_an_allocator_loses_to_fragments_is_told(make_result, make_trial, kind, allocated, is_told):
    """With what may lose less; a CPU's allocator is another matter."""
    result = make_result(device=Device(kind=kind, name="Some Card", total_bytes=80 * GIB))
    own = make_trial(result.best.config, peak_bytes=700 * MIB, allocated_bytes=allocated * MIB)
    told = describe_fragments(result, [make_trial(), own])
    assert ("reserved 700 MiB of the card for 600 MiB of tensors" in told) is is_told
    assert bool(told) is is_told


def test_without_an_answer_nothing_is_told(make_result, make_trial):
    """There is no config whose memory it could be."""
    result = make_result(device=Device(kind="cuda", name="Some Card", total_bytes=80 * GIB))
    own = make_trial(result.best.config, peak_bytes=700 * MIB, allocated_bytes=100 * MIB)
    assert describe_fragments(dataclasses.replace(result, best=None), [own]) == ""
