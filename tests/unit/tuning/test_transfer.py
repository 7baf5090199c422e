"""A tuning that starts from what another study knows."""

import dataclasses
import json

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies import StudyFolder
from autorecompute.studies.records import read_records, write_records
from autorecompute.units import MIB
from fake_backend.controller import PLANS_VARIABLE, unmeasured
from stand_ins.formula import stop
from stand_ins.sharing import measured

SOURCE = "small"


@pytest.fixture
def begin(make_root, tune_in):
    """Begins a study of this name in one and the same folder."""
    root = make_root()
    return lambda name, **settings: tune_in(root, name=name, **settings)


def test_the_same_problem_that_nothing_fits_costs_no_trial_either(begin):
    first, second = (begin(name, limit_bytes=200 * MIB, max_trials=8) for name in (SOURCE, "again"))
    with pytest.raises(NothingFitsError) as told:
        first.run()
    with pytest.raises(NothingFitsError) as told_again:
        second.run()
    assert str(told_again.value) == str(told.value)
    assert second.bench.measured == []


def test_an_unfinished_study_of_the_same_problem_is_gone_on_with(begin):
    first, second = stop(begin(SOURCE), interrupt_at=9), begin("again")
    assert second.run().search_end is SearchEnd.NOTHING_LEFT
    assert second.watcher.told[0][2] == len(first.tried) > 0
    assert not set(first.tried) & set(second.tried)


def test_a_study_that_had_begun_starts_from_the_other_ones_answer_and_takes_over_nothing(begin):
    begun = stop(begin("again"), interrupt_at=9)
    answer = begin(SOURCE, is_fresh=True).run()
    second = begin("again")
    source = second.run().transferred_from
    assert (source.study, source.differences) == (SOURCE, ("this study had begun already",))
    assert not any("takes over" in note for note in second.watcher.notes)
    assert answer.best.config in (*begun.tried, second.tried[0])


def test_what_was_taken_over_is_told_in_every_session(begin):
    stop(begin(SOURCE), interrupt_at=9)
    stop(begin("again"), interrupt_at=2)
    assert begin("again").run().transferred_from.differences == ()
    assert begin(SOURCE).run().transferred_from.differences != ()


def test_starting_from_a_stored_study_takes_fewer_trials_to_the_best(begin, make_tuning):
    begin(SOURCE).run()
    scratch, tuning = make_tuning(limit_bytes=620 * MIB), begin("large", limit_bytes=620 * MIB)
    wanted = 0.98 * scratch.run().best.relative_throughput
    tuning.run()

    def until_as_fast(tuned):
        return next(trial.number for trial in measured(tuned) if trial.fits and trial.relative_throughput >= wanted)

    assert until_as_fast(tuning) < until_as_fast(scratch)


def test_a_fresh_study_takes_no_start(begin):
    begin(SOURCE).run()
    tuning = begin("large", is_fresh=True, limit_bytes=640 * MIB)
    result = tuning.run()
    assert result.transferred_from is None
    assert len(tuning.tried) == result.trials
    assert not any(f"study {SOURCE}" in note for note in tuning.watcher.notes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (None, "it was imported"),
        ({"machine": "0" * 16}, "it was measured on another machine"),
        ({"command": ["python", "other.py"]}, "another command"),
    ],
)
def test_a_tuning_confirms_here_what_was_found_elsewhere(make_root, tune_in, changes, told):
    """Also of another command, which may train the same graph by another optimizer."""
    root = make_root()
    solved = tune_in(root, name="solved")
    answer, folder = solved.run(), solved.folder
    if changes is None:
        records = read_records(folder)
        head = dataclasses.replace(records.head, study="theirs")
        write_records(dataclasses.replace(records, head=head), StudyFolder("theirs", root / "studies"))
        folder.path.rename(root / "elsewhere")
    else:
        file = folder.path / "study.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    tuning = tune_in(root, name="mine", max_trials=2)
    result = tuning.run()
    assert result.transferred_from.differences == (told,)
    assert result.best.config == answer.best.config
    assert tuning.tried == [Config(), answer.best.config]
    assert (answer.best.config, 32) in tuning.bench.watched


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
