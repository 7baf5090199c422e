"""The searches that ours is compared with."""

import pytest

from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.units import MIB
from searchers import Bisection

BLOCKS = 8


@pytest.fixture
def bisect(make_trial):
    """Searches by halves where each block saves 10 of 100 MiB, and tells the counts it tried."""
    choice = Choice("h.*", "checkpoint")
    saved = {"saving_bytes": BLOCKS * 10 * MIB, "saving": str(BLOCKS * 10 * MIB)}
    plan = Plan(choices=(choice,), label="h.*", occurrences=BLOCKS, counts=True, **saved)
    space = Space(plans=(plan,), own_presets={"blocks": Config.of([plan])})

    def bisect(limit_bytes):
        searcher, trials = Bisection(space, limit_bytes), []
        while (proposal := searcher.propose(trials)) is not None:
            count = proposal.config.count_of(plan)
            trials.append(make_trial(proposal.config, number=len(trials), peak_bytes=(100 - 10 * count) * MIB))
        return [trial.config.count_of(plan) for trial in trials]

    return bisect


@pytest.mark.parametrize("fewest", range(1, BLOCKS + 1))
def test_the_fewest_blocks_that_fit_are_found_by_halves(bisect, fewest):
    """It comes to the count that just fits, and to the one below that does not, in as many trials as halves take."""
    tried = bisect((100 - 10 * fewest) * MIB)
    assert {fewest, fewest - 1} <= set(tried)
    assert len(tried) <= 5


def test_where_all_blocks_do_not_fit_nothing_is_halved(bisect):
    """With all blocks over the limit, fewer are not tried."""
    assert bisect(10 * MIB) == [0, BLOCKS]
