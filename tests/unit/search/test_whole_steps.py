import types

import pytest

from autorecompute.measurement import GradientCheck, Prediction
from autorecompute.plans import Config
from autorecompute.search import GuidedSearcher, Proposal, needs_in
from autorecompute.search.searcher import MOST_TOO_LARGE
from autorecompute.units import MIB

LIMIT = 500 * MIB
FORECAST = 490 * MIB


class InOrder:
    def __init__(self, configs):
        self.configs = configs

    def propose(self, trials, claimed=()):
        tried = {*claimed, *(trial.config for trial in trials)}
        config = next((config for config in self.configs if config not in tried), None)
        return config and Proposal(config=config, reason="", prediction=predicted(FORECAST))


def predicted(peak_bytes):
    known = {"peak_low": peak_bytes, "peak_high": peak_bytes, "step": None, "step_low": None, "step_high": None}
    return Prediction(peak_bytes=peak_bytes, fits=1.0, **known)


@pytest.fixture
def configs(make_space):
    plans = make_space().plans
    return [Config.of(plans[:count]) for count in range(1, 6)]


def searching(configs, missing, **kwargs):
    fields = {"needs_of": lambda config, predicted: predicted + missing.get(config, 0), "may_fail": False, **kwargs}
    return GuidedSearcher(InOrder(configs), LIMIT, **fields)


def test_a_config_whose_whole_step_takes_too_much_is_passed_over(configs):
    searcher = searching(configs, {configs[0]: 11 * MIB, configs[1]: 10 * MIB})
    assert searcher.propose([]).config == configs[1]
    assert not searcher.gave_up
    assert searching(configs, {}).propose([]).config == configs[0]


def test_where_nothing_fits_the_least_is_proposed_first_and_nothing_after_it(configs, make_trial):
    missing = {config: (50 - 10 * place) * MIB for place, config in enumerate(configs[:4])} | {configs[4]: 60 * MIB}
    searcher = searching(configs, missing)
    first = searcher.propose([])
    assert first.config == configs[3]
    assert searcher.propose([make_trial(first.config)]) is None


def test_where_a_trial_does_no_harm_what_should_be_too_large_comes_last(configs, make_trial):
    """Trials tell more than forecasts: nothing is left out for good."""
    searcher = searching(configs, {configs[0]: 11 * MIB, configs[2]: 11 * MIB}, may_fail=True)
    trials = []
    while (proposal := searcher.propose(trials)) is not None:
        trials.append(make_trial(proposal.config))
    assert [trial.config for trial in trials] == [configs[place] for place in (1, 3, 4, 0, 2)]


def test_the_search_ends_where_parts_do_not_tell_of_steps(make_space):
    plans = make_space().plans
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
    assert needs_in(MEMORY, {}, lambda _: step)(Config(), FORECAST) == needed_mib * MIB
