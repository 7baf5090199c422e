import dataclasses
import itertools
import json
from unittest.mock import Mock

import pytest

from autorecompute import codec
from autorecompute.cli import main
from autorecompute.errors import NothingFitsError, ScriptError, TooLargeError, UsageError
from autorecompute.figures import Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies import list_studies
from autorecompute.studies.analysis import ANALYSIS_FILE
from autorecompute.studies.records import study_of_batch, trials_of_answer
from autorecompute.studies.storage import read_trials
from autorecompute.tuning.rivals import LEAST_PAIRS
from autorecompute.tuning.searcher_factory import PROFILED_BATCH
from autorecompute.tuning.throughput_curve import BEYOND
from autorecompute.units import MIB
from fake_backend import controller
from stand_ins.emitted import choices_of, variables_of
from stand_ins.formula import Turned, instead
from stand_ins.knobs import knob

LARGEST = 20  # the largest batch that fits in 600 MiB without recompute, by the formula


def test_the_best_batch_is_found_and_the_curve_has_every_batch_both_ways_under_one_budget(best):
    several, result = best
    assert result.verdict is Verdict.RECOMPUTE_PAYS
    assert result.best.batch > LARGEST == result.rival.batch
    assert not result.best.config.is_none
    assert result.best.confirmed
    assert result.best.peak_bytes <= 600 * MIB
    assert (choices_of(several.folder), result.command[-1]) == (result.best.config.texts, str(result.best.batch))
    assert result.best.samples_per_second > 1.02 * result.rival.samples_per_second
    assert result.comparison.ratio == pytest.approx(result.best.samples_per_second / result.rival.samples_per_second)
    # A machine that keeps its pace needs no more than a few pairs.
    assert result.comparison.is_clear
    assert several.watched[:2] == [8, LARGEST]
    batches = [point.batch for point in result.curve]
    assert batches == sorted(set(batches))
    for point in result.curve:
        assert point.fits_without == (point.batch <= LARGEST) == (point.recomputed is None)
        assert point.without.samples_per_second is not None
    best_point = next(point for point in result.curve if point.batch == result.best.batch)
    assert best_point.recomputed.config == result.best.config
    assert best_point.recomputed.figures.samples_per_second == result.best.samples_per_second
    studies = [folder for folder in list_studies(several.folder.path.parent) if folder.name != "bert"]
    counts = [len(read_trials(folder.database, folder.name)) for folder in studies]
    assert sum(counts) == result.trials <= 40
    assert max(counts) <= 14
    for answered in (dataclasses.replace(result.best, batch=8), None):
        assert trials_of_answer(several.folder, dataclasses.replace(result, best=answered)) == []


def fail_from(least_batch):
    """Has the script run out of memory from a batch on, before it trains."""

    def adapt(bench):
        if bench.detection.batch >= least_batch:
            bench.failure = TooLargeError("out of memory")
        return bench

    return adapt


def test_a_model_that_no_eight_samples_fit_is_begun_with_fewer(begin):
    several = begin(adapt=fail_from(4))
    assert several.run().curve[0].batch == 2
    assert [note.partition(":")[0] for note in several.watcher.notes[:3]] == ["batch 8", "batch 4", "batch 2"]


@pytest.mark.parametrize(("batches", "opened"), [((), [4, 2, 1]), ((8, 24), [])], ids=["no single sample", "a list"])
def test_where_the_smallest_batch_cannot_be_looked_at_the_scripts_error_ends_the_command(begin, batches, opened):
    several = begin(batches, adapt=fail_from(1))
    with pytest.raises(TooLargeError):
        several.run()
    assert list(several.benches) == opened


