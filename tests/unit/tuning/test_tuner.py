"""Whole tunings on a formula: found, kept, gone on with, refused."""

import fcntl
import functools
import json
from dataclasses import replace

import pytest

from autorecompute.errors import NothingFitsError, ScriptError, SetupError, UsageError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.ranking import RaceEnd
from autorecompute.result import SearchEnd
from autorecompute.studies.storage import read_trials
from autorecompute.trials.lock import lock_file
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from fake_backend.controller import read_config
from stand_ins.emitted import choices_of, variables_of


def contents(folder):
    """Every file of a study with its bytes."""
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def kept(tuning):
    """The trials on disk."""
    return read_trials(tuning.folder.database, tuning.folder.name)


@pytest.fixture
def make_again(finished, tune_in):
    """Begins another session of the finished study."""
    tuning, _ = finished
    return functools.partial(tune_in, tuning.folder.path.parent.parent)


def test_the_winner_holds_the_limit_and_no_trial_that_does_is_faster(finished):
    """What is recommended fits in a fresh process, and nothing that was measured to fit beats it beyond a tie."""
    tuning, result = finished
    best = result.best
    assert (result.verdict, best.confirmed) == (Verdict.RECOMPUTE_PAYS, True)
    leader, relative = tuning.watcher.leaders[-1]
    assert (leader.config, relative) == (best.config, best.relative_throughput)
    assert best.peak_bytes <= best.limit_bytes == 600 * MIB
    fitting = [trial for trial in kept(tuning) if trial.fits]
    assert best.samples_per_second >= 0.98 * max(trial.measurement.samples_per_second for trial in fitting)
    assert result.baseline.outcome is Outcome.OVER_LIMIT
    assert result.presets["all_on"].outcome is Outcome.OK


def test_what_is_emitted_is_what_was_confirmed(finished):
    """The plans file that the winner's variables name holds the winner, which ran with such a file."""
    tuning, result = finished
    assert choices_of(tuning.folder) == result.best.config.texts
    assert (result.best.config, 32) in tuning.bench.watched


def test_no_config_is_tried_twice(finished):
    """Every trial is a config of its own, numbered in the order of the storage."""
    tuning, result = finished
    assert len(set(tuning.tried)) == len(tuning.tried) == result.trials
    assert [trial.config for trial in kept(tuning)] == tuning.tried
    assert [trial.number for trial in kept(tuning)] == list(range(result.trials))


def test_another_sampler_finds_an_answer(make_tuning):
    """Who proposes is the user's choice: the trials are that sampler's, and what holds the limit is confirmed."""
    tuning = make_tuning(sampler="tpe", max_trials=15)
    result = tuning.run()
    reasons = [trial.reason for trial in kept(tuning)]
    assert reasons[:2] == ["baseline", "preset"]
    assert set(reasons) <= {"baseline", "preset", "TPESampler", "by chance: TPESampler repeats itself"}
    assert (result.search_end, result.trials) == (SearchEnd.TRIALS, 15)
    assert result.best.peak_bytes <= 600 * MIB


def test_every_trial_has_a_folder_to_repeat_it_from(finished):
    """A trial's folder holds its plans, its environment and its output."""
    tuning, _ = finished
    for trial in kept(tuning):
        folder = tuning.folder.trial(trial.number)
        environment = json.loads((folder / "environment.json").read_text())
        files = [] if trial.config.is_none else [folder / "plans.json"]
        assert list(environment.values()) == [str(file) for file in files]
        assert read_config(environment) == trial.config
        assert (folder / "output.log").read_text().endswith("measured\n")


def test_the_watcher_sees_every_trial(finished):
    """What is kept is what was told, in the same order."""
    tuning, _ = finished
    assert tuning.watcher.trials == kept(tuning)
    assert tuning.watcher.told == [(tuning.bench.detection, 600 * MIB, 0, 40)]


def test_a_finished_problem_is_answered_at_once(finished, make_again):
    """The same command gives the same answer, measures nothing and leaves every file as it is."""
    tuning, result = finished
    before = contents(tuning.folder)
    again = make_again()
    assert again.run() == result
    assert (again.bench.measured, again.bench.watched) == ([], [])
    assert {path: text for path, text in contents(again.folder).items() if path.suffix != ".db"} == {
        path: text for path, text in before.items() if path.suffix != ".db"
    }


