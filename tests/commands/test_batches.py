"""Several batches, of which the larger needs recompute."""

import pytest

from autorecompute.units import MIB
from fake_backend.trainer import launcher

BATCHES = (16, 32)
LIMIT = 750 * MIB


@pytest.fixture(scope="module")
def compare(place):
    listed = ",".join(map(str, BATCHES))
    options = ("--batches", listed, "--memory-limit", str(LIMIT), "--max-trials", "4", "--study", "several", "--json")
    return lambda: place.tune(*options)


@pytest.fixture(scope="module")
def compared(compare):
    finished = compare()
    assert finished.code == 0, finished.stderr
    return finished


def test_the_curve_is_measured_both_ways(compared):
    """The smaller batch fits as it is, the larger one with the config that was confirmed for it."""
    points = {point["batch"]: point for point in compared.answer["curve"]}
    small, large = (points[batch] for batch in BATCHES)
    assert (small["without"]["outcome"], small["with"]) == ("ok", None)
    assert large["without"]["outcome"] == "over_limit"
    assert large["with"]["peak_bytes"] <= LIMIT < large["without"]["peak_bytes"]
    assert large["with"]["config"]


def test_the_study_of_all_batches_is_a_study(compared, place):
    emitted = place.run("emit", "several", "--format", "json")
    assert emitted.answer["environment"] == compared.answer["best"]["env"]
    assert f"several-b{BATCHES[1]}" in place.run("show", "several").stdout


def test_the_same_command_repeats_the_answer(compared, compare):
    again = compare()
    assert (again.code, again.answer, again.trial_lines) == (0, compared.answer, [])


def test_a_flag_takes_the_batch_wherever_the_script_is_started(desk):
    tuned = desk.tune("--target-batch", "10", "--batch-flag", "--bs", "--max-trials", "1", "--json", arguments=("--x",))
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["command"][-3:] == ["--x", "--bs", "10"]
    assert tuned.answer["best"]["batch"] == 10
    (trial,) = desk.study().trials
    assert trial["measurement"]["samples"] == 10


def test_an_effective_batch_is_trained_with_one_command(desk):
    options = ("--global-batch", "64", "--batch-flag", "--bs", "--accumulation-flag", "--accum")
    tuned = desk.tune(*options, "--memory-limit", str(LIMIT), "--study", "effective", "--json")
    assert tuned.code == 0, tuned.stderr
    best = tuned.answer["best"]
    assert best["batch"] * best["accumulation"] == 64
    assert tuned.answer["command"][-4:] == ["--bs", str(best["batch"]), "--accum", str(best["accumulation"])]
    run = desk.run("run", "effective", "--", "echo", "--bs={batch}", "--accum={accumulation}")
    assert run.stdout.split() == [f"--bs={best['batch']}", f"--accum={best['accumulation']}"]
    assert f"micro-batch {best['batch']} x {best['accumulation']}" in run.stderr
    launch = desk.path / "launch"
    launch.write_text(f'#!/bin/sh\nexec {launcher()} "$@"\n')
    launch.chmod(0o755)
    sized = ("--bs", "{batch}", "--accum", "{accumulation}")
    checked = desk.run("check", "effective", "--", "./launch", "train.py", *sized)
    assert checked.code == 0, checked.stdout + checked.stderr
