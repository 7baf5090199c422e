"""Several batches, of which the larger needs recompute."""

from autorecompute.units import MIB
from fake_backend.trainer import launcher

LIMIT = 750 * MIB


def test_the_study_of_all_batches_is_a_study_and_the_same_command_repeats_its_answer(desk):
    options = ("--batches", "16,32", "--memory-limit", str(LIMIT), "--max-trials", "4", "--study", "several", "--json")
    compared = desk.tune(*options)
    assert compared.code == 0, compared.stderr
    emitted = desk.run("emit", "several", "--format", "json")
    assert emitted.answer["environment"] == compared.answer["best"]["env"]
    assert "several-b32" in desk.run("show", "several").stdout
    again = desk.tune(*options)
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
