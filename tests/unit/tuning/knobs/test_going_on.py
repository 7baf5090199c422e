"""Knobs whose turning is stopped, or has no time, and goes on."""

from __future__ import annotations

import json

import pytest

from autorecompute.studies import KnobFolder
from autorecompute.tuning.knobs.outer_search import CONFIRMATION
from autorecompute.units import MIB
from stand_ins.knobs import FAST, LAYERS, SLOW, by_name, knob


def test_a_finished_study_has_its_knobs_turned_later(make_root, tune_in, offer, turned_by):
    """The search is not repeated for them, and neither are they the next time."""
    root = make_root()
    tune_in(root, max_trials=8).run()
    offer(knob(FAST))
    tuning = tune_in(root, max_trials=8, turns_knobs=True)
    tuning.bench.knobs = {FAST: turned_by(speed=1.1)}
    result = tuning.run()
    assert (tuning.tried, by_name(result)["fast_allocator"].kept) == ([], True)
    again = tune_in(root, max_trials=8, turns_knobs=True)
    assert again.run() == result
    assert again.bench.watched == []


def test_what_was_compared_is_not_measured_again(make_root, tune_in, offer, turned_by):
    """After an interruption only the comparison that was going on is repeated."""
    offer(knob(FAST), knob(SLOW))
    root, effects = make_root(), {FAST: turned_by(speed=1.1), SLOW: turned_by(speed=0.9)}
    tune_in(root, max_trials=8).run()
    first = tune_in(root, max_trials=8, turns_knobs=True)
    first.bench.knobs, first.bench.impatient_at = effects, 6
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = tune_in(root, max_trials=8, turns_knobs=True)
    second.bench.knobs = effects
    assert [figures.kept for figures in second.run().knobs] == [True, False]
    settings = [frozenset(environment) & {FAST, SLOW} for environment in second.bench.environments]
    # Four processes for the second knob, and four for the confirmation, of which two have the first alone.
    assert len(settings) == 8
    assert settings.count(frozenset({FAST})) == 4


def test_what_there_was_no_time_for_is_tried_the_next_time(make_root, tune_in, offer, turned_by, make_timed_bench):
    """A knob whose processes would not end in time is not begun; the same command with more time turns it."""
    offer(knob(FAST))
    root = make_root()
    tune_in(root, max_trials=8).run()
    late = tune_in(root, make_timed_bench(), max_trials=8, turns_knobs=True, timeout_seconds=60.0)
    (figures,) = late.run().knobs
    assert late.bench.watched == []
    assert (figures.outcome, figures.is_open, figures.sentence) == (None, True, "not tried yet")
    tuning = tune_in(root, max_trials=8, turns_knobs=True)
    tuning.bench.knobs = {FAST: turned_by(speed=1.1)}
    assert by_name(tuning.run())["fast_allocator"].kept


def test_a_confirmation_that_the_machine_prevented_is_tried_again(make_root, tune_in, offer, turned_by):
    """Where the winner's own process fails meanwhile, nothing is kept, and the same command confirms later."""
    offer(knob(FAST))
    root = make_root()
    tune_in(root, max_trials=8).run()
    first = tune_in(root, max_trials=8, turns_knobs=True)
    first.bench.knobs, first.bench.broken_at = {FAST: turned_by(speed=1.1)}, 4
    (figures,) = first.run().knobs
    assert (figures.kept, figures.is_open) == (False, True)
    second = tune_in(root, max_trials=8, turns_knobs=True)
    second.bench.knobs = {FAST: turned_by(speed=1.1)}
    assert by_name(second.run())["fast_allocator"].kept
    assert len(second.bench.watched) == 4


def test_who_is_stopped_has_the_knobs_that_were_compared(make_root, tune_in, offer, turned_by):
    """Ctrl-C in the second knob leaves the first one's gain emitted, and the same command goes on with the second."""
    offer(knob(FAST), knob(SLOW))
    root = make_root()
    tune_in(root, max_trials=8).run()
    stopped = tune_in(root, max_trials=8, turns_knobs=True)
    stopped.bench.knobs, stopped.bench.impatient_at = {FAST: turned_by(speed=1.1), SLOW: turned_by(speed=0.9)}, 6
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    so_far = stopped.tuner.so_far
    assert so_far == stopped.folder.result()
    assert so_far.best.environment[FAST] == "1"
    assert [figures.is_open for figures in so_far.knobs] == [False, True]
    assert json.loads(stopped.folder.plans_file.read_text()) == so_far.best.config.texts


