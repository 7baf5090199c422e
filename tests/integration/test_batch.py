"""The ways in which the target batch reaches the model."""

import re
from dataclasses import dataclass

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.effort import Effort

QUICK = Effort(warmup=1, steps=2)


@dataclass(frozen=True)
class Epochs:
    """A script with a batch of its own, tuned over many epochs, each of which ends with a smaller batch.

    Attributes:
        finished: How its tuning ended.
        trial: The only trial there was.
        lines: What the script printed: ``train`` or ``evaluate``, and the batch.
    """

    finished: object
    trial: dict
    lines: list

    def batches(self, loop):
        """The batches of this kind of loop, in order."""
        return [batch for word, batch in self.lines if word == loop]

    @property
    def later_batches(self):
        """The training batches of all epochs but the first."""
        first_evaluation = next(number for number, (word, _) in enumerate(self.lines) if word == "evaluate")
        return [batch for word, batch in self.lines[first_evaluation:] if word == "train"]


@pytest.fixture(scope="module", params=["0", "2"], ids=["read by itself", "read by two workers"])
def epochs(request, make_workplace):
    """A script whose DataLoader gives 8 of its 100 samples at a time, told to give 12."""
    place = make_workplace("epochs")
    options = ("--target-batch", "12", "--steps", "30", "--json")
    finished = place.tune("evaluating.py", *options, arguments=("--workers", request.param))
    assert finished.code == 0, finished.stderr
    measured = max(place.study().logs, key=len)
    lines = re.findall(r"^(train|evaluate) (\d+)$", measured, re.MULTILINE)
    (trial,) = place.study().trials
    return Epochs(finished, trial, [(word, int(batch)) for word, batch in lines])


def test_a_live_worker_is_told_another_batch_and_goes_back(scripts, tmp_path):
    """A window at a small batch, profiled, lies between two at the target, all on one process and with no step lost."""
    small = Effort(warmup=1, steps=2, profiles=True, batch=3)
    with Bench(Job(script=scripts / "evaluating.py"), 12, tmp_path) as bench:
        assert bench.can_change_batch
        measured = [bench.measure(Config(), effort) for effort in (QUICK, small, QUICK, small, QUICK)]
        assert bench.starts == 1
    assert [(each.outcome, each.batch, each.samples) for each in measured] == [
        (Outcome.OK, batch, batch) for batch in (12, 3, 12, 3, 12)
    ]
    assert [each.profile.dims["batch"] for each in measured if each.profile is not None] == [3, 3]


def test_the_first_order_of_a_worker_may_be_at_another_batch(scripts, tmp_path):
    """The session made at the target is made anew, and the target is what is measured after it."""
    small = Effort(warmup=1, steps=1, profiles=True, batch=3)
    with Bench(Job(script=scripts / "evaluating.py"), 12, tmp_path) as bench:
        measured = [bench.measure(Config(), effort) for effort in (small, QUICK)]
    assert [each.batch for each in measured] == [3, 12]
    assert measured[0].profile.dims["batch"] == 3


def test_a_flag_takes_the_batch(workplace):
    """The flag named by --batch-flag stands behind the script's arguments, with the batch, wherever it is started."""
    options = ("--target-batch", "10", "--batch-flag", "--bs", "--json")
    tuned = workplace.tune("classifier.py", *options, arguments=("--steps", "50"))
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["command"][-4:] == ["--steps", "50", "--bs", "10"]
    assert tuned.answer["best"]["batch"] == 10
    (trial,) = workplace.study().trials
    assert trial["measurement"]["samples"] == 10


def test_a_script_may_read_the_batch_from_its_environment(workplace):
    """A script that reads AUTORECOMPUTE_BATCH_SIZE trains with it from its first step on."""
    tuned = workplace.tune("environment.py", "--target-batch", "10", "--json")
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["best"]["batch"] == 10
    for log in workplace.study().logs:
        assert set(re.findall(r"^train (\d+)$", log, re.MULTILINE)) == {"10"}


def test_a_loader_is_told_the_batch(epochs):
    """Where the script takes no batch, its DataLoader gives the target, at the latest when an epoch is over."""
    assert 8 not in epochs.later_batches
    assert epochs.trial["measurement"]["samples"] == 12
    assert epochs.finished.answer["best"]["batch"] == 12


def test_epochs_end_with_the_batch_that_is_left(epochs):
    """The last batch of an epoch is as small as the data has it, and ends no trial."""
    assert set(epochs.later_batches) == {12, 100 % 12}
    assert epochs.later_batches.count(100 % 12) > 1


def test_a_loader_for_evaluation_keeps_its_batch(epochs):
    """A DataLoader that feeds no training forward gives the batches that it was made to give."""
    assert set(epochs.batches("evaluate")) == {5}


def test_a_loader_made_anew_for_each_epoch_is_told_as_well(workplace):
    """A script whose loop makes a DataLoader for every epoch trains with the target batch in all of them."""
    tuned = workplace.tune("classifier.py", "--target-batch", "10", "--steps", "40", "--json")
    assert tuned.code == 0, tuned.stderr
    (trial,) = workplace.study().trials
    assert trial["measurement"]["samples"] == 10


def test_a_larger_batch_of_the_scripts_own_leaves_no_trace(workplace):
    """Where the script's own batch is larger than the target, the process that confirms never sees it."""
    tuned = workplace.tune("evaluating.py", "--target-batch", "4", "--json")
    assert tuned.code == 0, tuned.stderr
    first, *later = [re.findall(r"^train (\d+)$", log, re.MULTILINE) for log in workplace.study().logs]
    assert first[0] == "8"
    assert later
    for batches in later:
        assert set(batches) == {"4"}


def test_an_evaluation_before_the_first_forward_is_not_taken_for_training(workplace):
    """A DataLoader for evaluation that is asked between a training batch and its forward keeps its batch too."""
    tuned = workplace.tune("evaluating.py", "--target-batch", "12", "--json", arguments=("--evaluate-first",))
    assert tuned.code == 0, tuned.stderr
    log = max(workplace.study().logs, key=len)
    assert "train 12" in log
    assert set(re.findall(r"^evaluate (\d+)$", log, re.MULTILINE)) == {"5"}


def test_a_batch_that_cannot_reach_the_model_is_refused(workplace):
    """A script that feeds tensors of its own making is refused, with the three ways to give it a batch."""
    refused = workplace.tune("tensors.py", "--target-batch", "10")
    assert refused.code == 2
    assert re.search(r"\b4\b.*\b10\b", refused.complaint)
    for way in ("{batch}", "--batch-flag", "AUTORECOMPUTE_BATCH_SIZE"):
        assert way in refused.complaint


def test_a_placeholder_needs_a_target(workplace):
    """Arguments with a place for the batch are refused where no batch is given."""
    refused = workplace.tune("classifier.py", arguments=("--bs", "{batch}"))
    assert refused.code == 2
    assert "--target-batch" in refused.complaint
