import json
import shutil

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies.storage import read_trials
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from stand_ins.emitted import choices_of

SOURCE = "small"


@pytest.fixture(scope="module")
def solved(tune_in, make_root):
    root = make_root()
    tuning = tune_in(root, name=SOURCE)
    return root, tuning.run(), tuning


@pytest.fixture
def moved(solved, tune_in):
    root, names = solved[0], []

    def begin(*args, name="large", **settings):
        names.append(name)
        return tune_in(root, *args, name=name, **settings)

    yield begin
    for name in names:
        shutil.rmtree(root / "studies" / name, ignore_errors=True)


def test_the_same_problem_costs_no_trial_under_any_name(solved, moved):
    _, answer, _ = solved
    tuning = moved()
    result = tuning.run()
    assert (tuning.bench.measured, tuning.bench.watched) == ([], [])
    assert (result.study, result.best.config, result.trials) == ("large", answer.best.config, answer.trials)
    assert choices_of(tuning.folder) == answer.best.config.texts
    assert (result.transferred_from.study, result.transferred_from.differences) == (SOURCE, ())
    assert any(SOURCE in note for note in tuning.watcher.notes)
    assert len(read_trials(tuning.folder.database, "large")) == answer.trials


def test_the_same_problem_that_nothing_fits_costs_no_trial_either(make_root, tune_in):
    root = make_root()
    with pytest.raises(NothingFitsError) as first:
        tune_in(root, limit_bytes=200 * MIB, max_trials=8, name=SOURCE).run()
    second = tune_in(root, limit_bytes=200 * MIB, max_trials=8, name="again")
    with pytest.raises(NothingFitsError) as caught:
        second.run()
    assert str(caught.value) == str(first.value)
    assert second.bench.measured == []


def test_an_unfinished_study_of_the_same_problem_is_gone_on_with(make_root, tune_in):
    root = make_root()
    first = tune_in(root, name=SOURCE)
    first.bench.interrupt_at = 9
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = tune_in(root, name="again")
    assert second.run().search_end is SearchEnd.NOTHING_LEFT
    assert second.watcher.told[0][2] == len(first.tried) > 0
    assert not set(first.tried) & set(second.tried)


def test_a_study_that_had_begun_takes_over_nothing_and_says_so(make_root, tune_in):
    root = make_root()
    begun = tune_in(root, name="again")
    begun.bench.interrupt_at = 9
    with pytest.raises(KeyboardInterrupt):
        begun.run()
    answer = tune_in(root, name=SOURCE, is_fresh=True).run()
    second = tune_in(root, name="again")
    result = second.run()
    assert result.transferred_from.study == SOURCE
    assert result.transferred_from.differences == ("this study had begun already",)
    assert not any("takes over" in note for note in second.watcher.notes)
    assert answer.best.config in (*begun.tried, second.tried[0])


def test_what_was_taken_over_is_told_in_every_session(make_root, tune_in):
    root = make_root()
    for name in (SOURCE, "again"):
        stopped = tune_in(root, name=name)
        stopped.bench.interrupt_at = 9 if name == SOURCE else 2
        with pytest.raises(KeyboardInterrupt):
            stopped.run()
    taken = tune_in(root, name="again")
    assert taken.run().transferred_from.differences == ()
    source = tune_in(root, name=SOURCE)
    assert source.run().transferred_from.differences != ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limit_bytes": 640 * MIB}, "limit 640 MiB"),
        ({"batch": 30}, "batch 30, not 32"),
        ({"dims": {"d0": 32, "d1": 64}}, "d1 64, not 128"),
        (
            {"device": Device(kind="cpu", name="Another Processor", total_bytes=16 * GIB)},
            "device cpu Another Processor",
        ),
    ],
)
def test_a_problem_nearby_starts_from_what_is_stored(solved, moved, make_detection, change, words):
    _, answer, _ = solved
    settings = {name: value for name, value in change.items() if name == "limit_bytes"}
    detection = make_detection(**{name: value for name, value in change.items() if name != "limit_bytes"})
    tuning = moved(detection=detection, **settings)
    result = tuning.run()
    assert tuning.tried[:2] == [Config(), answer.best.config]
    assert read_trials(tuning.folder.database, "large")[1].reason == f"answer of study {SOURCE}"
    assert result.transferred_from.study == SOURCE
    assert any(words in difference for difference in result.transferred_from.differences)
    assert result.best.confirmed


def test_starting_from_a_stored_study_takes_fewer_trials_to_the_best(moved, make_root, tune_in):
    scratch = tune_in(make_root(), limit_bytes=620 * MIB)
    best = scratch.run().best
    tuning = moved(limit_bytes=620 * MIB)
    tuning.run()

    def until_as_fast(tuned):
        trials = read_trials(tuned.folder.database, tuned.folder.name)
        wanted = 0.98 * best.relative_throughput
        return next(trial.number for trial in trials if trial.fits and trial.relative_throughput >= wanted)

    assert until_as_fast(tuning) < until_as_fast(scratch)


@pytest.mark.parametrize("change", [{}, {"limit_bytes": 640 * MIB}])
def test_a_fresh_study_takes_nothing_over(moved, change):
    tuning = moved(is_fresh=True, **change)
    result = tuning.run()
    assert result.transferred_from is None
    assert len(tuning.tried) == result.trials
    assert not any(f"study {SOURCE}" in note for note in tuning.watcher.notes)


def test_another_command_is_no_answer(solved, moved):
    _, answer, _ = solved
    file = solved[2].folder.path / "study.json"
    provenance = json.loads(file.read_text())
    file.write_text(json.dumps({**provenance, "command": ["python", "other.py"]}))
    try:
        tuning = moved()
        result = tuning.run()
    finally:
        file.write_text(json.dumps(provenance))
    assert tuning.tried[:2] == [Config(), answer.best.config]
    assert result.transferred_from.differences == ("another command",)


def test_other_plans_tell_nothing(moved, make_detection, make_space):
    space = make_space()
    detection = make_detection(plans=space.plans[:4], own_presets={})
    tuning = moved(detection=detection)
    tuning.bench.seconds = lambda *_: 0.5
    tuning.bench.peak_bytes = lambda config, _: (500 if config.choices else 700) * MIB
    assert tuning.run().transferred_from is None


def test_a_study_that_cannot_be_read_is_passed_over(solved, moved):
    broken = solved[0] / "studies" / "broken"
    broken.mkdir()
    try:
        (broken / "study.json").write_text("{")
        assert moved(limit_bytes=640 * MIB).run().transferred_from.study == SOURCE
    finally:
        shutil.rmtree(broken)
