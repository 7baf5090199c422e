import functools
import json
from dataclasses import replace

import pytest

from autorecompute.errors import NothingFitsError, SetupError, UsageError
from autorecompute.figures import RaceEnd, Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.units import MIB
from fake_backend.controller import read_config
from stand_ins.emitted import choices_of, variables_of
from stand_ins.formula import FormulaBench
from stand_ins.sharing import measured


def contents(folder, *, but=None):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.suffix != but}


@pytest.fixture
def make_again(finished, tune_in):
    return functools.partial(tune_in, finished[0].folder.path.parent.parent)


def test_the_winner_holds_the_limit_has_won_the_race_and_no_trial_that_does_is_faster(finished):
    tuning, result = finished
    best = result.best
    assert (result.verdict, best.confirmed) == (Verdict.RECOMPUTE_PAYS, True)
    leader, relative = tuning.watcher.leaders[-1]
    assert (leader.config, relative) == (best.config, best.relative_throughput)
    assert best.peak_bytes <= best.limit_bytes == 600 * MIB
    fitting = [trial for trial in measured(tuning) if trial.fits]
    assert best.samples_per_second >= 0.98 * max(trial.measurement.samples_per_second for trial in fitting)
    assert result.baseline.outcome is Outcome.OVER_LIMIT
    assert result.presets["all_on"].outcome is Outcome.OK
    assert choices_of(tuning.folder) == best.config.texts
    assert (best.config, 32) in tuning.bench.watched
    kept_race = json.loads((tuning.folder.path / "race.json").read_text())
    assert result.best.ranking.end in {RaceEnd.RANKED, RaceEnd.TIE}
    assert result.best.relative_low <= result.best.relative_throughput <= result.best.relative_high
    assert kept_race["ranking"]["rounds"] == result.best.ranking.rounds == len(kept_race["standings"][0]["rounds"])
    assert any(result.best.ranking.sentence in note for note in tuning.watcher.notes)
    assert any("should be the fastest by all trials together" in note for note in tuning.watcher.notes)


def test_no_config_is_tried_twice_and_each_trial_is_kept_with_a_folder_to_repeat_it_from(finished):
    tuning, result = finished
    trials = measured(tuning)
    assert len(set(tuning.tried)) == len(tuning.tried) == result.trials
    assert [trial.config for trial in trials] == tuning.tried
    assert [trial.number for trial in trials] == list(range(result.trials))
    assert tuning.watcher.trials == trials
    assert tuning.watcher.told == [(tuning.bench.detection, 600 * MIB, 0, 40)]
    for trial in trials:
        folder = tuning.folder.trial(trial.number)
        environment = json.loads((folder / "environment.json").read_text())
        files = [] if trial.config.is_none else [folder / "plans.json"]
        assert list(environment.values()) == [str(file) for file in files]
        assert read_config(environment) == trial.config
        assert (folder / "output.log").read_text().endswith("measured\n")


@pytest.mark.parametrize("settings", [{}, {"max_trials": 1}], ids=["the same command", "fewer trials"])
def test_a_finished_problem_is_answered_at_once(finished, make_again, settings):
    tuning, result = finished
    before = contents(tuning.folder, but=".db")
    again = make_again(**settings)
    assert again.run() == result
    assert (again.bench.measured, again.bench.watched) == ([], [])
    assert contents(again.folder, but=".db") == before


@pytest.mark.parametrize(
    ("limit", "detected", "words"),
    [(700, {}, "limit 700 MiB"), (600, {"batch": 16}, "batch 16, not 32"), (600, {"graph": "ffff"}, "graph ffff")],
)
def test_another_problem_is_refused_by_name_and_changes_no_file(make_again, make_detection, limit, detected, words):
    again = make_again(detection=make_detection(**detected), limit_bytes=limit * MIB)
    before = contents(again.folder)
    with pytest.raises(UsageError, match=f"another problem.*{words}.*--study NAME"):
        again.run()
    assert contents(again.folder) == before


def test_a_baseline_out_of_memory_is_what_tuning_is_for(make_tuning):
    result = make_tuning(FormulaBench(oom_bytes=650 * MIB)).run()
    assert (result.baseline.outcome, result.baseline.peak_bytes) == (Outcome.OOM, None)
    assert result.best.peak_bytes <= 600 * MIB
    assert result.best.relative_throughput is None


