import dataclasses
import itertools
import math

import pytest

from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.measurement import Measurement, Outcome
from autorecompute.search.candidates import choices_of
from autorecompute.search.model_searcher import SLACK

CLEARLY = SLACK * OrtMemoryModel.likely_error


@pytest.fixture
def make_tight(make_profiled):
    return lambda **fields: make_profiled(runs_out=True, **fields).limit_to(0.3)


def peaks_of(bench, configs):
    simulator = bench.memory.simulator({"batch": 1}, choices_of(bench.space))
    return simulator.simulate(simulator.matrix(configs)).peak_bytes


@pytest.mark.parametrize("seed", range(6))
def test_what_surely_needs_more_than_a_config_that_ran_out_is_never_tried(make_tight, seed):
    bench = make_tight(seed=seed)
    trials = bench.run(budget=100)
    peaks = peaks_of(bench, [trial.config for trial in trials])
    presets = set(bench.space.presets.values())
    ran_out = [trial.number for trial in trials if trial.measurement.outcome is Outcome.OOM]
    assert ran_out
    for trial in trials:
        if trial.config not in presets:
            earlier = [peaks[number] for number in ran_out if number < trial.number]
            assert peaks[trial.number] < min(earlier, default=math.inf) + CLEARLY * max(peaks)


@pytest.mark.parametrize(("likely_error", "is_tried"), [(0.06, True), (0.005, False)])
def test_poor_forecasts_rule_little_out(make_tight, list_configs, monkeypatch, likely_error, is_tried):
    monkeypatch.setattr(OrtMemoryModel, "likely_error", likely_error)
    bench = make_tight()
    configs = list_configs(bench.space)
    peaks = peaks_of(bench, configs)
    lower, higher = next(
        (lower, higher)
        for lower, higher in itertools.permutations(range(len(configs)), 2)
        if 0.03 < (peaks[higher] - peaks[lower]) / max(peaks) < 0.05
    )
    bench.limit_bytes = bench.peak_bytes(configs[higher]) + 1
    ran_out = dataclasses.replace(bench.tried(configs[lower])[0], measurement=Measurement(outcome=Outcome.OOM))
    proposal = bench.searcher().propose([ran_out], [config for config in configs if config != configs[higher]])
    assert (proposal is not None and proposal.config == configs[higher]) == is_tried
