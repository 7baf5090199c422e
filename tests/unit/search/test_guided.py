import types

import pytest

from autorecompute.measurement import GradientCheck, Outcome, Prediction
from autorecompute.plans import Config
from autorecompute.search import GreedySearcher, GuidedSearcher, Prior, Proposal, needs_in
from autorecompute.search.searcher import MOST_TOO_LARGE, Searcher
from autorecompute.units import MIB
from unit.conftest import build_space, build_trial

RESTING, FORECAST, LIMIT, BATCH = 100 * MIB, 590 * MIB, 600 * MIB, 16
SPACE = build_space()
STORED = [
    build_trial(
        Config.of(SPACE.plans[:number]),
        number=number,
        peak_bytes=RESTING + (600 - 60 * number) * MIB,
        step_seconds=(1 + number / 10,),
        reference_seconds=1.0,
        outcome=Outcome.OVER_LIMIT if number < 2 else Outcome.OK,
    )
    for number in range(6)
]


def make_prior(**changes):
    fields = {"answer": STORED[2].config, "finalists": (STORED[2].config, STORED[3].config)}
    known = {"source": "small", "batch": BATCH, "limit_bytes": LIMIT, "resting_bytes": RESTING}
    return Prior(**{**known, "trials": tuple(STORED), **fields, **changes})


def proposed(count, *, growth=1.0, limit_bytes=LIMIT):
    greedy = GreedySearcher(SPACE, budget=40, limit_bytes=limit_bytes)
    searcher = GuidedSearcher(greedy, limit_bytes, prior=make_prior(), growth=growth)
    trials, proposals = [], []
    for number in range(count):
        proposals.append(searcher.propose(trials))
        outcome = Outcome.OVER_LIMIT if number == 0 else Outcome.OOM
        trials.append(build_trial(proposals[-1].config, number=number, outcome=outcome))
    return proposals


def inherited(proposals):
    return {entry.config: entry.reason for entry in proposals if entry.reason.endswith("of study small")}


def test_the_reference_comes_first_then_the_best_of_the_stored_study_and_no_more_of_it():
    reference, answer, finalist, *others = proposed(6)
    assert reference.config.is_none
    assert (answer.config, answer.reason) == (STORED[2].config, "answer of study small")
    assert (finalist.config, finalist.reason) == (STORED[3].config, "finalist of study small")
    assert inherited(others) == {}


@pytest.mark.parametrize(
    ("count", "asked", "found"),
    [
        (6, {"growth": 1.5}, {5: "fast trial"}),  # at 24 samples, not 16, the activations of 360 MiB become 540 MiB
        (6, {"limit_bytes": 480 * MIB}, {4: "fast trial", 5: "fast trial"}),
        (4, {"limit_bytes": 200 * MIB}, {5: "least peak"}),
    ],
    ids=["a larger batch", "a lower limit", "nothing should fit"],
)
def test_of_a_stored_study_what_should_fit_is_tried_or_the_least_peak(count, asked, found):
    told = {STORED[place].config: f"{role} of study small" for place, role in found.items()}
    assert inherited(proposed(count, **asked)) == told


def test_a_batch_that_fits_without_recompute_ends_the_search_and_activations_grow_with_each_dimension():
    greedy = GreedySearcher(SPACE, budget=40, limit_bytes=LIMIT)
    searcher = GuidedSearcher(greedy, LIMIT, prior=make_prior(), growth=0.25)
    assert searcher.propose([build_trial(Config(), peak_bytes=LIMIT)]) is None
    prior = make_prior(dims={"sequence": 64})
    assert prior.growth(2 * BATCH, {"sequence": 192, "batch": 2 * BATCH}) == 6


def test_what_is_expected_of_it_is_what_the_search_expects(make_profiled):
    bench = make_profiled().limit_to(0.4)
    trials = bench.run(budget=6)
    answer = max((trial for trial in trials if trial.fits), key=lambda trial: trial.relative_throughput).config
    prior = Prior(source="other", batch=8, limit_bytes=1, resting_bytes=0, trials=tuple(trials), finalists=(answer,))
    inherited = GuidedSearcher(bench.searcher(), bench.limit_bytes, prior=prior)
    proposal = inherited.propose(trials[:1])
    assert (proposal.config, proposal.reason) == (answer, "finalist of study other")
    assert proposal.prediction == bench.searcher().predict(answer, trials[:1])
    assert proposal.prediction.step_low < bench.step_seconds(answer) < proposal.prediction.step_high