def test_a_config_that_nothing_can_be_given_is_one_trial_among_others(make_tuning, make_detection, make_measurement):
    strange = Config.parse(["a\tb:drop"])
    tuning = make_tuning(detection=make_detection(own_presets={"strange": strange}))
    tuning.bench.broken[strange] = make_measurement(Outcome.SCRIPT_ERROR, message="Nothing was written.")
    result = tuning.run()
    (trial,) = [trial for trial in measured(tuning) if trial.config == strange]
    assert trial.measurement.message == "Nothing was written."
    assert json.loads((tuning.folder.trial(trial.number) / "environment.json").read_text()) == {}
    assert result.best.peak_bytes <= 600 * MIB


def test_more_trials_go_on(make_tuning):
    first = make_tuning(max_trials=4)
    result = first.run()
    assert (result.trials, result.search_end) == (4, SearchEnd.TRIALS)
    same = make_tuning(max_trials=4)
    assert same.run() == result
    assert same.bench.measured == []
    more = make_tuning(max_trials=7)
    assert more.run().trials == 7
    assert len(set(first.tried + more.tried)) == 7


def test_a_batch_that_fits_needs_no_recompute(make_tuning):
    tuning = make_tuning(limit_bytes=1000 * MIB)
    result = tuning.run()
    assert (result.verdict, result.rival) == (Verdict.NOT_NEEDED, None)
    assert (result.best.config, variables_of(tuning.folder)) == (Config(), {})
    assert result.best.confirmed
    assert (result.best.gradients, tuning.bench.checked) == (None, [])


def test_what_a_training_found_is_confirmed_before_it_is_an_answer(make_tuning):
    first = make_tuning()
    result = first.run()
    first.folder.finish(replace(result, best=replace(result.best, confirmed=False)))
    again = make_tuning()
    assert again.run().best.confirmed
    assert not set(again.tried) & set(first.tried)


def test_where_nothing_fits_the_study_keeps_that_answer(make_tuning):
    first, second = (make_tuning(limit_bytes=200 * MIB, max_trials=8) for _ in range(2))
    for tuning in (first, second):
        with pytest.raises(NothingFitsError, match=r"No config holds 200 MiB.*Try --memory-limit"):
            tuning.run()
    assert second.bench.measured == []
    assert first.folder.result().verdict is Verdict.NO_FIT
    assert first.folder.result().best is None


def test_trials_that_are_used_up_before_any_recompute_was_tried_say_nothing_of_memory(make_tuning):
    for _ in range(2):
        tuning = make_tuning(max_trials=1)
        with pytest.raises(NothingFitsError, match=r"No config that holds 600 MiB was found in 1 trial.*--max-trials"):
            tuning.run()
        result = tuning.folder.result()
        assert (result.verdict, result.compared, result.search_end) == (None, False, SearchEnd.TRIALS)
    assert tuning.bench.measured == []
    assert "solved" not in " ".join(tuning.watcher.notes)
    assert make_tuning(max_trials=16).run().best is not None


def test_a_process_that_needed_too_much_is_told_where_no_other_trial_was_allowed(make_tuning):
    tuning = make_tuning(limit_bytes=903 * MIB, max_trials=1)
    tuning.bench.every_life_bytes = 5 * MIB
    with pytest.raises(NothingFitsError, match=r"Not confirmed: none: its whole process reaches 905 MiB.*--max-trials"):
        tuning.run()
    assert tuning.folder.result().verdict is None


def test_warnings_of_the_script_are_told_once_and_kept(make_tuning):
    tuning = make_tuning(max_trials=4)
    tuning.bench.warnings = ("train.py:7 calls the model without a backward",)
    assert tuning.run().warnings == tuning.bench.warnings
    assert sum("train.py:7" in note for note in tuning.watcher.notes) == 1


def test_a_database_that_lost_trials_is_refused(make_root, tune_in):
    root = make_root()
    tuning = tune_in(root, max_trials=3)
    tuning.run()
    tuning.folder.database.write_bytes(b"")
    again = tune_in(root)
    with pytest.raises(SetupError, match="0 trials of the 3"):
        again.run()
    assert again.bench.measured == []
