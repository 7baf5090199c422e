"""Memory limits that cannot be held."""

import re

import pytest


def test_a_limit_below_what_is_held_at_rest_ends_without_a_trial(desk):
    ended = desk.tune("--memory-limit", "64MiB")
    assert ended.code == 4
    assert "64 MiB" in ended.complaint
    assert "no recompute can help" in ended.complaint
    assert "--memory-limit" in ended.complaint
    assert desk.study().count_rows() == 0


@pytest.fixture(scope="module")
def place(make_desk):
    return make_desk()


@pytest.fixture(scope="module")
def searched_in_vain(place):
    """A search in vain, on a script that ends by itself after as many steps as one trial takes."""
    options = ("--memory-limit", "300MiB", "--target-batch", "32", "--max-trials", "3", "--json")
    finished = place.tune(*options, arguments=("--steps", "5"))
    assert finished.code == 4, finished.stderr
    return finished


def test_a_limit_that_no_config_holds_tells_the_least_peak_and_what_would_do(searched_in_vain, place):
    assert (searched_in_vain.answer["verdict"], searched_in_vain.answer["best"]) == ("no_fit", None)
    least = min(trial["measurement"]["peak_bytes"] for trial in place.study().trials)
    assert f"{least / 2**20:.0f} MiB" in searched_in_vain.complaint
    suggested = int(re.search(r"--memory-limit (\d+)MiB", searched_in_vain.complaint)[1])
    assert least <= suggested * 2**20 < 1.1 * least
    assert 1 <= int(re.search(r"--target-batch (\d+)", searched_in_vain.complaint)[1]) < 32


def test_a_script_that_is_long_enough_for_one_trial_is_started_again_for_each(searched_in_vain, place):
    assert searched_in_vain.trial_lines
    study = place.study()
    assert {trial["measurement"]["outcome"] for trial in study.trials} == {"over_limit"}
    assert len(study.logs) > 1