def test_a_planned_config_is_left_to_the_search_where_it_may_not_fit(make_profiled):
    """A training cannot take back a step that runs out of memory; a trial of its own is lost at worst."""
    bench = make_profiled().limit_to(0.4)
    reference = bench.run(budget=1)
    planned = Config.of(bench.space.plans[:1])
    prediction = bench.searcher().predict(planned, reference)
    assert prediction.fits < 1

    def propose(trials, **fields):
        return GuidedSearcher(bench.searcher(), bench.limit_bytes, planned=planned, **fields).propose(trials)

    asked = propose(reference)
    assert (asked.config, asked.prediction) == (planned, prediction)
    assert propose(reference, least_fit=1.0) == bench.searcher().propose(reference)
    assert propose([]) == bench.searcher().propose([])


class InOrder(Searcher):
    def __init__(self, configs):
        self.configs = configs

    def propose(self, trials, claimed=()):
        tried = {*claimed, *(trial.config for trial in trials)}
        config = next((config for config in self.configs if config not in tried), None)
        return config and Proposal(config=config, reason="", prediction=predicted(FORECAST))


def predicted(peak_bytes):
    known = {"peak_low": peak_bytes, "peak_high": peak_bytes, "step": None, "step_low": None, "step_high": None}
    return Prediction(peak_bytes=peak_bytes, fits=1.0, **known)


CONFIGS = [Config.of(SPACE.plans[:count]) for count in range(1, 6)]


def searching(configs, missing, **kwargs):
    fields = {"needs_of": lambda config, predicted: predicted + missing.get(config, 0), "may_fail": False, **kwargs}
    return GuidedSearcher(InOrder(configs), LIMIT, **fields)


def test_a_config_whose_whole_step_takes_too_much_is_passed_over_unless_it_takes_the_least():
    searcher = searching(CONFIGS, {CONFIGS[0]: 11 * MIB, CONFIGS[1]: 10 * MIB})
    assert searcher.propose([]).config == CONFIGS[1]
    assert not searcher.gave_up
    assert searching(CONFIGS, {}).propose([]).config == CONFIGS[0]
    missing = {config: (50 - 10 * place) * MIB for place, config in enumerate(CONFIGS[:4])} | {CONFIGS[4]: 60 * MIB}
    searcher = searching(CONFIGS, missing)
    first = searcher.propose([])
    assert first.config == CONFIGS[3]
    assert searcher.propose([build_trial(first.config)]) is None


def test_where_a_trial_does_no_harm_what_should_be_too_large_comes_last():
    """Trials tell more than forecasts: nothing is left out for good."""
    searcher = searching(CONFIGS, {CONFIGS[0]: 11 * MIB, CONFIGS[2]: 11 * MIB}, may_fail=True)
    trials = []
    while (proposal := searcher.propose(trials)) is not None:
        trials.append(build_trial(proposal.config))
    assert [trial.config for trial in trials] == [CONFIGS[place] for place in (1, 3, 4, 0, 2)]


def test_the_search_ends_where_parts_do_not_tell_of_steps():
    plans = SPACE.plans
    configs = [Config.of([one, *rest]) for one in plans for rest in ([], *([other] for other in plans if other != one))]
    configs = list(dict.fromkeys(configs))
    asked = []
    searcher = searching(configs, {}, needs_of=lambda config, predicted: asked.append(config) or predicted + 99 * MIB)
    assert searcher.propose([]) is not None
    assert len(asked) == MOST_TOO_LARGE < len(configs)
    assert searcher.gave_up


MEMORY = types.SimpleNamespace(
    base_bytes=lambda _dims: 100 * MIB, forecast=lambda _config, _dims: types.SimpleNamespace(live_bytes=300 * MIB)
)


@pytest.mark.parametrize(
    ("step_mib", "fragmented_mib", "needed_mib"),
    [(330, None, 520), (290, None, 490), (None, None, 490), (330, 80, 510), (290, 30, 420)],
    ids=["more than forecast", "less than forecast", "no whole step", "on a card", "on a card, less than predicted"],
)
def test_a_card_needs_what_a_fresh_process_reserves_and_a_cpu_what_trials_predict(step_mib, fragmented_mib, needed_mib):
    told = {"step_bytes": step_mib and step_mib * MIB, "fragmented_bytes": fragmented_mib and fragmented_mib * MIB}
    step = GradientCheck(agrees=True, worst=0.0, steps=0, **told)
    assert needs_in(MEMORY, {}, lambda _: step)(Config(), 490 * MIB) == needed_mib * MIB
