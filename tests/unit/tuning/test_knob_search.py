import pytest

from autorecompute.errors import ScriptError, SetupError
from autorecompute.measurement import Outcome
from autorecompute.tuning.knob_search import MOST_PAIRS
from autorecompute.units import MIB
from fake_backend import controller
from stand_ins.emitted import choices_of, variables_of
from stand_ins.formula import Turned, stop
from stand_ins.knobs import FAST, GRAPH, SLOW, WHOLE, by_name, knob, tried_under


@pytest.fixture
def offer(monkeypatch):
    """Offers knobs that set these variables, whatever machine this is; with the reasons why some cannot be tried."""

    def offer(*variables, **reasons):
        monkeypatch.setattr(controller, "KNOBS", tuple(knob(one, reasons.get(one.lower(), "")) for one in variables))

    return offer


@pytest.fixture
def turn(make_tuning, offer):
    """Tunes with knobs, given by variable what each does."""

    def turn(effects, **settings):
        offer(*effects)
        tuning = make_tuning(max_trials=8, turns_knobs=True, **settings)
        tuning.bench.knobs = effects
        return tuning, tuning.run()

    return turn


@pytest.fixture(scope="module")
def plain(make_root, tune_in):
    """The answer without knobs."""
    return tune_in(make_root(), max_trials=8).run()


@pytest.fixture
def finished(make_root, tune_in):
    """A study that was tuned without knobs; begins another session of it with them."""
    root = make_root()
    tune_in(root, max_trials=8).run()

    def begin(effects, bench=None, **settings):
        tuning = tune_in(root, bench, max_trials=8, turns_knobs=True, **settings)
        tuning.bench.knobs = effects
        return tuning

    return begin


def test_a_knob_that_makes_it_faster_is_kept(turn, plain):
    tuning, result = turn({FAST: Turned(speed=1.1, more_bytes=MIB)})
    figures = by_name(result)["fast_allocator"]
    assert (figures.kept, figures.outcome) == (True, Outcome.OK)
    assert figures.throughput_ratio == pytest.approx(1.1)
    assert figures.low <= figures.throughput_ratio <= figures.high
    assert figures.peak_bytes - figures.base_peak_bytes == MIB
    assert result.best.knobs == ("fast_allocator",)
    assert variables_of(tuning.folder)[FAST] == "1"
    assert result.best.samples_per_second == pytest.approx(1.1 * plain.best.samples_per_second)
    assert (result.best.config, result.best.relative_throughput) == (plain.best.config, plain.best.relative_throughput)
    assert tuning.folder.result() == result


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [
        ({"speed": 1.01}, Outcome.OK),
        ({"speed": 1.5, "more_bytes": 500 * MIB}, Outcome.OVER_LIMIT),
        ({"speed": 1.5, "loss": 1.0}, Outcome.WRONG_LOSS),
        ({"speed": 1.5, "loss": float("nan")}, Outcome.WRONG_LOSS),
        ({"outcome": Outcome.EXPORT_ERROR}, Outcome.EXPORT_ERROR),
        ({"outcome": Outcome.CRASH}, Outcome.CRASH),
        ({"failure": ScriptError("The script fails before it trains.")}, Outcome.SCRIPT_ERROR),
        ({"failure": SetupError("Nothing starts.")}, Outcome.SCRIPT_ERROR),
    ],
)
def test_what_does_not_help_is_told_and_left_alone(turn, plain, effect, outcome):
    tuning, result = turn({SLOW: Turned(**effect)})
    figures = by_name(result)["slow_allocator"]
    assert (figures.kept, figures.outcome) == (False, outcome)
    assert (result.best.knobs, result.best.samples_per_second) == ((), plain.best.samples_per_second)
    assert SLOW not in variables_of(tuning.folder)
    assert any(note.startswith("knob slow_allocator: ") for note in tuning.watcher.notes)
    if "outcome" in effect:  # a process that fails is not started again
        assert sum(SLOW in environment for environment in tuning.bench.environments) == 1


def test_what_cannot_be_tried_is_told_with_its_reason_and_without_being_asked_no_knob_is_turned(make_tuning, offer):
    offer(FAST)
    assert make_tuning(max_trials=8).run().knobs == ()
    offer(FAST, fast_allocator="it is for CUDA only")
    tuning = make_tuning(max_trials=8, turns_knobs=True)
    figures = by_name(tuning.run())["fast_allocator"]
    assert (figures.why_not, figures.outcome, figures.throughput_ratio) == ("it is for CUDA only", None, None)
    assert not any(FAST in environment for environment in tuning.bench.environments)


def test_kept_knobs_stay_on_while_the_next_is_tried(turn):
    tuning, result = turn({FAST: Turned(speed=1.1), SLOW: Turned(speed=0.8), "THIRD": Turned(speed=1.2)})
    assert [figures.kept for figures in result.knobs] == [True, False, True]
    assert result.best.knobs == ("fast_allocator", "third")
    settings = [frozenset(environment) & {FAST, SLOW, "THIRD"} for environment in tuning.bench.environments]
    assert settings.count(frozenset({SLOW})) == 0
    assert settings.count(frozenset({FAST, SLOW})) == 2


