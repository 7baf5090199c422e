"""A tuning that passes by a config whose gradients are wrong, and a later one that does not forget it."""

from __future__ import annotations

import json
import re
import signal

import pytest

WRONG, RIGHT = "Dropout+", "Gemm+Softmax+"

LIMIT_SHARE = 0.965
"""Of the peak without recompute: either plan alone saves a tenth of it, and all of them together save less."""


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which Dropout is recomputed, and its masks get out of step."""
    return make_workplace("forgetful")


def gradients_of(trained):
    """By how much the last gradients of each step were off."""
    assert trained.code == 0, trained.stderr
    return [float(share) for share in re.findall(r"^gradient off by (\S+)$", trained.stdout, re.MULTILINE)]


@pytest.fixture(scope="module")
def trained(place):
    """The script, trained for a few steps under one plan each."""
    runs = {}
    for plan in ("", WRONG, RIGHT):
        file = place.path / f"plans{len(runs)}.json"
        file.write_text(json.dumps([f"{plan}:1:-1"] if plan else []))
        runs[plan] = place.train("forgetful.py", "--steps", "4", ORTMODULE_MEMORY_OPT_CONFIG=str(file))
    return runs


@pytest.fixture(scope="module")
def tune(trained, place):
    """Starts to tune the script, with so many trials, under a limit that it breaks without recompute."""
    limit = round(trained[""].printed_peak_bytes * LIMIT_SHARE)
    command = ("forgetful.py", "--memory-limit", str(limit), "--study", "forgetful", "--json", "--max-trials")
    return lambda trials: place.start_tuning(*command, trials)


@pytest.fixture(scope="module")
def killed(tune, place):
    """A tuning with no trial of a config that is right, killed when it knows of the wrong one; what it has told."""
    process = tune("3")
    rejected = place.path / "studies" / "forgetful" / "rejected.json"
    place.wait_until(lambda: process.poll() is not None or rejected.exists())
    process.kill()
    return place.finish(process)


@pytest.fixture(scope="module")
def resumed(killed, tune, place):
    """The same command, left alone."""
    assert killed.code == -signal.SIGKILL, killed.stderr
    return place.finish(tune("3"))


@pytest.fixture(scope="module")
def continued(resumed, tune, place):
    """The same with one trial more, which is that of a config that is right."""
    assert resumed.code == 4, resumed.stderr
    return place.finish(tune("4"))


def test_the_gradients_are_really_wrong(trained):
    """From the second step on the script itself sees it, under the one plan and no other."""
    assert max(gradients_of(trained[WRONG])[1:]) > 1e-3
    assert max(gradients_of(trained[RIGHT]) + gradients_of(trained[""])) < 1e-5


def test_wrong_gradients_are_told_by_name(killed):
    """The outcome, the plan and the line at fault are told at once."""
    assert re.search(rf"wrong_gradient: {re.escape(WRONG)} has wrong gradients, by {re.escape(WRONG)}: ", killed.stderr)
    assert "forgetful.py:" in killed.stderr


def test_wrong_gradients_are_never_emitted_and_outlast_a_kill(resumed):
    """Who goes on after a kill does not compare again; where nothing else fits, there is no answer but the reason."""
    assert f"wrong_gradient in an earlier session: {WRONG} has wrong gradients" in resumed.stderr
    assert "wrong_gradient: " not in resumed.stderr
    assert f"No config was confirmed. {WRONG} has wrong gradients" in resumed.complaint
    assert resumed.answer["best"] is None
    assert resumed.trial_lines == []


def test_another_config_is_emitted(continued, place):
    """Once another config fits, it is the answer, which tells of the wrong one still."""
    assert continued.code == 0, continued.stderr
    answer = continued.answer
    assert "wrong_gradient: " not in continued.stderr
    assert answer["best"]["config"] == [f"{RIGHT}:1:-1"]
    assert answer["best"]["gradients"]["agrees"]
    assert json.loads((place.study().path / "best" / "plans.json").read_text()) == [f"{RIGHT}:1:-1"]
    assert any(WRONG in sentence for sentence in answer["unconfirmed"])
