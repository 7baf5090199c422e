"""A config that trains something else, because its masks really get out of step, and a tuning that passes it by."""

import json
import re

import pytest

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.effort import Effort
from autorecompute.units import MIB

WRONG = "Dropout+"


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which Dropout is recomputed, and its masks get out of step."""
    return make_workplace("forgetful")


def gradients_of(trained):
    """By how much the last gradients of each step were off."""
    assert trained.code == 0, trained.stderr
    return [float(share) for share in re.findall(r"^gradient off by (\S+)$", trained.stdout, re.MULTILINE)]


@pytest.fixture(scope="module")
def plain(place):
    """The script, trained for a few steps without recompute."""
    return place.train("forgetful.py", "--steps", "4")


@pytest.fixture(scope="module")
def recomputed(place):
    """The same under its one plan."""
    file = place.path / "plans.json"
    file.write_text(json.dumps([f"{WRONG}:1:-1"]))
    return place.train("forgetful.py", "--steps", "4", ORTMODULE_MEMORY_OPT_CONFIG=str(file))


@pytest.fixture(scope="module")
def tuned(place, scripts, tmp_path_factory):
    """The script, tuned under a limit that its steps hold with the plan alone, which saves twice as much."""
    with Bench(Job(script=scripts / "forgetful.py", arguments=()), None, tmp_path_factory.mktemp("logs")) as bench:
        peak_bytes = bench.measure(Config(), Effort(warmup=1, steps=2)).peak_bytes
    limit = str(peak_bytes - 25 * MIB)
    return place.tune("forgetful.py", "--memory-limit", limit, "--max-trials", "2", "--study", "forgetful", "--json")


def test_the_gradients_are_really_wrong(plain, recomputed):
    """The script itself sees it: its last weights times their gradients no longer give the loss."""
    assert max(gradients_of(plain)) < 1e-5
    assert max(gradients_of(recomputed)[1:]) > 1e-4


def test_a_config_with_wrong_gradients_is_told_and_never_emitted(tuned, place):
    """The outcome is told by its name, with the plan and the line at fault; nothing is emitted, the reason is kept."""
    told = [line for line in tuned.stderr.splitlines() if "wrong_gradient: " in line]
    assert told
    assert all(f"by {WRONG}" in line and "forgetful.py:" in line for line in told)
    assert tuned.code == 4
    assert tuned.answer["best"] is None
    assert re.search(rf"Not confirmed: .* has wrong gradients, by {re.escape(WRONG)}", tuned.complaint)
    rejected = json.loads((place.study("forgetful").path / "rejected.json").read_text())["rejected"]
    assert {rejection["outcome"] for rejection in rejected} == {"wrong_gradient"}
