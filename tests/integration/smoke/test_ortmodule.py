import re

import pytest

HEAP = 0.02
"""Share by which the heap of a longer process grows beyond that of the few steps which confirmed a config."""

NEAR = 0.05
"""Share by which the peaks of two processes that train the same may differ."""

LOSS = 1e-5
"""Share by which losses may differ where the same operators run in another order."""


def losses_in(text):
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def trained(tuned, road):
    return road.train("transformer.py", "--bs", "192", "--steps", "12", **tuned.answer["best"]["env"])


@pytest.fixture(scope="module")
def trained_without(road):
    return road.train("transformer.py", "--bs", "192", "--steps", "12")


def test_a_batch_that_fits_needs_no_recompute(unlimited, road):
    assert unlimited.code == 0, unlimited.stderr
    answer = unlimited.answer
    assert (answer["verdict"], answer["trials"]) == ("not_needed", 1)
    assert (answer["best"]["config"], answer["best"]["env"]) == ([], {})
    assert road.study("unlimited").count_rows() == 1


def test_a_config_that_fits_is_found_and_confirmed(tuned, limit_bytes):
    assert tuned.code == 0, tuned.stderr
    answer = tuned.answer
    assert answer["baseline"]["outcome"] == "over_limit"
    assert answer["best"]["confirmed"] is True
    assert answer["best"]["limit_bytes"] == limit_bytes
    assert answer["best"]["peak_bytes"] <= limit_bytes < answer["baseline"]["peak_bytes"]
    assert answer["verdict"] == "undecided"
    assert (answer["best"]["batch"], answer["command"][-2:]) == (192, ["--bs", "192"])


def test_what_a_trial_will_need_is_told_before_it(tuned, road):
    assert tuned.code == 0
    trials = [trial for trial in road.study("limited").trials if trial["config"]]
    assert trials
    for trial in trials:
        assert 0.9 < trial["measurement"]["peak_bytes"] / trial["prediction"]["peak_bytes"] < 1.1, trial["description"]


def test_a_swap_changes_what_is_held(tuned, road, trained, trained_without):
    best = tuned.answer["best"]["config"]
    peaks = {tuple(t["config"]): t["measurement"]["peak_bytes"] for t in road.study("limited").trials}
    assert peaks[()] == pytest.approx(trained_without.printed_peak_bytes, rel=NEAR)
    assert peaks[tuple(best)] == pytest.approx(trained.printed_peak_bytes, rel=NEAR)
    saved = trained_without.printed_peak_bytes - trained.printed_peak_bytes
    assert peaks[()] - peaks[tuple(best)] > saved / 2


def test_the_emitted_environment_saves_memory_and_gives_the_reported_peak(tuned, trained, trained_without, limit_bytes):
    assert trained.code == 0, trained.stderr
    assert tuned.answer["best"]["peak_bytes"] == pytest.approx(trained.printed_peak_bytes, rel=NEAR)
    assert limit_bytes < trained_without.printed_peak_bytes
    assert trained.printed_peak_bytes < trained_without.printed_peak_bytes
    assert trained.printed_peak_bytes <= (1 + HEAP) * limit_bytes


def test_recompute_leaves_the_losses_as_they_are(trained, trained_without):
    assert len(losses_in(trained.stdout)) == 12
    assert losses_in(trained.stdout) == pytest.approx(losses_in(trained_without.stdout), rel=LOSS)


def test_swapping_leaves_the_losses_as_they_are(tuned, road, trained_without):
    assert tuned.code == 0, tuned.stderr
    # The first worker gives way to one at a small batch.
    swapped = max(map(losses_in, road.study("limited").logs), key=len)
    assert len(road.study("limited").trials) > 2
    both = min(len(swapped), 12)
    assert both > 8
    assert swapped[:both] == pytest.approx(losses_in(trained_without.stdout)[:both], rel=LOSS)


def test_the_same_command_answers_from_the_study(tuned, tune_transformer, limit_bytes, road):
    before = road.study("limited").count_rows()
    again = tune_transformer(road, "limited", str(limit_bytes))
    assert (again.code, again.answer) == (0, tuned.answer)
    assert again.trial_lines == []
    assert road.study("limited").count_rows() == before
