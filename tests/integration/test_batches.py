"""Several batches of the transformer, of which the larger needs recompute."""

import json
import sys

import pytest

from workplace import PLAIN_BATCH

STUDY = "several"
BATCHES = (PLAIN_BATCH // 2, PLAIN_BATCH)


@pytest.fixture(scope="module")
def place(make_plain_copy):
    """A working directory in which the larger of them was tuned."""
    return make_plain_copy("batches")


@pytest.fixture(scope="module")
def compare(tune_plain, place):
    """Compares two batches under a limit that the larger one breaks without recompute."""
    return lambda: tune_plain(place, STUDY, "--batches", ",".join(map(str, BATCHES)))


@pytest.fixture(scope="module")
def compared(compare):
    """The comparison, finished."""
    return compare()


def test_the_curve_is_measured_both_ways(compared, plain_limit_bytes):
    """The smaller batch fits as it is, the larger one with the config that was confirmed for it."""
    assert compared.code == 0, compared.stderr
    points = {point["batch"]: point for point in compared.answer["curve"]}
    small, large = (points[batch] for batch in BATCHES)
    assert (small["without"]["outcome"], small["with"]) == ("ok", None)
    assert large["without"]["outcome"] == "over_limit"
    assert large["with"]["peak_bytes"] <= plain_limit_bytes < large["without"]["peak_bytes"]
    assert large["with"]["config"]


def test_the_answer_is_one_of_the_batches_and_fits(compared, plain_limit_bytes):
    """What is recommended was asked for, holds the limit, and was held against the largest batch without recompute."""
    answer = compared.answer
    assert answer["best"]["batch"] in BATCHES
    assert answer["best"]["peak_bytes"] <= plain_limit_bytes
    assert BATCHES[0] <= answer["rival"]["batch"] < BATCHES[1]
    assert answer["verdict"] in {"recompute_pays", "does_not_pay", "undecided"}
    assert answer["comparison"]["pairs"] >= 1


def test_the_study_of_all_batches_is_a_study(compared, place, scripts):
    """``emit``, ``run`` and ``show`` take its name, and training under it holds the limit."""
    best = compared.answer["best"]
    emitted = place.finish(place.start("-m", "autorecompute", "emit", STUDY, "--format", "json"))
    assert json.loads(emitted.stdout)["environment"] == best["env"]
    shown = place.finish(place.start("-m", "autorecompute", "show", STUDY))
    assert f"{STUDY}-b{BATCHES[1]}" in shown.stdout
    command = (sys.executable, str(scripts / "plain_transformer.py"), "--bs", str(best["batch"]), "--steps", "4")
    trained = place.finish(place.start("-m", "autorecompute", "run", STUDY, "--", *command))
    assert trained.code == 0, trained.stderr
    assert trained.printed_peak_bytes <= 1.05 * best["limit_bytes"]


def test_the_same_command_repeats_the_answer(compared, compare):
    """A finished comparison is told again, and no trial is measured for it."""
    again = compare()
    assert again.code == 0, again.stderr
    assert again.answer == compared.answer
    assert again.trial_lines == []
