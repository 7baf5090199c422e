"""Whole tunings on a card that exists on paper (``virtual_card``): what a user of a GPU would meet."""

import dataclasses
import json
from pathlib import Path

import pytest

import virtual_card
from autorecompute.tuning.context import RESERVE_BYTES
from autorecompute.units import MIB

LLAMA = Path(__file__).parents[3] / "studies" / "llama_clm" / "train.py"
SIZES = "--layers 4 --hidden 512 --heads 8 --key-value-heads 4 --sequence 1024 --autocast"
BATCH = 16

LIMIT = 1300 * MIB
"""Between what all blocks take and what none take, which is more than the card below has, too."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Attributes: answer: What ``tune`` prints; outcomes: Those of its trials, by config."""

    answer: dict
    outcomes: dict


@pytest.fixture(scope="module")
def tune(tmp_path_factory):
    def tune(*options, total_bytes=0):
        place = tmp_path_factory.mktemp("card")
        paper = virtual_card.Paper(model="H100", clock=str(place / "clock"), total_bytes=total_bytes)
        arguments = ("tune", str(LLAMA), "--target-batch", str(BATCH), "--json", *options, "--", *SIZES.split())
        done, _ = virtual_card.run(paper, *arguments, cwd=place)
        assert done.returncode == 0, done.stderr
        trials = [json.loads(file.read_text()) for file in place.glob("studies/*/trials/*/result.json")]
        outcomes = {trial["description"]: trial["measurement"]["outcome"] for trial in trials}
        return Tuned(json.loads(done.stdout), outcomes)

    return tune


@pytest.fixture(scope="module")
def on_a_larger_card(tune):
    return tune("--memory-limit", str(LIMIT))


def test_where_the_card_has_more_than_the_limit_no_trial_runs_out_of_memory(on_a_larger_card):
    assert on_a_larger_card.outcomes["none"] == "over_limit"
    assert "oom" not in on_a_larger_card.outcomes.values()
    assert on_a_larger_card.answer["best"]["confirmed"]
    assert on_a_larger_card.answer["best"]["peak_bytes"] <= LIMIT


def test_the_allocator_grows_its_segments(on_a_larger_card):
    assert on_a_larger_card.answer["versions"]["allocator"] == "expandable_segments:True"


def test_on_a_card_that_is_the_limit_what_surely_runs_out_of_memory_is_not_tried(tune):
    tuned = tune(total_bytes=LIMIT + virtual_card.CONTEXT_BYTES + RESERVE_BYTES)
    assert "none" not in tuned.outcomes
    assert tuned.answer["baseline"]["outcome"] is None
    assert tuned.answer["best"]["confirmed"]
