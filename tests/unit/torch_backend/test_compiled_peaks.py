"""What the search begins with where a model is compiled: changes of single plans, added up."""

import dataclasses

import numpy as np
import pytest

from autorecompute import codec
from autorecompute.backends.torch.compiled.peaks import CompiledPeaks
from autorecompute.backends.torch.controller import peaks_of
from autorecompute.backends.torch.extra import CompiledPeak, TorchDetection
from autorecompute.plans import Config, Plan, Space
from autorecompute.plans.plan import parse_choices
from autorecompute.search import ModelSearcher
from autorecompute.search.candidates import choices_of
from autorecompute.units import GIB, MIB

BLOCKS, PART, BUDGET = "blocks.*:checkpoint", "blocks.*.mlp/gelu:recompute", "graph:budget_0.5"
PLANS = tuple(
    Plan(choices=parse_choices([text]), label=text, occurrences=count, counts=count > 1, saving_bytes=1, saving="1")
    for text, count in ((BLOCKS, 4), (PART, 1), (BUDGET, 1))
)
COVERS = {"blocks.*": ("blocks.*.mlp/gelu",), "graph": ("blocks.*", "blocks.*.mlp/gelu")}
SPACE = Space(plans=PLANS, covers=COVERS)


def peak(texts, peak_bytes, work):
    """What is known of a config."""
    return CompiledPeak(config=Config.parse(texts), peak_bytes=peak_bytes, kept_bytes=peak_bytes // 2, work=work)


KNOWN = (
    peak([], 1000, 0.0),
    peak([f"{BLOCKS}:1"], 900, 0.05),
    peak([f"{BLOCKS}:2"], 700, 0.1),
    peak([BLOCKS], 800, 0.2),
    peak([PART], 880, 0.02),
    peak([BUDGET], 600, 0.04),
)


def simulated(*configs, batch=8):
    """Peak and work of each config."""
    simulator = CompiledPeaks(SPACE, KNOWN, 100, 8).simulator({"batch": batch}, choices_of(SPACE))
    found = simulator.simulate(simulator.matrix([Config.parse(texts) for texts in configs]))
    return found.peak_bytes.round().tolist(), found.recompute_share.round(4).tolist()


def test_what_is_known_is_told():
    """Nothing is added to a single plan."""
    peaks, work = simulated([], [f"{BLOCKS}:1"], [BLOCKS], [PART], [BUDGET])
    assert peaks == [1000, 900, 800, 880, 600]
    assert work == [0, 0.05, 0.2, 0.02, 0.04]


def test_counts_between_known_ones_are_interpolated():
    """Three of four blocks lie between two and four."""
    assert simulated([f"{BLOCKS}:3"]) == ([750], [0.15])


def test_a_cluster_counts_where_no_block_is_checkpointed():
    """With one block of four checkpointed three quarters of the cluster are left."""
    assert simulated([f"{BLOCKS}:1", PART])[0] == [900 - 90]


def test_peaks_grow_with_the_batch():
    """Twice the batch has twice the activations."""
    assert simulated([PART], batch=16)[0] == [2 * 880]


@pytest.fixture
def detection(make_detection):
    """A compiled model that was looked at."""
    extra = TorchDetection(is_compiled=True, compiled_peaks=KNOWN, trained_bytes=50)
    dims = {"batch": 8}
    return dataclasses.replace(make_detection(), plans=PLANS, covers=COVERS, dims=dims, extra=codec.to_plain(extra))


def test_the_search_begins_with_them(detection):
    """It proposes what should fit and recompute least, after the presets, and says how likely it is to fit."""
    memory = peaks_of(detection)
    assert memory.base_bytes({}) == detection.resting_bytes + 2 * 50
    limit_bytes = memory.base_bytes({}) + 760
    searcher = ModelSearcher(SPACE, limit_bytes=limit_bytes, memory=memory, dims={"batch": 8})
    outlook = searcher._learn([]).outlook()
    places = searcher._candidates.places
    fits = {text: outlook.fits[places[Config.parse([text])]] for text in (BUDGET, PART)}
    assert fits[BUDGET] > 0.5 > fits[PART]
    assert np.isfinite(outlook.step).all()


def test_of_what_changes_all_of_the_code_little_is_known():
    """The step of a budget or of checkpointed blocks may be farther off what its work tells than that of a cluster."""
    known = [dataclasses.replace(one, work=0.0) for one in KNOWN]
    memory = CompiledPeaks(SPACE, known, 100, 8)
    searcher = ModelSearcher(SPACE, limit_bytes=900, memory=memory, dims={"batch": 8})
    outlook, places = searcher._learn([]).outlook(), searcher._candidates.places
    budget, blocks, part = (outlook.step_deviation[places[Config.parse([text])]] for text in (BUDGET, BLOCKS, PART))
    assert budget == pytest.approx(blocks)
    assert budget > 1.2 * part


def measured(make_trial, number, text, step):
    """A trial whose model was compiled for twenty times as long as it was measured."""
    config = Config.parse([text] if text else [])
    place = next(known for known in KNOWN if known.config == config)
    peak_bytes = 3 * GIB + place.peak_bytes * MIB
    compiled = {"warmup_seconds": 102.0, "compile_seconds": 100.0}
    trial = make_trial(
        number=number, config=config, peak_bytes=peak_bytes, step_seconds=(step,) * 3, reference_seconds=1.0
    )
    return dataclasses.replace(trial, measurement=dataclasses.replace(trial.measurement, **compiled))


def test_a_budget_that_should_cost_little_is_tried(make_trial):
    """Code that makes more again may be faster: the search does not end with what is 2 % faster than nothing."""
    known = [dataclasses.replace(one, peak_bytes=one.peak_bytes * MIB) for one in KNOWN]
    memory = CompiledPeaks(SPACE, known, 3 * GIB, 8)
    limit_bytes = 3 * GIB + 900 * MIB
    searcher = ModelSearcher(
        SPACE, limit_bytes=limit_bytes, memory=memory, dims={"batch": 8}, needs=lambda config: frozenset([config.hash])
    )
    steps = {"": 1.0, BLOCKS: 1.1, PART: 0.98}
    trials = [measured(make_trial, number, *step).under(limit_bytes) for number, step in enumerate(steps.items())]
    proposals = []
    while (proposal := searcher.propose(trials)) is not None and len(trials) < 6:
        proposals.append(proposal.config)
        trial = measured(make_trial, len(trials), PART, 1.05)
        trials.append(dataclasses.replace(trial, config=proposal.config).under(limit_bytes))
    assert Config.parse([BUDGET]) in proposals


def test_where_nothing_is_known_there_is_no_model(detection):
    """Of a model that could not be traced, and one that is not compiled."""
    extra = codec.to_plain(TorchDetection(is_compiled=True))
    assert peaks_of(dataclasses.replace(detection, extra=extra)) is None
