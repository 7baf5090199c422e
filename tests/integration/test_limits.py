"""Memory limits that cannot be held."""

import re

import pytest


@pytest.fixture(scope="module")
def hopeless_place(make_workplace):
    """A working directory for a search in vain."""
    return make_workplace("hopeless")


@pytest.fixture(scope="module")
def searched_in_vain(hopeless_place, hopeless):
    """A search in vain, on a script that ends by itself after as many steps as one trial takes."""
    return hopeless_place.tune(*hopeless, "--max-trials", "3", "--json", arguments=("--steps", "5"))


def test_a_limit_below_rest_ends_at_once(below_rest, plain_road):
    """What the script holds before its first step tells without a trial that no config can fit."""
    assert below_rest.code == 4
    assert "64 MiB" in below_rest.complaint
    assert "no recompute can help" in below_rest.complaint
    assert "--memory-limit" in below_rest.complaint
    assert plain_road.study("below-rest").count_rows() == 0


def test_plans_are_detected_before_the_first_step(below_rest, plain_road):
    """The plans are known when the script has not taken one step yet."""
    assert re.search(r"\b[1-9]\d* plans\b", below_rest.stderr)
    assert not re.search(r"^step ", plain_road.study("below-rest").logs[0], re.MULTILINE)


def test_a_limit_that_no_config_holds_tells_the_least_peak(searched_in_vain, hopeless_place):
    """The sentence names the least peak there was, and a limit and a batch that would do."""
    assert searched_in_vain.code == 4
    assert (searched_in_vain.answer["verdict"], searched_in_vain.answer["best"]) == ("no_fit", None)
    least = min(trial["measurement"]["peak_bytes"] for trial in hopeless_place.study().trials)
    assert f"{least / 2**20:.0f} MiB" in searched_in_vain.complaint
    suggested = int(re.search(r"--memory-limit (\d+)MiB", searched_in_vain.complaint)[1])
    assert least <= suggested * 2**20 < 1.1 * least
    assert 1 <= int(re.search(r"--target-batch (\d+)", searched_in_vain.complaint)[1]) < 64


def test_a_script_that_ends_early_is_started_again(searched_in_vain, hopeless_place):
    """A script that is long enough for one trial is started again for each further one."""
    assert searched_in_vain.code == 4
    study = hopeless_place.study()
    assert [trial["measurement"]["outcome"] for trial in study.trials] == ["over_limit"] * 3
    assert len(study.logs) > 1


def test_a_limit_that_is_no_quantity_is_refused(workplace):
    """A limit that cannot be read is refused before anything starts, with a limit that could be."""
    refused = workplace.tune("classifier.py", "--memory-limit", "40 gigs")
    assert refused.code == 2
    assert "'40 gigs'" in refused.complaint
    assert "40GiB" in refused.complaint
    assert not (workplace.path / "studies").exists()