@pytest.mark.parametrize("interrupt_at", [0, 4, 9])
def test_an_interrupted_tuning_goes_on_where_it_stopped(finished, make_tuning, interrupt_at):
    """After Ctrl-C nothing is tried a second time, and the answer is that of an undisturbed tuning."""
    _, undisturbed = finished
    first = make_tuning()
    first.bench.interrupt_at = interrupt_at
    with pytest.raises(KeyboardInterrupt):
        first.run()
    known = len(kept(first))
    second = make_tuning()
    result = second.run()
    assert second.watcher.told[0][2] == known == len(first.tried)
    assert len(set(first.tried + second.tried)) == len(first.tried + second.tried)
    assert (result.best.config, result.trials) == (undisturbed.best.config, undisturbed.trials)


def test_an_interruption_while_judging_loses_no_trial(make_tuning, monkeypatch):
    """Whoever stops during the confirmation finds every trial again, and only the judging is repeated."""
    first = make_tuning(max_trials=8)
    monkeypatch.setattr(first.bench, "watch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = make_tuning(max_trials=8)
    assert second.run().best is not None
    assert second.tried == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limit_bytes": 700 * MIB}, "limit 700 MiB"),
        ({"batch": 16}, "batch 16, not 32"),
        ({"graph": "ffff"}, "graph ffff"),
    ],
)
def test_another_problem_is_refused(finished, make_again, make_detection, change, words):
    """A study is not mixed with another problem: the difference is named, and every file stays as it is."""
    tuning, _ = finished
    before = contents(tuning.folder)
    detection = make_detection(**{name: value for name, value in change.items() if name != "limit_bytes"})
    settings = {name: value for name, value in change.items() if name == "limit_bytes"}
    with pytest.raises(UsageError, match=f"another problem.*{words}.*--study NAME"):
        make_again(detection=detection, **settings).run()
    assert contents(tuning.folder) == before


@pytest.mark.parametrize("outcome", [Outcome.SCRIPT_ERROR, Outcome.TIMEOUT, Outcome.DIVERGED])
def test_a_script_that_fails_by_itself_ends_the_tuning(make_tuning, make_measurement, outcome):
    """What fails without recompute is the script's own failure, told with its reason, its name and where to look."""
    tuning = make_tuning()
    trace = ("train.py, line 7", "ValueError: no data")
    tuning.bench.broken[Config()] = make_measurement(outcome, message="it has no data", trace=trace)
    told = rf"(?s)without any recompute.*no data.*line 7.*ValueError.*Outcome: {outcome}\. .*01\.log"
    with pytest.raises(ScriptError, match=told):
        tuning.run()
    assert kept(tuning) == []


def test_a_baseline_out_of_memory_is_what_tuning_is_for(make_tuning, make_bench):
    """Where the batch does not run without recompute a config is found all the same, without a relative figure."""
    result = make_tuning(make_bench(oom_bytes=650 * MIB)).run()
    assert result.baseline.outcome is Outcome.OOM
    assert result.baseline.peak_bytes is None
    assert result.best.peak_bytes <= 600 * MIB
    assert result.best.relative_throughput is None


def test_a_config_that_nothing_can_be_given_is_one_trial_among_others(make_tuning, make_detection, make_measurement):
    """A preset that cannot be written for this training system is kept as it failed, without variables."""
    strange = Config.parse(["a\tb:drop"])
    tuning = make_tuning(detection=make_detection(own_presets={"strange": strange}))
    tuning.bench.broken[strange] = make_measurement(Outcome.SCRIPT_ERROR, message="Nothing was written.")
    result = tuning.run()
    (trial,) = [trial for trial in kept(tuning) if trial.config == strange]
    assert trial.measurement.message == "Nothing was written."
    assert json.loads((tuning.folder.trial(trial.number) / "environment.json").read_text()) == {}
    assert result.best.peak_bytes <= 600 * MIB


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.OOM])
def test_a_config_that_breaks_is_one_trial_among_others(finished, make_tuning, make_measurement, outcome):
    """A config that fails where none should is kept with its outcome, and another one is found."""
    _, undisturbed = finished
    tuning = make_tuning()
    tuning.bench.broken[undisturbed.best.config] = make_measurement(outcome)
    result = tuning.run()
    outcomes = {trial.config: trial.measurement.outcome for trial in kept(tuning)}
    assert outcomes[undisturbed.best.config] is outcome
    assert result.best.config != undisturbed.best.config
    assert result.best.peak_bytes <= 600 * MIB


