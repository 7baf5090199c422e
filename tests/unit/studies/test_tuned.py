"""What a study's folder takes for the same as what it was begun with."""

import dataclasses

import pytest

from autorecompute.errors import UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.tuned import Tuned, bind
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB

CARD = Device(kind="cuda", name="Some Card", total_bytes=16 * GIB)
PROCESSOR = Device(kind="cpu", name="Some Processor", total_bytes=16 * GIB)
SGD, ADAM = ("python", "train.py", "--sgd"), ("python", "train.py", "--adam")


@pytest.fixture
def make_tuned(make_detection, make_space):
    """A problem on a card, but for what is named; its activations are so many times those of the others."""

    def make(command=SGD, *, device=CARD, times=1, **changes):
        space = make_space()
        plans = tuple(dataclasses.replace(plan, saving=f"{times}*1024*batch") for plan in space.plans)
        detection = make_detection(dataclasses.replace(space, plans=plans), device=device, **changes)
        return Tuned(problem=Problem.of(detection, 900 * MIB), sizes=Sizes.of(detection), command=command)

    return make


@pytest.fixture
def notes():
    """What is said."""
    return []


@pytest.fixture
def go_on(tmp_path, make_tuned, notes):
    """Begins a study with the first, and goes on with the second."""

    def go_on(changes):
        folder = StudyFolder("mine", tmp_path)
        folder.prepare()
        assert bind(folder, make_tuned(), notes.append)
        assert not bind(folder, make_tuned(**changes), notes.append)

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
def test_another_training_is_refused(go_on, notes, changes, words):
    """Its answer would be that of the study, without a trial."""
    with pytest.raises(UsageError, match=rf"holds another problem: here it is {words}"):
        go_on(changes)
    assert notes == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"dims": {"d0": 32, "d1": 113}}, "d1 113, not 128"), ({"command": ADAM}, "another command")],
    ids=["texts of another length", "command"],
)
def test_what_may_be_the_same_is_told(go_on, notes, changes, words):
    """A shuffled first batch has texts of any length, and an option may be one that changes no step."""
    go_on(changes)
    (note,) = notes
    assert note.endswith(f"here it is {words}")


@pytest.mark.parametrize(
    "changes",
    [{}, {"resting_bytes": 105 * MIB}, {"resting_bytes": 300 * MIB, "device": PROCESSOR}],
    ids=["all", "a little memory", "memory of a CPU's process"],
)
def test_the_same_is_taken_without_a_word(tmp_path, make_tuned, notes, changes):
    """What a process holds on a CPU differs with what it has loaded."""
    folder, device = StudyFolder("mine", tmp_path), changes.get("device", CARD)
    folder.prepare()
    bind(folder, make_tuned(device=device), notes.append)
    bind(folder, make_tuned(**changes), notes.append)
    assert notes == []


def test_other_batches_of_the_first_step_are_no_difference(make_tuned):
    """Activations are told for the same number of samples."""
    first, second = (make_tuned(dims={"batch": batch, "d1": 128}) for batch in (4, 32))
    assert first.differences(second) == ()
