import json

import pytest

from autorecompute.plans import Config
from fake_backend.controller import PLANS_VARIABLE, unmeasured


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Has the environment name a file with this text."""

    def plan(text):
        (tmp_path / "planned.json").write_text(text)
        monkeypatch.setenv(PLANS_VARIABLE, str(tmp_path / "planned.json"))

    return plan


def test_a_planned_config_is_the_first_that_is_measured_after_the_reference(make_tuning, plan):
    tuning = make_tuning(max_trials=4)
    config = Config.of(tuning.bench.detection.plans[:1])
    plan(unmeasured(config, {}))
    tuning.run()
    first, second, third, *_ = tuning.watcher.trials
    assert (first.config, second.config, second.reason) == (Config(), config, "planned, unmeasured")
    assert third.reason != second.reason


def test_what_the_model_does_not_offer_is_told_and_the_search_goes_on(make_tuning, plan):
    tuning = make_tuning(max_trials=4)
    plan(unmeasured(Config.parse(["missing:drop"]), {}))
    assert tuning.run().best is not None
    assert any("does not offer" in note for note in tuning.watcher.notes)


def test_a_measured_file_in_the_environment_changes_nothing(make_tuning, plan):
    tuning = make_tuning(max_trials=3)
    plan(json.dumps({"plans": Config.of(tuning.bench.detection.plans[:1]).texts}))
    tuning.run()
    assert all("planned" not in trial.reason for trial in tuning.watcher.trials)