def test_more_trials_go_on(make_tuning):
    """A search that ended for want of trials goes on when there are more, and tries nothing twice."""
    first = make_tuning(max_trials=4)
    result = first.run()
    assert (result.trials, result.search_end) == (4, SearchEnd.TRIALS)
    same = make_tuning(max_trials=4)
    assert same.run() == result
    assert same.bench.measured == []
    more = make_tuning(max_trials=7)
    assert more.run().trials == 7
    assert len(set(first.tried + more.tried)) == 7


def test_fewer_trials_than_there_are_answer_at_once(finished, make_again):
    """Lowering the number of trials takes nothing away from a finished study."""
    _, result = finished
    again = make_again(max_trials=1)
    assert again.run() == result
    assert again.bench.measured == []


def test_more_time_goes_on(make_tuning, make_bench, monkeypatch):
    """A search that ended for want of time says so, and goes on in the next session."""
    bench = make_bench()
    monkeypatch.setattr("autorecompute.tuning.context.time.monotonic", lambda: 10.0 * len(bench.measured))
    first = make_tuning(bench, timeout_seconds=60.0)
    result = first.run()
    monkeypatch.undo()
    assert result.search_end is SearchEnd.TIME
    more = make_tuning()
    assert more.run().search_end is SearchEnd.NOTHING_LEFT
    assert more.tried
    assert not set(more.tried) & set(first.tried)


def test_a_batch_that_fits_needs_no_recompute(make_tuning):
    """Where the baseline fits, the answer is to set nothing, and little is measured for it."""
    tuning = make_tuning(limit_bytes=1000 * MIB)
    result = tuning.run()
    assert result.verdict is Verdict.NOT_NEEDED
    assert (result.best.config, variables_of(tuning.folder)) == (Config(), {})
    assert result.best.confirmed
    assert result.rival is None


def test_what_a_training_found_is_confirmed_before_it_is_an_answer(make_tuning):
    """An answer that no fresh process has confirmed is taken up again, with the trials there are."""
    first = make_tuning()
    result = first.run()
    first.folder.finish(replace(result, best=replace(result.best, confirmed=False)))
    again = make_tuning()
    assert again.run().best.confirmed
    assert not set(again.tried) & set(first.tried)


def test_without_a_limit_most_of_the_device_may_be_used(make_tuning):
    """A limit that nobody gave is a share of the device's memory, and less than all of it."""
    result = make_tuning(limit_bytes=None).run()
    assert 0.8 * result.device.total_bytes < result.best.limit_bytes < result.device.total_bytes


def test_where_a_smaller_batch_is_faster_recompute_does_not_pay(make_tuning, make_bench):
    """Where a step's time is all per sample, the rival wins; the config that fits is still told."""
    result = make_tuning(make_bench(step_seconds=0.0)).run()
    assert result.verdict is Verdict.DOES_NOT_PAY
    assert result.rival.batch < 32
    assert result.rival.samples_per_second > result.best.samples_per_second
    assert result.best.confirmed


def test_the_race_is_kept_and_told(finished):
    """The answer says how the winner was found, as the watcher was told, and the study holds every round of it."""
    tuning, result = finished
    kept_race = json.loads((tuning.folder.path / "race.json").read_text())
    assert result.best.ranking.end in {RaceEnd.RANKED, RaceEnd.TIE}
    assert result.best.relative_low <= result.best.relative_throughput <= result.best.relative_high
    assert kept_race["ranking"]["rounds"] == result.best.ranking.rounds == len(kept_race["standings"][0]["rounds"])
    assert any(result.best.ranking.sentence in note for note in tuning.watcher.notes)
    assert any("should be the fastest by all trials together" in note for note in tuning.watcher.notes)


def test_who_stands_in_for_an_unconfirmed_winner_has_not_won_the_race(finished, make_tuning):
    """What was proved of the winner is not said of another config."""
    _, undisturbed = finished
    tuning = make_tuning()
    tuning.bench.life_bytes[undisturbed.best.config] = 300 * MIB
    assert tuning.run().best.ranking is None


