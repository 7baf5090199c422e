"""Scripts that cannot be tuned, and trials that break, each for a reason of its own."""

import json

import pytest

BREAKING = {
    "raise": ("script_error", "sample 17 cannot be read"),
    "oom": ("oom", "out of memory"),
    "SIGSEGV": ("crash", "SIGSEGV"),
    "SIGKILL": ("lost", "from outside"),
    "diverge": ("diverged", "nan"),
    "hang": ("hang", "no step for 300 s"),
}


@pytest.mark.parametrize(
    ("fault", "words", "outcome"),
    [
        ("raise", 'raise UnreadableSampleError("sample 17 cannot be read")', "script_error"),
        ("exit", "exit code 3", "script_error"),
        ("leave", "with exit code 1: the data lies nowhere: set DATA", "script_error"),
        ("SIGSEGV", "SIGSEGV", "crash"),
        ("diverge", "nan", "diverged"),
    ],
)
def test_a_script_that_breaks_without_recompute_ends_the_tuning_which_says_how(desk, fault, words, outcome):
    failed = desk.tune("--json", FAKE_FAULT=f"{fault}@0")
    assert failed.code == 5
    assert words in failed.complaint
    assert f"Outcome: {outcome}." in failed.complaint
    (log,) = (desk.study().path / "workers").iterdir()
    assert str(log) in failed.complaint


def test_a_trial_that_breaks_is_called_by_its_name_and_the_search_goes_on(desk):
    faults = " ".join(f"{fault}@{number}" for number, fault in enumerate(BREAKING, start=1))
    tuned = desk.tune("--memory-limit", "750MiB", "--sampler", "random", "--max-trials", "8", FAKE_FAULT=faults)
    assert tuned.code == 0, tuned.stderr
    measurements = [trial["measurement"] for trial in desk.study().trials]
    broken = measurements[1 : 1 + len(BREAKING)]
    assert [measured["outcome"] for measured in broken] == [outcome for outcome, _ in BREAKING.values()]
    for measured, (_, words) in zip(broken, BREAKING.values(), strict=True):
        assert words in measured["message"]
    assert measurements[-1]["outcome"] in {"ok", "over_limit"}
    (hung,) = (log for log in desk.study().logs if "hang at" in log)
    assert "trainer.py" in hung.split("most recent call first")[-1]


def test_a_script_that_ends_too_early_is_told_how_many_steps_a_trial_needs(desk):
    failed = desk.tune("--json", arguments=("--steps", "2"))
    assert failed.code == 5
    assert "after 2 steps" in failed.complaint
    assert "needs at least 4" in failed.complaint
    assert "--steps" in failed.complaint


def test_a_config_with_wrong_gradients_is_told_and_never_emitted(desk):
    tuned = desk.tune("--memory-limit", "750MiB", "--max-trials", "4", "--json", FAKE_WRONG="blocks.*")
    assert any("wrong_gradient: " in line and "by blocks.*" in line for line in tuned.stderr.splitlines())
    assert tuned.code == 4
    assert tuned.answer["best"] is None
    assert "has wrong gradients, by blocks.*" in tuned.complaint
    rejected = json.loads((desk.study().path / "rejected.json").read_text())["rejected"]
    assert {rejection["outcome"] for rejection in rejected} == {"wrong_gradient"}
