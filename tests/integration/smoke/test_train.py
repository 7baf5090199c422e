import json
import re

import pytest

from autorecompute.backends.torch.forecast.plans_file import VARIABLE
from autorecompute.tuning.while_training import NEXT_START

TRAINING = ("--steps", "44", "--dropout", "0.1", "--code", "7")

pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture(scope="module")
def trained(place, begin):
    return place.finish(begin(place, "trained", *TRAINING))


def test_a_training_is_the_same_bit_for_bit(trained, train_plainly):
    plain = train_plainly(*TRAINING)
    assert plain.code == trained.code == 7, trained.stderr
    assert plain.stdout == trained.stdout
    assert plain.stderr == ""


def test_its_steps_were_trials_and_one_line_says_what_is_on(trained, place, limit):
    study = place.study("trained")
    assert len(study.trials) > 1
    assert all(trial["measurement"]["outcome"] == "ok" for trial in study.trials)
    (line,) = trained.said
    assert re.search(r"from step \d+ on: .*, peak .* of .* samples/s", line)
    answer = json.loads((study.path / "result.json").read_text())
    assert answer["best"]["config"]
    assert answer["best"]["peak_bytes"] <= int(limit)
    assert not answer["best"]["confirmed"]


def test_the_next_start_answers_from_the_study(trained, place, begin, train_plainly):
    trials = place.study("trained").trials
    again = place.finish(begin(place, "trained", *TRAINING))
    assert again.code == trained.code
    assert again.stdout == train_plainly(*TRAINING).stdout
    assert place.study("trained").trials[: len(trials)] == trials
    if NEXT_START not in trained.said[0]:  # on a busy machine the steps may be too few to compare all
        assert re.search(r"from step 1 on: .* as study trained has it", again.said[0])


def test_other_verbs_know_the_study(trained, place):
    assert trained.said
    shown = place.finish(place.start("-m", "autorecompute", "show", "trained"))
    assert shown.code == 0, shown.stderr
    assert "not confirmed" in shown.stdout
    assert "found while training, where no smaller batch is tried" in shown.stdout
    assert "only with recompute" not in shown.stdout
    emitted = place.finish(place.start("-m", "autorecompute", "emit", "trained", "--format", "json"))
    assert VARIABLE in emitted.answer["environment"]
    reported = place.finish(place.start("-m", "autorecompute", "report", "trained"))
    assert reported.code == 0, reported.stderr
