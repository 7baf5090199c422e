import dataclasses

import pytest

from autorecompute.errors import UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.folder import bind
from autorecompute.studies.problem import Head
from autorecompute.training_job import Device
from autorecompute.units import GIB, KIB, MIB
from unit.conftest import build_detection, build_space

LIMIT = 900 * MIB
CARD = Device(kind="cuda", name="Some Card", total_bytes=16 * GIB)
PROCESSOR = Device(kind="cpu", name="Some Processor", total_bytes=16 * GIB)
SGD, ADAM = ("python", "train.py", "--sgd"), ("python", "train.py", "--adam")


def test_equal_detections_are_one_problem_whatever_the_batches_of_their_first_steps():
    space = build_space()
    plans = [dataclasses.replace(plan, saving_bytes=None) for plan in reversed(space.plans)]
    other = build_detection(dataclasses.replace(space, plans=tuple(plans)), resting_bytes=1)
    first, second = Problem.of(build_detection(), LIMIT), Problem.of(other, LIMIT)
    assert first == second
    assert first.digest == second.digest
    assert first.differences(second) == []
    first, second = (make_head(dims={"batch": batch, "d1": 128}) for batch in (4, 32))
    assert first.differences(second) == ()


@pytest.mark.parametrize(
    ("change", "asked", "words"),
    [
        ({"graph": "ffff"}, {}, "graph ffff, not a1b2c3d4"),
        ({"batch": 16}, {}, "batch 16, not 32"),
        ({"plans": ()}, {}, "plans 0 plans ("),
        ({"device": CARD}, {}, "device cuda Some Card, not cpu"),
        ({"device": dataclasses.replace(PROCESSOR, total_bytes=8 * GIB)}, {}, "device memory 8.00 GiB"),
        ({"versions": {"torch": "2.4.0", "fake": "3.1", "backend": "fake"}}, {}, "torch 2.4.0, not 2.13.0"),
        ({"versions": {"torch": "2.13.0", "fake": "3.0", "backend": "fake"}}, {}, "fake 3.0, not 3.1"),
        ({}, {"limit_bytes": LIMIT + 1}, f"limit 900 MiB ({LIMIT + 1} bytes), not 900 MiB ({LIMIT} bytes)"),
    ],
)
def test_each_part_of_a_problem_counts_and_is_told(change, asked, words):
    here = Problem.of(build_detection(**change), **{"limit_bytes": LIMIT, **asked})
    kept = Problem.of(build_detection(), LIMIT)
    (difference,) = here.differences(kept)
    assert words in difference
    assert here.digest != kept.digest


@pytest.mark.parametrize(("less_bytes", "is_same"), [(12 * KIB, True), (64 * MIB, True), (GIB, False)])
def test_memory_that_a_restart_changes_makes_no_other_problem(less_bytes, is_same):
    stored, here = (
        Problem.of(build_detection(device=dataclasses.replace(PROCESSOR, total_bytes=size)), LIMIT)
        for size in (24 * GIB, 24 * GIB - less_bytes)
    )
    assert (here.differences(stored) == []) is is_same
    first, second = (Head.of("bert", SGD, problem, Sizes()) for problem in (stored, here))
    assert (first.compare(second) == []) is is_same


def make_head(command=SGD, *, device=CARD, times=1, **changes):
    """Its activations are so many times those of the others."""
    space = build_space()
    plans = tuple(dataclasses.replace(plan, saving=f"{times}*1024*batch") for plan in space.plans)
    detection = build_detection(dataclasses.replace(space, plans=plans), device=device, **changes)
    return Head.of("mine", command, Problem.of(detection, LIMIT), Sizes.of(detection))


@pytest.fixture
def go_on(tmp_path):
    """Begins a study with the first, goes on with the second, and gives what is said."""

    def go_on(device=CARD, **changes):
        folder, notes = StudyFolder("mine", tmp_path), []
        folder.prepare()
        assert bind(folder, make_head(device=device), notes.append)
        assert not bind(folder, make_head(device=device, **changes), notes.append)
        return notes

    return go_on


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"times": 4}, "activations 160 KiB, not 40 KiB"),
        ({"resting_bytes": 150 * MIB, "command": ADAM}, "memory between steps 150 MiB, not 100 MiB"),
        ({"resting_bytes": 150 * MIB}, "memory between steps 150 MiB, not 100 MiB"),
        ({"dims": {"d0": 32, "d1": 512}, "command": ADAM}, "d1 512, not 128"),
    ],
    ids=["stride", "optimizer", "optimizer in the script", "another length by another command"],
)
def test_another_training_is_refused(go_on, changes, words):
    with pytest.raises(UsageError, match=rf"holds another problem: here it is {words}"):
        go_on(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dims": {"d0": 32, "d1": 113}}, ["d1 113, not 128"]),
        ({"command": ADAM}, ["another command"]),
        ({}, []),
        ({"resting_bytes": 105 * MIB}, []),
        ({"resting_bytes": 300 * MIB, "device": PROCESSOR}, []),
    ],
    ids=["texts of another length", "command", "all the same", "a little memory", "memory of a CPU's process"],
)
def test_what_may_be_the_same_is_told_and_the_same_is_taken_without_a_word(go_on, changes, told):
    assert [note.partition("here it is ")[2] for note in go_on(**changes)] == told