def test_processes_take_turns_in_a_mirrored_order(turn):
    tuning, _ = turn({SLOW: Turned(speed=0.9)})
    assert [SLOW in environment for environment in tuning.bench.environments][-4:] == [False, True, True, False]


@pytest.mark.parametrize(
    ("speeds", "pairs"), [([1.0, 1.5] * MOST_PAIRS, MOST_PAIRS), ([0.9, 0.5], 2)], ids=["a gain", "a loss"]
)
def test_a_gain_alone_that_noise_may_have_made_is_measured_again_and_not_kept(turn, speeds, pairs):
    tuning, result = turn({FAST: Turned(speeds=iter(speeds))})
    assert sum(FAST in environment for environment in tuning.bench.environments) == pairs
    assert not by_name(result)["fast_allocator"].kept


def test_wrong_gradients_under_a_knob_are_found_before_it_is_timed(turn, plain, make_space):
    wrong = tuple(plan for plan in make_space().plans if plain.best.config.has(plan))[:1]
    tuning, result = turn({GRAPH: Turned(speed=2.0, wrong=wrong)})
    assert by_name(result)["other_graph"].outcome is Outcome.WRONG_GRADIENT
    assert not any(GRAPH in environment for environment in tuning.bench.environments)


def test_plans_that_are_gone_are_told(turn, plain, make_space, make_detection):
    lost = next(plan for plan in make_space().plans if plain.best.config.has(plan))
    kept = tuple(plan for plan in make_space().plans if plan != lost)
    elsewhere = make_detection(plans=kept, own_presets={})
    tuning, result = turn({GRAPH: Turned(detection=elsewhere, speed=0.7)})
    count = len([plan for plan in make_space().plans if plain.best.config.has(plan)])
    assert f"without 1 of the winner's {count} plan" in by_name(result)["other_graph"].message
    assert tried_under(GRAPH, tuning) == {plain.best.config.without_plan(lost)}


def test_the_plans_that_a_knob_leaves_count(turn, make_space, make_detection):
    space = make_space()
    extra = {controller.CROSSING: [plan.id for plan in space.plans[1:]]}
    detection = make_detection(plans=space.plans, extra=extra, resting_bytes=100 * MIB)
    tuning, result = turn({WHOLE: Turned(speed=1.3, more_bytes=-400 * MIB)}, detection=detection)
    assert by_name(result)["whole_graph"].kept
    left = {choice for plan in space.plans[1:] for choice in plan.choices}
    assert set() < result.best.config.choices < left
    assert choices_of(tuning.folder) == result.best.config.texts


def test_a_finished_study_has_its_knobs_turned_later(finished, offer):
    offer(FAST)
    tuning = finished({FAST: Turned(speed=1.1)})
    result = tuning.run()
    assert (tuning.tried, by_name(result)["fast_allocator"].kept) == ([], True)
    again = finished({})
    assert again.run() == result
    assert again.bench.watched == []


def test_who_is_stopped_has_the_knobs_that_were_compared(finished, offer):
    offer(FAST, SLOW)
    effects = {FAST: Turned(speed=1.1), SLOW: Turned(speed=0.9)}
    stopped = stop(finished(effects), impatient_at=6)
    so_far = stopped.tuner.so_far
    assert so_far == stopped.folder.result()
    assert so_far.best.knobs == ("fast_allocator",)
    assert [figures.is_open for figures in so_far.knobs] == [False, True]
    second = finished(effects)
    assert [figures.kept for figures in second.run().knobs] == [True, False]
    assert len(second.bench.watched) == 4


def test_a_timeout_ends_the_knobs_with_what_was_compared_and_the_others_are_tried_next_time(
    finished, offer, make_timed_bench
):
    offer(FAST, SLOW)
    effects = {FAST: Turned(speed=1.1), SLOW: Turned(speed=0.9)}
    tuning = finished(effects, make_timed_bench(), timeout_seconds=120.0)
    began = tuning.bench.clock.now
    result = tuning.run()
    assert tuning.bench.clock.now - began <= 120.0
    assert [figures.is_open for figures in result.knobs] == [False, True]
    assert result.best.knobs == ("fast_allocator",)
    assert (result.knobs[1].outcome, result.knobs[1].sentence) == (None, "not tried yet")
    assert [figures.kept for figures in finished(effects).run().knobs] == [True, False]


def test_a_machine_that_fails_meanwhile_says_nothing_of_a_knob(finished, offer):
    offer(FAST)
    first = finished({FAST: Turned(speed=1.1)})
    first.bench.broken_at = 0
    (figures,) = first.run().knobs
    assert (figures.outcome, figures.kept, figures.is_open) == (Outcome.LOST, False, True)
    assert by_name(finished({FAST: Turned(speed=1.1)}).run())["fast_allocator"].kept


def test_a_study_of_the_same_problem_takes_over_what_the_knobs_did(make_root, tune_in, offer):
    offer(FAST)
    root = make_root()
    first = tune_in(root, max_trials=8, turns_knobs=True)
    first.bench.knobs = {FAST: Turned(speed=1.1)}
    answer = first.run()
    second = tune_in(root, name="again", max_trials=8, turns_knobs=True)
    result = second.run()
    assert (second.bench.watched, second.tried) == ([], [])
    assert result.knobs == answer.knobs
    assert variables_of(second.folder)[FAST] == "1"
    assert choices_of(second.folder) == answer.best.config.texts
