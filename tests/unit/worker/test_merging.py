import dataclasses
import os

import pytest
import torch

from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.worker.protocol import LAUNCHER_VARIABLES, Failed, explain_missing_rank, merge


@pytest.mark.parametrize(
    ("figure", "one", "other", "merged"),
    [
        ("peak_bytes", 7, 9, 9),
        ("held_bytes", 2, 4, 4),
        ("allocated_bytes", None, 5, 5),
        ("device_bytes", None, None, None),
        ("step_seconds", (1.0, 4.0, 1.0), (2.0, 3.0, 1.0), (2.0, 4.0, 1.0)),
        ("cpu_seconds", (1.0, 3.0, 1.0), (2.0, 1.0, 1.0), (2.0, 3.0, 1.0)),
        ("warmup_seconds", 1.0, 2.0, 2.0),
        ("others_share", 0.1, 0.4, 0.4),
        ("samples", 8, 8, 16),
        ("batch", 8, 8, 8),
        ("warnings", ("odd",), ("odd", "strange"), ("odd", "strange")),
        ("marks", ("power cap",), ("power cap", "thermal slowdown"), ("power cap", "thermal slowdown")),
        ("retries", 0, 3, 3),
        ("retries", None, None, None),
    ],
)
def test_measurements_are_merged_to_the_worst_of_each_figure(make_measurement, figure, one, other, merged):
    found = merge({1: make_measurement(**{figure: one}), 0: make_measurement(**{figure: other})})
    assert (getattr(found, figure), found.outcome) == (merged, Outcome.OK)


@pytest.mark.parametrize("figure", ["resting_bytes", "outside_bytes"])
def test_the_fullest_rank_tells_what_is_held(make_detection, figure):
    merged = merge({0: make_detection(**{figure: 5}), 1: make_detection(**{figure: 6})})
    assert getattr(merged, figure) == 6


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_could_not_measure_speaks_for_all(make_measurement, rank):
    said = {0: make_measurement(), 1: make_measurement()}
    said[rank] = make_measurement(Outcome.DIVERGED, message="the loss is nan")
    merged = merge(said)
    assert merged.outcome is Outcome.DIVERGED
    assert f"rank {rank}" in merged.message
    assert "nan" in merged.message


def test_ranks_at_different_points_or_of_different_graphs_fail_and_are_told_to_pad_texts_of_other_lengths(
    make_detection, make_measurement
):
    """Dynamic padding gives each rank a first batch of its own length, and so another graph."""
    merged = merge({0: make_detection(), 1: make_detection(graph="ffff")})
    assert isinstance(merged, Failed)
    assert "different graphs" in merged.message
    said = [make_detection(dims={"batch": 8, "sequence": length}, graph=f"{length:x}") for length in (96, 128)]
    merged = merge(dict(enumerate(said)))
    assert "rank 0: batch 8, sequence 96" in merged.message
    assert "rank 1: batch 8, sequence 128" in merged.message
    assert "pad" in merged.message
    merged = merge({0: make_detection(), 1: make_measurement()})
    assert merged.outcome is Outcome.SCRIPT_ERROR
    assert "rank 0: Detection, rank 1: Measurement" in merged.message


def test_the_worst_gradients_count_and_the_whole_step_of_the_rank_that_needs_most():
    good, fair, bad = (
        GradientCheck(agrees=agrees, worst=worst, steps=1)
        for agrees, worst in ((True, 0.0), (True, 1e-6), (False, 0.5))
    )
    assert merge({0: good, 1: fair}) == fair
    assert merge({0: dataclasses.replace(good, worst=0.9), 1: bad}) == bad
    told = (GradientCheck(agrees=True, worst=0.0, steps=0, step_bytes=size) for size in (300, None, 500))
    assert merge(dict(enumerate(told))).step_bytes == 500


@pytest.fixture(autouse=True)
def _without_launcher(monkeypatch):
    for name in (*LAUNCHER_VARIABLES, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "look",
    [
        lambda: torch.distributed.init_process_group("gloo"),
        lambda: os.environ["LOCAL_RANK"],
        lambda: int(os.environ["WORLD_SIZE"]),
    ],
)
def test_a_script_that_looks_for_its_rank_is_told_of_the_launcher(look):
    with pytest.raises((ValueError, KeyError)) as raised:
        look()
    assert "--launcher" in explain_missing_rank(raised.value)


def test_other_errors_are_none_of_a_launchers(monkeypatch):
    for lack in (lambda: os.environ["NO_SUCH_VARIABLE"], lambda: {}["RANK"]):
        with pytest.raises(KeyError) as raised:
            lack()
        assert explain_missing_rank(raised.value) == ""
    assert explain_missing_rank(ValueError("LORA_RANK is 8, and RANK has to be less")) == ""
    monkeypatch.setenv("RANK", "0")
    assert explain_missing_rank(ValueError("MASTER_ADDR expected, but not set")) == ""
