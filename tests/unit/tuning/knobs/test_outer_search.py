"""The outer search over knobs, on a bench that says what each of them does."""

from __future__ import annotations

import dataclasses
import json

import pytest

from autorecompute.backends.ortmodule.grammar import Level, config_of_level
from autorecompute.errors import ScriptError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies import KnobFolder
from autorecompute.tuning.answer.judgement import Judgement
from autorecompute.tuning.knobs.outer_search import CONFIRMATION
from autorecompute.tuning.knobs.side_by_side import gain_of, is_worth_it
from autorecompute.units import MIB
from stand_ins.knobs import FAST, GRAPH, LAYERS, SLOW, by_name, knob


def decide_for(config, decide):
    """A judgement that comes to this config, whatever was measured."""

    def decided(*args, **kwargs):
        result = decide(*args, **kwargs)
        return dataclasses.replace(result, best=dataclasses.replace(result.best, config=config, environment={}))

    return decided


def test_a_knob_that_makes_it_faster_is_emitted(turn, plain, turned_by):
    """It stands beside the plans in the winner's environment, its gain and its peak are told, and the speed is its."""
    tuning, result = turn({FAST: turned_by(speed=1.1, more_bytes=MIB)})
    figures = by_name(result)["fast_allocator"]
    assert (figures.kept, figures.outcome) == (True, Outcome.OK)
    assert figures.throughput_ratio == pytest.approx(1.1)
    assert figures.low <= figures.throughput_ratio <= figures.high
    assert figures.peak_bytes - figures.base_peak_bytes == MIB
    assert result.best.environment == {**plain.best.environment, FAST: "1"} | {
        "ORTMODULE_MEMORY_OPT_CONFIG": str(tuning.folder.plans_file)
    }
    assert result.best.samples_per_second == pytest.approx(1.1 * plain.best.samples_per_second)
    assert (result.best.config, result.best.relative_throughput) == (plain.best.config, plain.best.relative_throughput)
    assert tuning.folder.result() == result


def test_without_being_asked_no_knob_is_turned(make_tuning, offer):
    """Knobs take fresh processes, so they are off unless they are wanted."""
    offer(knob(FAST))
    tuning = make_tuning(max_trials=8)
    assert tuning.run().knobs == ()
    assert KnobFolder(tuning.folder).known() is None


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [
        ({"speed": 0.9}, Outcome.OK),
        ({"speed": 1.01}, Outcome.OK),
        ({"speed": 1.5, "more_bytes": 500 * MIB}, Outcome.OVER_LIMIT),
        ({"speed": 1.5, "loss": 1.0}, Outcome.WRONG_LOSS),
        ({"outcome": Outcome.EXPORT_ERROR}, Outcome.EXPORT_ERROR),
        ({"outcome": Outcome.CRASH}, Outcome.CRASH),
    ],
)
def test_what_does_not_help_is_told_and_left_alone(turn, plain, effect, outcome, turned_by):
    """A knob that is slow, too large, wrong or broken ends in a line of the report, and the winner stays as it was."""
    tuning, result = turn({SLOW: turned_by(**effect)})
    figures = by_name(result)["slow_allocator"]
    assert (figures.kept, figures.outcome) == (False, outcome)
    assert SLOW not in result.best.environment
    assert result.best.samples_per_second == plain.best.samples_per_second
    assert any(note.startswith("knob slow_allocator: ") for note in tuning.watcher.notes)


def test_a_failing_process_is_not_started_again(turn, turned_by):
    """One process tells that a knob does not work; there is nothing to average."""
    tuning, _ = turn({SLOW: turned_by(outcome=Outcome.CRASH)})
    assert sum(SLOW in environment for environment in tuning.bench.environments) == 1


def test_what_cannot_be_tried_is_told_with_its_reason(turn):
    """A knob that does nothing here costs no process."""
    tuning, result = turn({}, knob(FAST, why_not="it is for CUDA only"))
    figures = by_name(result)["fast_allocator"]
    assert (figures.available, figures.why_not, figures.outcome) == (False, "it is for CUDA only", None)
    assert figures.throughput_ratio is None
    assert not any(FAST in environment for environment in tuning.bench.environments)


def test_kept_knobs_stay_on_while_the_next_is_tried(turn, turned_by):
    """Each is compared with the winner and what was kept before; together they are compared with the winner."""
    tuning, result = turn({FAST: turned_by(speed=1.1), SLOW: turned_by(speed=0.8), "THIRD": turned_by(speed=1.2)})
    assert [figures.kept for figures in result.knobs] == [True, False, True]
    assert {FAST, "THIRD"} <= set(result.best.environment)
    settings = [frozenset(environment) & {FAST, SLOW, "THIRD"} for environment in tuning.bench.environments]
    assert settings.count(frozenset({SLOW})) == 0
    assert settings.count(frozenset({FAST, SLOW})) == 2
    last = KnobFolder(tuning.folder).known().comparisons[-1]
    assert (last.knob, last.base) == (CONFIRMATION, result.best.config.hash)
    assert set(last.setup.knobs) == {FAST, "THIRD"}


def test_what_is_not_confirmed_together_is_dropped_together(turn, plain, turned_by):
    """Gains that do not show in the comparison at the end are no reason to train with a knob."""
    speeds = iter([1.2, 1.2, 0.9, 0.9])
    tuning, result = turn({FAST: turned_by(speeds=speeds)})
    figures = by_name(result)["fast_allocator"]
    assert not figures.kept
    assert figures.message.startswith("not confirmed")
    assert result.best.environment == {"ORTMODULE_MEMORY_OPT_CONFIG": str(tuning.folder.plans_file)}
    assert result.best.samples_per_second == plain.best.samples_per_second


