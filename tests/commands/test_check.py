"""Whether a config that was tuned still holds."""

import pytest

from fake_backend.trainer import launcher

TRAINING = ("./launch", "train.py")


@pytest.fixture(scope="module")
def place(make_desk):
    place = make_desk()
    launch = place.path / "launch"
    launch.write_text(f'#!/bin/sh\nexec {launcher()} "$@"\n')
    launch.chmod(0o755)
    tuned = place.tune("--memory-limit", "750MiB", "--max-trials", "4", "--study", "limited", arguments=("--bs", "32"))
    assert tuned.code == 0, tuned.stderr
    return place


@pytest.fixture(scope="module")
def check(place):
    """Checks a study with this command, or with that which was tuned."""

    def check(*command, study="limited", options=(), **variables):
        return place.run("check", study, *options, "--", *(command or (*TRAINING, "--bs", "32")), **variables)

    return check


def test_a_config_is_valid_where_it_was_tuned(check):
    checked = check(options=("--json", "--steps", "2"))
    assert checked.code == 0, checked.stdout + checked.stderr
    assert checked.answer["valid"]
    verdicts = {line["what"]: line["verdict"] for line in checked.answer["lines"]}
    told = ("plans", "problem", "gradients", "peak of a step", "relative throughput")
    assert {what: verdicts[what] for what in told} == dict.fromkeys(told, "ok")
    assert checked.answer["peak_bytes"] <= 750 * 2**20


def test_a_config_of_another_model_is_not_valid(check):
    checked = check(FAKE_GONE="blocks.*")
    assert checked.code == 4, checked.stderr
    assert "would be ignored" in checked.stdout
    assert "not valid here" in checked.stdout
    assert "autorecompute tune" in checked.complaint


@pytest.mark.parametrize(
    ("command", "code", "words", "variables"),
    [((), 5, "script", {"FAKE_FAULT": "raise@start"}), ((*TRAINING, "--bs", "64"), 2, "batch of 64", {})],
    ids=["a script that fails", "another batch"],
)
def test_what_keeps_a_check_from_checking_has_its_own_code(check, command, code, words, variables):
    checked = check(*command, **variables)
    assert checked.code == code, checked.stderr
    assert words in checked.complaint
    assert checked.stdout == ""


def test_an_imported_study_is_emitted_once_it_was_checked(check, place):
    exported = place.run("studies", "export", "limited", "-o", "theirs.jsonl")
    assert exported.code == 0, exported.stderr
    assert place.run("studies", "import", "theirs.jsonl", "--study", "theirs").code == 0
    emit = ("emit", "theirs", "--format", "json")
    refused = place.run(*emit)
    assert (refused.code, refused.stdout) == (2, "")
    assert "never confirmed on this machine" in refused.complaint
    checked = check(*TRAINING, "--bs", "32", study="theirs", options=("--steps", "2"))
    assert checked.code == 0, checked.stderr
    emitted = place.run(*emit)
    assert emitted.code == 0, emitted.stderr
    assert emitted.answer["environment"]["FAKE_PLANS"].endswith("theirs/best/plans.json")