@pytest.fixture
def layered(make_space, make_detection):
    """A graph in which plans of one's own and those within layers differ."""
    return make_detection(make_space(layers=("Gelu+",)), resting_bytes=100 * MIB)


@pytest.fixture
def turn_within_layers(make_root, tune_in, offer, turned_by, layered):
    """Turns a knob of two candidates, both faster, on a study that is finished; session after session."""
    offer(knob(LAYERS, remakes_plans=True, looks_within_layers=True))
    root, detection = make_root(), layered
    tune_in(root, detection=detection, max_trials=8).run()

    def begin(make_bench=lambda _: None, **settings):
        bench = make_bench(detection)
        tuning = tune_in(root, bench, detection=detection, max_trials=8, turns_knobs=True, **settings)
        tuning.bench.knobs = {LAYERS: turned_by(speed=1.3)}
        return tuning

    return begin


def test_who_stops_in_the_second_candidate_keeps_the_first(turn_within_layers):
    """Its processes are not measured again, its gain is emitted, and the same command goes on with the second."""
    stopped = turn_within_layers()
    stopped.bench.impatient_at = 5
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    (figures,) = stopped.folder.result().knobs
    assert (figures.kept, figures.is_open) == (True, True)
    (first,) = KnobFolder(stopped.folder).known().comparisons
    second = turn_within_layers()
    (figures,) = second.run().knobs
    assert (figures.kept, figures.is_open) == (True, False)
    known = KnobFolder(second.folder).known().comparisons
    assert known[0] == first
    assert [item.knob for item in known] == ["within_layers", "within_layers", CONFIRMATION]
    # Four for the second candidate, four for the confirmation.
    assert len(second.bench.watched) == 8


def test_a_candidate_that_there_is_no_time_for_is_tried_the_next_time(turn_within_layers, make_timed_bench):
    """With time for one candidate of two, the command ends in time, and the knob is not done with."""
    late = turn_within_layers(make_timed_bench, timeout_seconds=120.0)
    began = late.bench.clock.now
    (figures,) = late.run().knobs
    assert late.bench.clock.now - began <= 120.0
    assert (figures.kept, figures.is_open) == (True, True)
    assert len(KnobFolder(late.folder).known().comparisons) == 1
    assert not turn_within_layers().run().knobs[0].is_open
    assert turn_within_layers().run().knobs[0].is_complete


def test_a_timeout_ends_the_knobs_with_what_was_compared(make_root, tune_in, offer, turned_by, make_timed_bench):
    """With time for one knob of two, the first is kept and emitted, and the command ends in time."""
    offer(knob(FAST), knob(SLOW))
    root = make_root()
    tune_in(root, max_trials=8).run()
    tuning = tune_in(root, make_timed_bench(), max_trials=8, turns_knobs=True, timeout_seconds=120.0)
    tuning.bench.knobs = {FAST: turned_by(speed=1.1), SLOW: turned_by(speed=0.9)}
    began = tuning.bench.clock.now
    result = tuning.run()
    assert [figures.is_open for figures in result.knobs] == [False, True]
    assert result.best.environment[FAST] == "1"
    assert tuning.bench.clock.now - began <= 120.0


def test_a_study_of_the_same_problem_takes_over_what_the_knobs_did(make_root, tune_in, offer, turned_by):
    """Another name for the same problem answers at once, with the knobs beside its own plans file."""
    offer(knob(FAST))
    root = make_root()
    first = tune_in(root, max_trials=8, turns_knobs=True)
    first.bench.knobs = {FAST: turned_by(speed=1.1)}
    answer = first.run()
    second = tune_in(root, name="again", max_trials=8, turns_knobs=True)
    result = second.run()
    assert (second.bench.watched, second.tried) == ([], [])
    assert result.knobs == answer.knobs
    assert result.best.environment == {
        "ORTMODULE_MEMORY_OPT_CONFIG": str(second.folder.plans_file),
        FAST: "1",
    }
    assert KnobFolder(second.folder).known().comparisons == KnobFolder(first.folder).known().comparisons
