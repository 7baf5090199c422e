"""The figures of a comparison."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from figures import judge_goals, merge, quantile, times_fewer
from play import BUDGET
from searchers import OPTUNAS, OURS


def columns(trials, **changes):
    """A searcher's figures."""
    kept = {
        "seeds": 1,
        "trials": trials,
        **{f"regret_{count}": [0.0] * len(trials) for count in (10, 20, 40)},
        "answer_regret": [0.0] * len(trials),
        "is_infeasible": [False] * len(trials),
        "proposal_ms": 1.0,
        "longest_proposal_ms": 9.0,
    }
    return {**kept, **changes}


@pytest.mark.parametrize(
    ("trials", "share", "expected"),
    [([3, 1, 2], 0.5, 2), ([1, None, 9], 0.5, 9), ([1, None, None], 0.5, math.inf), (list(range(1, 11)), 0.9, 9)],
)
def test_runs_that_never_got_there_count_as_the_longest(trials, share, expected):
    """A quantile is of all runs, not of those that were successful."""
    assert quantile(trials, share) == expected


def test_ours_is_compared_with_the_best_of_optunas():
    """The best one counts; one that never got there took the whole budget at least."""
    best, worst, *_ = OPTUNAS
    assert times_fewer({OURS: columns([5]), best: columns([30]), worst: columns([None])}) == (6, best)
    assert times_fewer({OURS: columns([5]), worst: columns([None])}) == (BUDGET / 5, worst)
    assert times_fewer({OURS: columns([None]), worst: columns([90])}) is None
    assert times_fewer({OURS: columns([5])}) is None


def test_a_part_is_put_in_its_place(tmp_path):
    """What another run found of other searchers and tables stays."""
    file = tmp_path / "results.jsonl"
    merge(file, {"bert": {"a": columns([1]), "b": columns([2])}, "vit": {"a": columns([3])}})
    kept = merge(file, {"bert": {"b": columns([4])}})
    assert {name: {key: found["trials"] for key, found in part.items()} for name, part in kept.items()} == {
        "bert": {"a": [1], "b": [4]},
        "vit": {"a": [3]},
    }
    assert merge(file, {}) == kept
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 3


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"trials": [13, 13]}, ["median", "3x"]),
        ({"trials": [2, 26]}, ["90 %"]),
        ({"is_infeasible": [False, True]}, ["no infeasible"]),
        ({"longest_proposal_ms": 50.0}, ["proposals"]),
    ],
)
def test_a_goal_that_is_missed_is_called_so(changes, missed):
    """Every goal has its figure beside it."""
    ours = columns([10, 10], **changes) if "trials" not in changes else columns(**changes)
    goals = judge_goals({"bert": {OURS: ours, next(iter(OPTUNAS)): columns([36, 36])}})
    found = [goal for goal in goals if goal.startswith("missed")]
    assert len(goals) == 5
    assert len(found) == len(missed)
    assert all(word in goal for word, goal in zip(missed, found, strict=True))


def test_the_command_compares_and_keeps(write_journal, make_machine, tmp_path):
    """A part of the benchmark runs as a command, prints the goals, and its figures can be read again."""
    machine, output = make_machine(noise=0.05), tmp_path / "results.jsonl"
    file = write_journal(machine, list(machine.rows()))
    command = [sys.executable, bench.__file__, "--tables", str(file), "--seeds", "2", "--output", str(output)]
    searchers = ["--searchers", OURS, "optuna random", "presets"]
    root = Path(bench.__file__).parents[2]
    done = subprocess.run(
        [*command, *searchers],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "no infeasible answer: 0 of 12" in done.stdout
    found = merge(output, {})["model"]
    assert set(found) == {OURS, "optuna random", "presets"}
    assert [len(part["trials"]) for part in found.values()] == [12, 12, 12]