def test_where_nothing_fits_the_study_keeps_that_answer(make_tuning):
    """No config below the limit is an error with its own exit code, told again without measuring."""
    first, second = (make_tuning(limit_bytes=200 * MIB, max_trials=8) for _ in range(2))
    for tuning in (first, second):
        with pytest.raises(NothingFitsError, match=r"No config holds 200 MiB.*Try --memory-limit"):
            tuning.run()
    assert second.bench.measured == []
    assert first.folder.result().verdict is Verdict.NO_FIT
    assert first.folder.result().best is None


def test_trials_that_are_used_up_before_any_recompute_was_tried_say_nothing_of_memory(make_tuning):
    """A preset that may fit is untried: there is no verdict, the sentence says what to do, and that finds a config."""
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
    """No recompute held the limit in its trial and not as a whole process: that is no word on recompute."""
    tuning = make_tuning(limit_bytes=903 * MIB, max_trials=1)
    tuning.bench.every_life_bytes = 5 * MIB
    with pytest.raises(NothingFitsError, match=r"Not confirmed: none: its whole process reaches 905 MiB.*--max-trials"):
        tuning.run()
    assert tuning.folder.result().verdict is None


def test_a_device_that_another_tuning_measures_on_is_waited_for(make_tuning, monkeypatch):
    """Nothing is measured while the device is held, and the watcher is told why nothing happens."""
    tuning = make_tuning(max_trials=2)
    measured_before = []
    with lock_file(tuning.bench.detection.device).open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def release(text):
            if "waiting for the device" in text:
                measured_before.extend(tuning.bench.measured or ["nothing"])
                fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr(tuning.watcher, "note", release)
        tuning.run()
    assert measured_before == ["nothing"]
    assert tuning.tried


def test_a_model_above_the_limit_is_not_measured(make_tuning):
    """Where the model alone exceeds the limit, nothing is tried, and the sentence says that no recompute can help."""
    tuning = make_tuning(limit_bytes=50 * MIB)
    with pytest.raises(NothingFitsError, match=r"holds 100 MiB before its first step.*--memory-limit"):
        tuning.run()
    assert tuning.bench.measured == []


def test_a_winner_that_fails_its_confirmation_gives_way(finished, make_tuning):
    """A config whose whole process exceeds the limit is passed over for the next, and that is told."""
    _, undisturbed = finished
    tuning = make_tuning()
    tuning.bench.life_bytes[undisturbed.best.config] = 300 * MIB
    result = tuning.run()
    assert result.best.config != undisturbed.best.config
    assert result.best.confirmed
    assert choices_of(tuning.folder) == result.best.config.texts
    assert any("not confirmed" in note for note in tuning.watcher.notes)


def test_warnings_of_the_script_are_told_once_and_kept(make_tuning):
    """What a script does that recompute does not bear is a note and part of the answer, once for all trials."""
    tuning = make_tuning(max_trials=4)
    tuning.bench.warnings = ("train.py:7 calls the model without a backward",)
    assert tuning.run().warnings == tuning.bench.warnings
    assert sum("train.py:7" in note for note in tuning.watcher.notes) == 1


def test_a_baseline_that_fails_its_confirmation_makes_room_for_recompute(make_tuning):
    """A baseline that fits in its steps and not in its whole process is no answer, and configs that fit are found."""
    tuning = make_tuning(limit_bytes=920 * MIB)
    tuning.bench.life_bytes[Config()] = 50 * MIB
    result = tuning.run()
    assert not result.best.config.is_none
    assert result.best.peak_bytes <= 920 * MIB
    # The search for it aimed lower; what is kept was held against the limit that was asked for.
    assert all(trial.fits == (trial.measurement.peak_bytes <= 920 * MIB) for trial in kept(tuning))


def test_a_database_that_lost_trials_is_refused(make_root, tune_in):
    """Where fewer trials are in the database than were kept, nothing is measured over it and nothing is answered."""
    root = make_root()
    tuning = tune_in(root, max_trials=3)
    tuning.run()
    tuning.folder.database.write_bytes(b"")
    again = tune_in(root)
    with pytest.raises(SetupError, match="0 trials of the 3"):
        again.run()
    assert again.bench.measured == []
