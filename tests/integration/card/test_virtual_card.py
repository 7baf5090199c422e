"""Whole tunings on a card that exists on paper (``virtual_card``): what a user of a GPU would meet."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import virtual_card
from autorecompute.tuning.context import RESERVE_BYTES
from autorecompute.units import MIB
from autorecompute.worker.protocol import SETTINGS_VARIABLE
from workplace import SCRIPTS

SHORT, STEPS = str(SCRIPTS / "short_of_memory.py"), ("--steps", "18")
SHORT_BYTES = 650 * MIB + virtual_card.CONTEXT_BYTES
"""A card with less memory than the script takes without recompute."""

LLAMA = Path(__file__).parents[3] / "studies" / "llama_clm" / "train.py"
SIZES = "--layers 4 --hidden 512 --heads 8 --key-value-heads 4 --sequence 1024 --autocast"
BATCH = 16

LIMIT = 1300 * MIB
"""Between what all blocks take and what none take, which is more than the card below has, too."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Attributes: answer: What ``tune`` prints; outcomes: Those of its trials, by config; starts: Of its processes."""

    answer: dict
    outcomes: dict
    starts: int


@pytest.fixture(scope="module")
def tune(tmp_path_factory):
    def tune(*options, total_bytes=0, script=(str(LLAMA), "--target-batch", str(BATCH)), arguments=SIZES):
        place = tmp_path_factory.mktemp("card")
        paper = virtual_card.Paper(model="H100", clock=str(place / "clock"), total_bytes=total_bytes)
        words = ("tune", *script, "--json", *options, "--", *arguments.split())
        done, spent = virtual_card.run(paper, *words, cwd=place)
        assert done.returncode == 0, done.stderr
        trials = [json.loads(file.read_text()) for file in place.glob("studies/*/trials/*/result.json")]
        outcomes = {trial["description"]: trial["measurement"]["outcome"] for trial in trials}
        return Tuned(json.loads(done.stdout), outcomes, spent.starts)

    return tune


def test_where_the_card_has_more_than_the_limit_no_trial_runs_out_of_memory(tune):
    tuned = tune("--memory-limit", str(LIMIT))
    assert tuned.outcomes["none"] == "over_limit"
    assert "oom" not in tuned.outcomes.values()
    assert tuned.answer["best"]["confirmed"]
    assert tuned.answer["best"]["peak_bytes"] <= LIMIT
    assert tuned.answer["versions"]["allocator"] == "expandable_segments:True", "segments grow"


def test_on_a_card_that_is_the_limit_what_surely_runs_out_of_memory_is_not_tried(tune):
    tuned = tune(total_bytes=LIMIT + virtual_card.CONTEXT_BYTES + RESERVE_BYTES)
    assert "none" not in tuned.outcomes
    assert tuned.answer["baseline"]["outcome"] is None
    assert tuned.answer["best"]["confirmed"]


def test_memory_that_runs_out_while_it_is_tuned_does_not_end_a_training(tmp_path):
    """The card has less than it is told: forecasts take what runs out of memory to fit."""
    whole = virtual_card.Paper(model="H100", clock=str(tmp_path / "plain"))
    environment = {**os.environ, **whole.variables(), SETTINGS_VARIABLE: "a process with the card"}
    plain = subprocess.run([sys.executable, SHORT, *STEPS], env=environment, capture_output=True, text=True, check=True)
    paper = dataclasses.replace(whole, clock=str(tmp_path / "clock"), total_bytes=SHORT_BYTES)
    options = ("--memory-limit", "4GiB", "--study", "short", "--tuning-steps", "14")
    done, spent = virtual_card.run(paper, "train", SHORT, *options, "--", *STEPS, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    trials = [json.loads(file.read_text()) for file in tmp_path.glob("studies/*/trials/*/result.json")]
    outcomes = [trial["measurement"]["outcome"] for trial in trials]
    assert "oom" in outcomes
    assert "ok" in outcomes
    assert spent.starts == 1


def test_trials_that_run_out_of_memory_cost_no_processes(tune):
    """The card has less than it is told, also for those that confirm."""
    given = {"script": (SHORT, "--backend", "torch"), "arguments": "--steps 100000"}
    tuned = tune("--memory-limit", "900MiB", total_bytes=SHORT_BYTES, **given)
    failed = list(tuned.outcomes.values()).count("oom")
    assert tuned.answer["best"]["confirmed"]
    assert tuned.starts <= failed