def test_who_came_next_is_told_of_the_best_batch(best, monkeypatch, capsys):
    several, result = best
    monkeypatch.chdir(several.folder.path.parent.parent)
    assert main(["show", several.folder.name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["result"]
    told = [entry["description"] for entry in shown["runners_up"]]
    study = study_of_batch(several.folder, result.best.batch)
    trials = read_trials(study.database, study.name)
    raced = {trial.description for trial in trials if trial.config.hash in result.raced} - {result.best.description}
    assert raced
    assert raced <= set(told)
    assert {entry["batch"] for entry in shown["runners_up"]} == {result.best.batch}
    assert trials_of_answer(several.folder, result) == trials


def test_a_list_is_compared_with_the_largest_batch_that_fits_and_nothing_else_recommended(begin):
    several = begin((8, 16, 24, 64))
    result = several.run()
    points = {point.batch: point for point in result.curve}
    assert {8, 16, 24, 64} <= set(points)
    assert points[24].fits_with
    assert points[64].recomputed.config is None
    assert points[64].recomputed.least_peak_bytes > 600 * MIB
    assert result.best.batch in {8, 16, 24, 64}
    assert set(several.benches) == {24, 64}
    assert result.rival.batch == LARGEST
    assert [batch for _, batch in several.benches[64].watched if batch == LARGEST] == []
    # The study of 24 has compared the two already.
    assert several.watched == [8, 16]
    assert result.comparison == study_of_batch(several.folder, 24).require_result().comparison
    assert study_of_batch(several.folder, 64).require_result().transferred_from.study == "bert-b24"
    assert result.transferred_from is None


@pytest.mark.parametrize("batches", [(), (8, 24)])
def test_where_larger_batches_gain_nothing_recompute_does_not_pay(begin, batches):
    several = begin(batches, formula={"step_seconds": 0.0})
    result = several.run()
    assert result.verdict is Verdict.DOES_NOT_PAY
    assert (result.best.config, variables_of(several.folder)) == (Config(), {})
    assert result.best.batch <= LARGEST
    assert result.comparison.ratio < 1
    assert any(point.fits_with for point in result.curve)
    assert len(several.benches) == 1


def test_batches_that_fit_need_no_recompute(begin):
    several = begin((4, 8, 16))
    result = several.run()
    assert (result.verdict, result.best.batch, result.trials) == (Verdict.NOT_NEEDED, 16, 0)
    assert several.benches == {}
    assert several.watched == [4, 8, 16]
    assert variables_of(several.folder) == {}


def test_where_no_batch_fits_that_is_the_answer(begin):
    for _ in range(2):
        several = begin((48, 64), max_trials=8)
        with pytest.raises(NothingFitsError, match=r"from 48 on.*--memory-limit"):
            several.run()
    assert not several.has_measured
    assert several.folder.result().verdict is Verdict.NO_FIT


def test_a_listed_batch_that_the_script_has_no_memory_for_is_left_out(begin):
    expected = begin((8, 24)).run()
    several = begin((8, 24, 200, 300), adapt=fail_from(200))
    result = several.run()
    assert (result.best, result.verdict, result.compared) == (expected.best, expected.verdict, True)
    assert result.curve[-1].recomputed.description == BEYOND
    assert [note for note in several.watcher.notes if "no larger one" in note] == [
        "batch 200 cannot be tuned, so no larger one is: out of memory"
    ]
    again = begin((8, 24, 200, 300), adapt=fail_from(200))
    assert again.run() == result
    assert not again.has_measured


def test_profiled_steps_come_from_the_first_batch_whose_tell_of_any_to_those_without(begin, make_step):
    """At a batch of one every size seems constant, at one of two half of them seem to grow."""
    several, own = begin((24, 28, 32, 36)), {}
    for batch, profiled in ((24, 2), (28, PROFILED_BATCH), (32, 4)):
        folder = study_of_batch(several.folder, batch)
        folder.prepare()
        profile = make_step("fl", ("x", 0, 1, "batch"), batch=profiled)
        entry = {"config": codec.to_plain(Config()), "profile": codec.to_plain(profile)}
        folder.write(ANALYSIS_FILE, {"peak_bytes": 700, "held_bytes": 500, "profiles": [entry]})
        own[batch] = (folder.path / ANALYSIS_FILE).read_text()
    several.run()
    assert {point.batch for point in several.folder.result().curve if point.recomputed is not None} == {24, 28, 32, 36}
    for batch, text in {**own, 36: own[28]}.items():
        assert (study_of_batch(several.folder, batch).path / ANALYSIS_FILE).read_text() == text


def test_another_problem_is_refused_be_it_of_several_batches_or_of_one(make_root, begin_in, tune_in):
    root, other = make_root(), make_root()
    begin_in(root, (8, 16)).run()
    with pytest.raises(UsageError, match="limit 700 MiB"):
        begin_in(root, (8, 16), limit_bytes=700 * MIB).run()
    tune_in(other, max_trials=2).run()
    with pytest.raises(UsageError, match="batch one of several, not 32"):
        begin_in(other, (8, 16)).run()


@pytest.mark.parametrize("batches", [(), (8, 16)])
def test_a_script_that_fails_at_its_first_batch_ends_the_tuning(begin, make_measurement, batches):
    def adapt(bench):
        bench.broken_lives[Config()] = make_measurement(Outcome.SCRIPT_ERROR, message="it has no data")
        return bench

    with pytest.raises(ScriptError, match=r"(?s)at batch 8.*no data.*script_error"):
        begin(batches, adapt=adapt).run()


def test_a_batch_beyond_the_scripts_data_bounds_the_search(begin, make_measurement):
    def adapt(bench):
        failed = make_measurement(Outcome.SCRIPT_ERROR, message="too few samples")
        instead(bench, "watch", lambda watch, *args: failed if args[-1] > 12 else watch(*args))
        bench.measure = Mock(side_effect=ScriptError("too few samples"))
        return bench

    result = begin(adapt=adapt).run()
    assert 8 <= result.best.batch <= 12
    assert result.best.config.is_none


def test_a_noisy_machine_is_asked_more_often_and_the_doubt_is_told(begin):
    several = begin()
    moods = itertools.cycle([1.15, 1.0])

    def be_moody(watch, environment, *args):
        measured, slowness = watch(environment, *args), next(moods) if environment else 1.0
        return dataclasses.replace(measured, step_seconds=tuple(s * slowness for s in measured.step_seconds))

    instead(several.bench, "watch", be_moody)
    result = several.run()
    assert (result.comparison.is_clear, result.verdict) == (False, Verdict.UNDECIDED)
    assert result.comparison.pairs > LEAST_PAIRS
    assert result.comparison.low < result.comparison.ratio < result.comparison.high


def test_knobs_are_turned_on_the_answer_alone(begin, monkeypatch):
    monkeypatch.setattr(controller, "KNOBS", (knob("FAST"),))

    def adapt(bench):
        bench.knobs = {"FAST": Turned(speed=1.1)}
        return bench

    plain = begin((8, 24), adapt=adapt).run()
    several = begin((8, 24), adapt=adapt, turns_knobs=True)
    result = several.run()
    assert [figures.kept for figures in result.knobs] == [True]
    assert result.best.knobs == ("fast",)
    assert variables_of(several.folder)["FAST"] == "1"
    assert (result.best.config, result.curve, result.comparison) == (plain.best.config, plain.curve, plain.comparison)
    assert study_of_batch(several.folder, 24).require_result().knobs == ()
    again = begin((8, 24), turns_knobs=True)
    assert again.run() == result
    assert not any(bench.watched or bench.measured for bench in (again.bench, *again.benches.values()))
