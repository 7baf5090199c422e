import numpy as np

from autorecompute.plans import Config
from autorecompute.search.candidates import Candidates, choices_of, predict_frontier, undominated
from fake_backend.space import SPACE


def test_every_config_is_on_the_frontier_or_beaten_by_one_that_is():
    chance = np.random.default_rng(0)
    peaks, costs = chance.integers(0, 40, 300), chance.integers(0, 40, 300)
    places = undominated(peaks, costs)
    found = list(zip(peaks[places], costs[places], strict=True))
    assert found == sorted(found)
    assert [cost for _, cost in found] == sorted({cost for _, cost in found}, reverse=True)
    for peak, cost in zip(peaks, costs, strict=True):
        assert any(least <= peak and work <= cost for least, work in found)


def test_the_frontier_goes_from_the_least_peak_to_no_recompute(make_linear):
    memory, dims = make_linear(SPACE), {"batch": 2}
    found = predict_frontier(memory, dims)
    simulated = Candidates(SPACE, memory.simulator(dims, choices_of(SPACE))).simulated
    assert found[-1] == memory.forecast(Config(), dims)
    assert found[0].live_bytes == round(float(simulated.peak_bytes.min()))
    assert all(forecast == memory.forecast(forecast.config, dims) for forecast in found)