def test_plans_that_are_gone_are_told(turn, plain, make_space, make_detection, turned_by):
    """A knob that remakes the graph is tried with the plans that there are then, and says how many were lost."""
    lost = next(plan for plan in make_space().plans if plain.best.config.has(plan))
    kept = tuple(plan for plan in make_space().plans if plan != lost)
    elsewhere = make_detection(plans=kept, layer_plans=kept)
    tuning, result = turn({GRAPH: turned_by(detection=elsewhere, speed=0.7)}, knob(GRAPH, remakes_plans=True))
    count = len([plan for plan in make_space().plans if plain.best.config.has(plan)])
    assert f"1 of the winner's {count} plan" in by_name(result)["other_graph"].message
    others = [
        config
        for (config, _), environment in zip(tuning.bench.watched, tuning.bench.environments, strict=True)
        if GRAPH in environment
    ]
    assert set(others) == {plain.best.config.without_plan(lost)}


def test_wrong_gradients_under_a_knob_are_found_before_it_is_timed(turn, plain, make_space, turned_by):
    """Where the graph is another one, gradients are compared there, whatever was found without the knob."""
    wrong = tuple(plan for plan in make_space().plans if plain.best.config.has(plan))[:1]
    tuning, result = turn({GRAPH: turned_by(speed=2.0, wrong=wrong)}, knob(GRAPH, remakes_plans=True))
    assert by_name(result)["other_graph"].outcome is Outcome.WRONG_GRADIENT
    assert not any(GRAPH in environment for environment in tuning.bench.environments)


def test_a_script_that_does_not_start_under_a_knob_is_a_line(turn, turned_by):
    """Where no plans can be detected under a knob, a fresh process tells the outcome and the search goes on."""
    failing = turned_by(failure=ScriptError("The script fails before it trains."), outcome=Outcome.EXPORT_ERROR)
    _, result = turn({GRAPH: failing, FAST: turned_by(speed=1.1)}, knob(GRAPH, remakes_plans=True), knob(FAST))
    assert by_name(result)["other_graph"].outcome is Outcome.EXPORT_ERROR
    assert by_name(result)["fast_allocator"].kept


def test_within_layers_all_plans_are_tried_too(turn, make_space, make_detection, turned_by):
    """The knob for layer boundaries may bring another config, which is what is emitted then."""
    space = make_space(layers=("Gelu+",))
    everything = Config.of(space.layer_plans)

    tuning, result = turn(
        {LAYERS: turned_by(speed=1.3)},
        knob(LAYERS, remakes_plans=True, looks_within_layers=True),
        detection=make_detection(space, resting_bytes=100 * MIB),
    )
    compared = [item.setup.config for item in KnobFolder(tuning.folder).known().comparisons]
    assert everything in compared
    assert len(set(compared)) == 2
    assert by_name(result)["within_layers"].kept
    assert json.loads(tuning.folder.plans_file.read_text()) == result.best.config.texts


def test_a_sure_gain_goes_before_a_larger_one_in_doubt(turn, make_space, make_detection, turned_by):
    """Of a knob's candidates the one that is faster for sure is kept, however fast a noisy one may be."""
    space = make_space(layers=("Gelu+",))
    # Two even pairs for the winner's plans; then all plans, whose pairs scatter between slower and far faster.
    speeds = iter([1.05, 1.05, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.05, 1.05])
    tuning, result = turn(
        {LAYERS: turned_by(speeds=speeds)},
        knob(LAYERS, remakes_plans=True, looks_within_layers=True),
        detection=make_detection(space, resting_bytes=100 * MIB),
    )
    sure, doubtful, *_ = KnobFolder(tuning.folder).known().comparisons
    assert gain_of(doubtful.pairs).ratio > gain_of(sure.pairs).ratio
    assert (is_worth_it(sure), is_worth_it(doubtful)) == (True, False)
    assert by_name(result)["within_layers"].kept
    assert result.best.config == sure.setup.config


def test_layers_matter_to_recompute_alone(turn, turned_by):
    """Where the winner recomputes nothing there is nothing that could end at a boundary."""
    _, result = turn(
        {LAYERS: turned_by()}, knob(LAYERS, remakes_plans=True, looks_within_layers=True), limit_bytes=5000 * MIB
    )
    assert by_name(result)["within_layers"].why_not == "the winner recomputes nothing"


def test_memory_that_a_knob_saves_lets_a_cheaper_config_fit(turn, plain, turned_by):
    """What the search had to leave aside for its peak is tried with the knob, and wins where it fits and is faster."""
    tuning, result = turn({FAST: turned_by(more_bytes=-120 * MIB)})
    figures = by_name(result)["fast_allocator"]
    assert figures.kept
    assert result.best.config != plain.best.config
    assert result.best.config in tuning.bench.checked_under
    assert result.best.peak_bytes <= result.best.limit_bytes
    assert result.best.samples_per_second > 1.02 * plain.best.samples_per_second
    assert figures.message.endswith("which fits then")
    assert json.loads(tuning.folder.plans_file.read_text()) == result.best.config.texts


def test_a_level_ends_at_the_boundaries_by_itself(turn, turned_by, make_space, make_detection, monkeypatch):
    """Where one of ORT's levels won, there is nothing to gain from the probe that it uses anyway."""
    space = make_space(layers=("Gelu+",))
    level = config_of_level(Level.LAYERWISE)
    monkeypatch.setattr(Judgement, "decide", decide_for(level, Judgement.decide))
    _, result = turn(
        {LAYERS: turned_by()},
        knob(LAYERS, remakes_plans=True, looks_within_layers=True),
        detection=make_detection(space, resting_bytes=100 * MIB),
    )
    assert "a level of ORT's" in by_name(result)["within_layers"].why_not
