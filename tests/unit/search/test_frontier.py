"""The configs that no other beats in both peak and extra work."""

import numpy as np

from autorecompute.memory import StepProfiles
from autorecompute.plans import Config
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.search.frontier import predict_frontier, undominated
from fake_backend.memory import LinearMemory
from fake_backend.space import SPACE


def test_every_config_is_on_the_frontier_or_beaten_by_one_that_is():
    """Of random configs nobody on the frontier beats another, and each other one has one that is as good in both."""
    chance = np.random.default_rng(0)
    peaks, costs = chance.integers(0, 40, 300), chance.integers(0, 40, 300)
    places = undominated(peaks, costs)
    found = list(zip(peaks[places], costs[places], strict=True))
    assert found == sorted(found)
    assert [cost for _, cost in found] == sorted({cost for _, cost in found}, reverse=True)
    for peak, cost in zip(peaks, costs, strict=True):
        assert any(least <= peak and work <= cost for least, work in found)


def test_the_frontier_goes_from_the_least_peak_to_no_recompute(make_step):
    """Its ends are those of all configs that there are, and peaks are those that the model forecasts."""
    step = make_step("fl", ("x", 0, 1, "batch", "8"))
    again = make_step("frlb", ("x", 0, 1, "batch", "2"))
    small = StepProfiles(peak_bytes=100, held_bytes=50, profiles={Config(): step, SPACE.all_on: again})
    memory, dims = LinearMemory(SPACE, small), {"batch": 2}
    found = predict_frontier(memory, dims)
    simulated = Candidates(SPACE, memory.simulator(dims, choices_of(SPACE))).simulated
    assert found[-1] == memory.forecast(Config(), dims)
    assert found[0].live_bytes == round(float(simulated.peak_bytes.min()))
    assert all(forecast == memory.forecast(forecast.config, dims) for forecast in found)
