import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search.candidates import chance_to_work
from fake_backend.space import CHECKPOINT, GELU, HEAD, NORM, SPACE

PLANS = {"checkpoint": CHECKPOINT, "gelu": GELU, "norm": NORM, "head": HEAD}


def mix(**counts):
    return Config(frozenset(on for name, count in counts.items() for on in PLANS[name].chosen(count)))


@pytest.fixture
def judge(count_candidates, make_trial):
    candidates = count_candidates(SPACE)

    def judge(*outcomes):
        trials = [make_trial(config, description=str(config), outcome=outcome) for config, outcome in outcomes]
        chance = chance_to_work(candidates, trials)
        return lambda **counts: pytest.approx(float(chance[candidates.places[mix(**counts)]]))

    return judge


@pytest.mark.parametrize("outcome", [Outcome.SCRIPT_ERROR, Outcome.WRONG_GRADIENT, Outcome.CRASH])
def test_what_fails_alone_is_tried_at_no_other_count(judge, outcome):
    chance = judge((mix(checkpoint=7), outcome))
    assert [chance(checkpoint=count) for count in (1, 6, 7, 8, None)] == [0.0] * 5
    assert chance(checkpoint=3, head=None) == 0
    assert chance(gelu=7) == chance() == 1


def test_what_worked_is_allowed_as_far_as_it_was_on(judge):
    """A block further on may be the one that fails."""
    chance = judge((mix(checkpoint=3), Outcome.OK), (mix(checkpoint=7), Outcome.SCRIPT_ERROR))
    assert [chance(checkpoint=count) for count in (1, 3, 4, 7, None)] == [1, 1, 0, 0, 0]


def test_a_mix_that_failed_makes_each_of_its_plans_as_doubtful(judge):
    chance = judge((mix(gelu=4, head=None), Outcome.SCRIPT_ERROR))
    assert chance(gelu=4) == chance(head=None) == chance(checkpoint=2, head=None) == 1 / 2
    assert chance(gelu=None, head=None) == 0
    assert chance(norm=None) == 1


def test_what_several_failures_have_in_common_is_to_blame(judge):
    chance = judge((mix(norm=None, head=None), Outcome.CRASH), (mix(gelu=None, head=None), Outcome.CRASH))
    assert chance(head=None) == 0
    assert chance(gelu=None) == chance(norm=2) == 1


def test_what_is_left_when_the_others_worked_is_to_blame(judge):
    chance = judge((mix(norm=None, head=None), Outcome.SCRIPT_ERROR), (mix(gelu=3, head=None), Outcome.OVER_LIMIT))
    assert chance(norm=1) == 0
    assert chance(gelu=None, head=None) == 1


def test_a_mix_of_what_works_alone_is_ruled_out_with_all_that_has_more(judge):
    parts = [(mix(norm=None), Outcome.OK), (mix(head=None), Outcome.OK)]
    chance = judge((mix(norm=5, head=None), Outcome.CRASH), *parts)
    assert chance(norm=5, head=None) == chance(norm=6, head=None) == 0
    assert chance(norm=4, head=None) == chance(norm=None) == 1


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.LOST])
def test_other_failures_blame_no_plan(judge, outcome):
    chance = judge((mix(gelu=4), outcome))
    assert chance(gelu=4) == chance(gelu=2, head=None) == 1
