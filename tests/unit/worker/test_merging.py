"""Several ranks told as one."""

import dataclasses

import pytest

from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.worker.merging import merge
from autorecompute.worker.protocol import Failed


def test_one_rank_speaks_for_itself(make_measurement):
    """What a single process said is left as it is."""
    assert merge({0: make_measurement()}) == make_measurement()


def test_measurements_are_merged_to_the_worst(make_measurement):
    """The highest peak, the slowest rank of each step, the samples of all and the batch of one."""
    merged = merge(
        {
            1: make_measurement(peak_bytes=7, step_seconds=(1.0, 4.0), samples=8, warmup_seconds=1.0, batch=8),
            0: make_measurement(peak_bytes=9, step_seconds=(2.0, 3.0), samples=8, warmup_seconds=2.0, batch=8),
        }
    )
    assert (merged.peak_bytes, merged.step_seconds, merged.warmup_seconds) == (9, (2.0, 4.0), 2.0)
    assert (merged.samples, merged.batch, merged.outcome) == (16, 8, Outcome.OK)
    assert merged.device_bytes is None


def test_what_is_held_and_warned_of_is_that_of_all_ranks(make_measurement):
    """The peak of one rank is not told beside what another one holds."""
    merged = merge(
        {
            0: make_measurement(peak_bytes=7, held_bytes=2, warnings=("odd",)),
            1: make_measurement(peak_bytes=9, held_bytes=4, warnings=("odd", "strange")),
        }
    )
    assert (merged.peak_bytes, merged.held_bytes, merged.warnings) == (9, 4, ("odd", "strange"))


def test_figures_of_some_ranks_are_not_lost(make_measurement):
    """A figure that one rank could not read is that of those who could."""
    merged = merge({0: make_measurement(allocated_bytes=None), 1: make_measurement(allocated_bytes=5)})
    assert merged.allocated_bytes == 5


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_could_not_measure_speaks_for_all(make_measurement, rank):
    """One diverged rank makes the outcome, and is named."""
    said = {0: make_measurement(), 1: make_measurement()}
    said[rank] = make_measurement(Outcome.DIVERGED, message="the loss is nan")
    merged = merge(said)
    assert merged.outcome is Outcome.DIVERGED
    assert f"rank {rank}" in merged.message
    assert "nan" in merged.message


def test_ranks_of_one_graph_detect_together(make_detection):
    """What is held at rest is that of the fullest rank."""
    assert merge({0: make_detection(resting_bytes=5), 1: make_detection(resting_bytes=6)}).resting_bytes == 6


def test_ranks_of_different_graphs_cannot_be_tuned(make_detection):
    """Pipeline stages are no replicas: the trial fails with a sentence."""
    merged = merge({0: make_detection(), 1: make_detection(graph="ffff")})
    assert isinstance(merged, Failed)
    assert "different graphs" in merged.message


def test_ranks_whose_texts_have_other_lengths_are_told_to_pad(make_detection):
    """Dynamic padding gives each rank a first batch of its own length, and so another graph."""
    said = [make_detection(dims={"batch": 8, "sequence": length}, graph=f"{length:x}") for length in (96, 128)]
    merged = merge(dict(enumerate(said)))
    assert "rank 0: batch 8, sequence 96" in merged.message
    assert "rank 1: batch 8, sequence 128" in merged.message
    assert "pad" in merged.message


def test_the_worst_gradients_count():
    """A rank that disagrees outweighs all that agree, and the larger difference counts among equals."""
    good, fair, bad = (
        GradientCheck(agrees=agrees, worst=worst, steps=1)
        for agrees, worst in ((True, 0.0), (True, 1e-6), (False, 0.5))
    )
    assert merge({0: good, 1: fair}) == fair
    assert merge({0: dataclasses.replace(good, worst=0.9), 1: bad}) == bad


def test_a_whole_step_takes_what_it_takes_on_the_rank_that_needs_most():
    """Whichever rank has the worst gradients; one that can run none tells nothing."""
    told = (GradientCheck(agrees=True, worst=0.0, steps=0, step_bytes=size) for size in (300, None, 500))
    assert merge(dict(enumerate(told))).step_bytes == 500


def test_ranks_at_different_points_fail(make_detection, make_measurement):
    """A rank that measures while another still detects cannot be told as one."""
    merged = merge({0: make_detection(), 1: make_measurement()})
    assert merged.outcome is Outcome.SCRIPT_ERROR
    assert "rank 0: Detection, rank 1: Measurement" in merged.message


def test_the_rank_that_worked_longest_and_was_disturbed_most_stands_for_all(make_measurement):
    """Processor time is the slowest rank's in each step, as wall time is."""
    first = make_measurement(step_seconds=(1.0, 2.0), cpu_seconds=(1.0, 3.0), others_share=0.1)
    second = make_measurement(step_seconds=(1.0, 2.0), cpu_seconds=(2.0, 1.0), others_share=0.4)
    merged = merge({0: first, 1: second})
    assert (merged.cpu_seconds, merged.others_share) == ((2.0, 3.0), 0.4)
