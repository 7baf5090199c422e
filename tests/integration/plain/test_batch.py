"""The ways in which the target batch reaches the model."""

import re

import pytest


@pytest.fixture
def tune(workplace, in_plain_pytorch):
    return lambda script, *options, **more: workplace.tune(
        script, "--backend", "torch", *options, **more, **in_plain_pytorch
    )


def batches_in(log, loop):
    """The batches that the script printed of this kind of loop."""
    return [int(batch) for batch in re.findall(rf"^{loop} (\d+)$", log, re.MULTILINE)]


@pytest.mark.parametrize("workers", ["0", "2"], ids=["read by itself", "read by two workers"])
def test_a_loader_is_told_the_batch_when_an_epoch_is_over_at_the_latest(tune, workplace, workers):
    """It gives 8 of its 100 samples at a time, and the few that are left end no trial; that for evaluation stays."""
    tuned = tune("evaluating.py", "--target-batch", "12", "--steps", "30", "--json", arguments=("--workers", workers))
    assert tuned.code == 0, tuned.stderr
    assert workplace.processes() == [], "processes that read the data outlive the tuning"
    (trial,) = workplace.study().trials
    assert trial["measurement"]["samples"] == tuned.answer["best"]["batch"] == 12
    log = max(workplace.study().logs, key=len)
    later = batches_in(log.partition("evaluate")[2], "train")
    assert set(later) == {12, 100 % 12}
    assert later.count(100 % 12) > 1
    assert set(batches_in(log, "evaluate")) == {5}


def test_a_script_may_read_the_batch_from_its_environment(tune, workplace):
    """It trains with AUTORECOMPUTE_BATCH_SIZE from its first step on."""
    tuned = tune("tensors.py", "--target-batch", "10", "--json", arguments=("--from-environment",))
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["best"]["batch"] == 10
    assert {batch for log in workplace.study().logs for batch in batches_in(log, "train")} == {10}


def test_a_loader_made_anew_for_each_epoch_is_told_as_well(tune, workplace):
    tuned = tune("classifier.py", "--target-batch", "10", "--steps", "40")
    assert tuned.code == 0, tuned.stderr
    (trial,) = workplace.study().trials
    assert trial["measurement"]["samples"] == 10


def test_a_larger_batch_of_the_scripts_own_leaves_no_trace(tune, workplace):
    """Where the script's own batch is larger than the target, the process that confirms never sees it."""
    tuned = tune("evaluating.py", "--target-batch", "4")
    assert tuned.code == 0, tuned.stderr
    first, *later = [batches_in(log, "train") for log in workplace.study().logs]
    assert first[0] == 8
    assert later
    assert {batch for batches in later for batch in batches} == {4}


def test_an_evaluation_before_the_first_forward_is_not_taken_for_training(tune, workplace):
    """A DataLoader for evaluation that is asked between a training batch and its forward keeps its batch too."""
    tuned = tune("evaluating.py", "--target-batch", "12", arguments=("--evaluate-first",))
    assert tuned.code == 0, tuned.stderr
    log = max(workplace.study().logs, key=len)
    assert 12 in batches_in(log, "train")
    assert set(batches_in(log, "evaluate")) == {5}


def test_a_batch_that_cannot_reach_the_model_is_refused_with_three_ways_to_give_it(tune):
    refused = tune("tensors.py", "--target-batch", "10")
    assert refused.code == 2
    assert re.search(r"\b4\b.*\b10\b", refused.complaint)
    for way in ("{batch}", "--batch-flag", "AUTORECOMPUTE_BATCH_SIZE"):
        assert way in refused.complaint
