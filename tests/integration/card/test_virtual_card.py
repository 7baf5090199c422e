"""Whole tunings on a card that exists on paper (``virtual_card``): what a user of a GPU would meet."""

import dataclasses
import json
from pathlib import Path

import pytest

import virtual_card
from autorecompute.units import MIB

LLAMA = Path(__file__).parents[3] / "studies" / "llama_clm" / "train.py"
SIZES = ("--layers", "4", "--hidden", "512", "--heads", "8", "--key-value-heads", "4", "--sequence", "512", "--autocast")
BATCH = 16

CONTEXT_BYTES, LIBRARY_BYTES = 600 * MIB, 512 * MIB
"""What CUDA takes of the virtual card, and what tuning leaves for libraries."""

LIMIT = 900 * MIB
"""Between what all blocks take and what none take; all weights, states and gradients take 400 MiB of it."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    answer: dict
    spent: virtual_card.Spent


@pytest.fixture(scope="module")
def tune(tmp_path_factory):
    def tune(*options, total_bytes=0):
        place = tmp_path_factory.mktemp("card")
        paper = virtual_card.Paper(model="H100", clock=str(place / "clock"), total_bytes=total_bytes)
        arguments = ("tune", str(LLAMA), "--target-batch", str(BATCH), "--json", *options, "--", *SIZES)
        done, spent = virtual_card.run(paper, *arguments, cwd=place)
        assert done.returncode == 0, done.stderr
        return Tuned(json.loads(done.stdout), spent)

    return tune


@pytest.fixture(scope="module")
def on_a_larger_card(tune):
    return tune("--memory-limit", str(LIMIT))


def test_where_the_card_has_more_than_the_limit_no_trial_runs_out_of_memory(on_a_larger_card):
    assert on_a_larger_card.spent.out_of_memory == 0
    assert on_a_larger_card.answer["baseline"]["outcome"] == "over_limit"
    assert on_a_larger_card.answer["best"]["confirmed"]
    assert on_a_larger_card.answer["best"]["peak_bytes"] <= LIMIT


def test_few_processes_are_started(on_a_larger_card):
    """One for all trials, one that confirms, the rival's and two pairs."""
    assert on_a_larger_card.spent.starts <= 7


def test_the_allocator_grows_its_segments(on_a_larger_card):
    assert on_a_larger_card.answer["versions"]["allocator"] == "expandable_segments:True"


def test_a_card_that_is_the_limit_is_tuned(tune):
    tuned = tune(total_bytes=LIMIT + CONTEXT_BYTES + LIBRARY_BYTES)
    assert tuned.answer["best"]["confirmed"]
