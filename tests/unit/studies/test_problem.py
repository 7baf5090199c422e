"""What makes two tunings the same."""

import dataclasses

import pytest

from autorecompute.studies import Problem, Sizes
from autorecompute.studies.archive_reading import read_archive
from autorecompute.studies.sources import shipped_folder
from autorecompute.studies.tuned import Tuned
from autorecompute.training_job import Device
from autorecompute.units import GIB, KIB, MIB

LIMIT = 900 * MIB

VERSIONS = {"torch": "2.13.0", "fake": "3.1", "backend": "fake"}


def test_equal_detections_are_one_problem(make_detection, make_space):
    """The order in which a training system lists its plans and what it says of their savings do not matter."""
    space = make_space()
    plans = [dataclasses.replace(plan, saving_bytes=None) for plan in reversed(space.plans)]
    other = make_detection(dataclasses.replace(space, plans=tuple(plans)), resting_bytes=1)
    first, second = Problem.of(make_detection(), LIMIT), Problem.of(other, LIMIT)
    assert first == second
    assert first.digest == second.digest
    assert first.differences(second) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"graph": "ffff"}, "graph ffff, not a1b2c3d4"),
        ({"batch": 16}, "batch 16, not 32"),
        ({"plans": ()}, "plans 0 plans ("),
        ({"device": Device(kind="cuda", name="Some Card", total_bytes=16 * GIB)}, "device cuda Some Card, not cpu"),
        ({"device": Device(kind="cpu", name="Some Processor", total_bytes=8 * GIB)}, "device memory 8.00 GiB"),
        ({"versions": {"torch": "2.4.0", "fake": "3.1", "backend": "fake"}}, "torch 2.4.0, not 2.13.0"),
        (
            {"versions": {"torch": "2.13.0", "fake": "3.0", "backend": "fake"}},
            "fake 3.0, not 3.1",
        ),
    ],
)
def test_each_part_of_a_problem_counts(make_detection, change, words):
    """Whatever changes the figures changes the digest, and is the one difference that is told."""
    here, kept = Problem.of(make_detection(**change), LIMIT), Problem.of(make_detection(), LIMIT)
    (difference,) = here.differences(kept)
    assert words in difference
    assert here.digest != kept.digest


def test_a_wrapped_script_is_a_problem_of_its_own(make_detection):
    """The same graph in a script that the tool wraps is another problem, and the difference is told."""
    here, kept = Problem.of(make_detection(), LIMIT, wrap=True), Problem.of(make_detection(), LIMIT)
    assert here.differences(kept) == ["wrap yes, not no"]
    assert here.digest != kept.digest


def test_limits_that_look_the_same_are_told_apart(make_detection):
    """Two limits that differ by a byte are two problems, and the difference shows."""
    here, kept = Problem.of(make_detection(), LIMIT), Problem.of(make_detection(), LIMIT + 1)
    (difference,) = here.differences(kept)
    assert str(LIMIT) in difference
    assert str(LIMIT + 1) in difference
    assert here.digest != kept.digest


@pytest.mark.parametrize(("less_bytes", "is_same"), [(12 * KIB, True), (64 * MIB, True), (GIB, False)])
def test_memory_that_a_restart_changes_makes_no_other_problem(make_detection, less_bytes, is_same):
    """A kernel that keeps a little more for itself leaves the problem what it is; another card does not."""
    stored, here = (
        Problem.of(make_detection(device=Device(kind="cpu", name="Some Processor", total_bytes=size)), LIMIT)
        for size in (24 * GIB, 24 * GIB - less_bytes)
    )
    assert (here.differences(stored) == []) is is_same
    first, second = (Tuned(problem=problem, sizes=Sizes(), command=("train",)) for problem in (stored, here))
    assert (first.compare(second) == []) is is_same


def test_a_shipped_study_is_known_after_a_restart():
    """The archive's own digest holds, and its problem is that of the machine with a little less memory."""
    (file,) = shipped_folder().glob("bert_mlm.jsonl.gz")
    problem = read_archive(file).head.problem
    assert dataclasses.replace(problem, device_bytes=problem.device_bytes + 12 * KIB).differences(problem) == []
