"""A tuning that starts from what is known already: of a study here, or of one that comes with autorecompute."""

from pathlib import Path

import pytest

from workplace import PLAIN_BATCH

SCRIPT = Path(__file__).parents[2] / "studies" / "bert_mlm" / "train.py"
SHIPPED = "warm start from study bert_mlm"
NEXT_BATCH = PLAIN_BATCH + 4


@pytest.fixture
def place(make_plain_copy):
    """A working directory in which the transformer was tuned."""
    return make_plain_copy("known")


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--fresh",), marks=pytest.mark.thorough)], ids=["by default", "fresh"]
)
def test_another_batch_starts_from_the_shipped_study(workplace, options):
    """The same script at a batch that fits says where it starts from, unless it is told not to look."""
    limits = ("--target-batch", "4", "--memory-limit", "100GiB", "--json")
    tuned = workplace.tune(SCRIPT, *limits, *options, arguments=("--ortmodule",))
    assert tuned.code == 0, tuned.stderr
    source = tuned.answer["transferred_from"]
    if options:
        assert source is None
        assert SHIPPED not in tuned.stderr
    else:
        assert source["study"] == "bert_mlm"
        assert any("batch 4, not 32" in difference for difference in source["differences"])
        assert SHIPPED in tuned.stderr


def test_the_same_problem_costs_no_trial_in_another_study(plain_tuned, tune_plain, place):
    """A study of another name answers from the first one, with files of its own."""
    again = tune_plain(place, "limited-again")
    assert again.code == 0, again.stderr
    assert again.trial_lines == []
    assert again.answer["best"]["config"] == plain_tuned.answer["best"]["config"]
    assert again.answer["transferred_from"] == {"study": "limited", "differences": []}
    (path,) = again.answer["best"]["env"].values()
    assert path == str(place.study("limited-again").path / "best" / "plans.json")


def test_another_batch_starts_from_what_was_found(plain_tuned, tune_plain, place):
    """The config that was found for one batch is the first that is tried for the next."""
    larger = tune_plain(place, "larger", "--target-batch", str(NEXT_BATCH), "--max-trials", "2")
    assert larger.code in {0, 4}, larger.stderr
    assert "warm start from study limited" in larger.stderr
    assert f"batch {NEXT_BATCH}, not {PLAIN_BATCH}" in larger.stderr
    first, second = place.study("larger").trials
    assert first["config"] == []
    assert (second["config"], second["reason"]) == (plain_tuned.answer["best"]["config"], "answer of study limited")
    assert larger.answer["transferred_from"]["study"] == "limited"
