"""What the search is told where a model is compiled: changes of single plans, added up, and what has to be compiled."""

import dataclasses

import numpy as np
import pytest

from autorecompute import codec
from autorecompute.backends.torch.controller import needs_of, peaks_of
from autorecompute.backends.torch.forecast.compiled_peaks import CompiledPeaks, code_of_blocks
from autorecompute.backends.torch.forecast.records import CompiledPeak, TorchDetection
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.search import ModelSearcher
from autorecompute.search.candidates import choices_of
from autorecompute.units import GIB, MIB

BLOCKS, PART, BUDGET = "blocks.*:checkpoint", "blocks.*.mlp/gelu:recompute", "graph:budget_0.5"


def plans(occurrences):
    return tuple(
        Plan(choices=(Choice.parse(text),), label=text, occurrences=count, counts=count > 1, saving_bytes=1, saving="1")
        for text, count in occurrences.items()
    )


PLANS = plans({BLOCKS: 4, PART: 1, BUDGET: 1})
COVERS = {"blocks.*": ("blocks.*.mlp/gelu",), "graph": ("blocks.*", "blocks.*.mlp/gelu")}
SPACE = Space(plans=PLANS, covers=COVERS)
KNOWN = tuple(
    CompiledPeak(config=Config.parse(texts), peak_bytes=peak_bytes, kept_bytes=peak_bytes // 2, work=work)
    for texts, peak_bytes, work in (
        ([], 1000, 0.0),
        ([f"{BLOCKS}:1"], 900, 0.05),
        ([f"{BLOCKS}:2"], 700, 0.1),
        ([BLOCKS], 800, 0.2),
        ([PART], 880, 0.02),
        ([BUDGET], 600, 0.04),
    )
)


@pytest.mark.parametrize(
    ("texts", "peak_bytes", "work"),
    [
        *(pytest.param(one.config.texts, one.peak_bytes, one.work, id=str(one.config.texts)) for one in KNOWN),
        pytest.param([f"{BLOCKS}:3"], 750, 0.15, id="three blocks lie between two and four"),
        pytest.param([f"{BLOCKS}:1", PART], 900 - 90, 0.05 + 0.015, id="three quarters of a cluster are left"),
    ],
)
def test_peaks_and_work_of_single_plans_are_added_up(texts, peak_bytes, work):
    """For twice the batch there are twice the activations."""
    for batch in (8, 16):
        simulator = CompiledPeaks(SPACE, KNOWN, 100, 8).simulator({"batch": batch}, choices_of(SPACE))
        found = simulator.simulate(simulator.matrix([Config.parse(texts)]))
        assert found.peak_bytes.tolist() == pytest.approx([peak_bytes * batch / 8])
        assert found.recompute_share.tolist() == pytest.approx([work])


@pytest.fixture
def detection(make_detection):
    extra = TorchDetection(is_compiled=True, compiled_peaks=KNOWN, trained_bytes=50)
    dims = {"batch": 8}
    return dataclasses.replace(make_detection(), plans=PLANS, covers=COVERS, dims=dims, extra=codec.to_plain(extra))


def test_the_search_begins_with_them_and_where_nothing_is_known_there_is_no_model(detection):
    """It proposes what should fit and recompute least, after the presets, and says how likely it is to fit."""
    memory = peaks_of(detection)
    assert memory.base_bytes({}) == detection.resting_bytes + 2 * 50
    limit_bytes = memory.base_bytes({}) + 760
    searcher = ModelSearcher(SPACE, limit_bytes=limit_bytes, memory=memory, dims={"batch": 8})
    outlook, places = searcher._learn([]), searcher._candidates.places
    fits = {text: outlook.fits[places[Config.parse([text])]] for text in (BUDGET, PART)}
    assert fits[BUDGET] > 0.5 > fits[PART]
    assert np.isfinite(outlook.step).all()
    extra = codec.to_plain(TorchDetection(is_compiled=True))
    assert peaks_of(dataclasses.replace(detection, extra=extra)) is None


def test_of_what_changes_all_of_the_code_little_is_known():
    """The step of a budget or of checkpointed blocks may be farther off what its work tells than that of a cluster."""
    memory = CompiledPeaks(SPACE, [dataclasses.replace(one, work=0.0) for one in KNOWN], 100, 8)
    searcher = ModelSearcher(SPACE, limit_bytes=900, memory=memory, dims={"batch": 8})
    outlook, places = searcher._learn([]), searcher._candidates.places
    budget, blocks, part = (outlook.step_deviation[places[Config.parse([text])]] for text in (BUDGET, BLOCKS, PART))
    assert budget == pytest.approx(blocks)
    assert budget > 1.2 * part


def measured(make_trial, number, text, step):
    """A trial whose model was compiled for twenty times as long as it was measured."""
    config = Config.parse([text] if text else [])
    place = next(known for known in KNOWN if known.config == config)
    peak_bytes = 3 * GIB + place.peak_bytes * MIB
    trial = make_trial(
        number=number, config=config, peak_bytes=peak_bytes, step_seconds=(step,) * 3, reference_seconds=1.0
    )
    compiled = dataclasses.replace(trial.measurement, warmup_seconds=102.0, compile_seconds=100.0)
    return dataclasses.replace(trial, measurement=compiled)


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


TWO_KINDS = plans({"a.*:checkpoint": 4, "a.*:keep_matmul": 4, "b.*:checkpoint": 2, "graph:budget_0.5": 1})


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ([], ["a.*", "b.*"]),
        (["a.*:checkpoint"], ["a.*:checkpoint", "b.*"]),
        (["a.*:checkpoint:3"], ["a.*", "a.*:checkpoint", "b.*"]),
        (["a.*:keep_matmul:1", "b.*:checkpoint:1"], ["a.*", "a.*:keep_matmul", "b.*", "b.*:checkpoint"]),
        (["graph:budget_0.5"], ["graph:budget_0.5"]),
    ],
    ids=str,
)
def test_a_block_is_compiled_once_for_each_way_to_run_it(config, code):
    """How many of the blocks run in one way makes no difference; a budget is about all of them."""
    assert code_of_blocks(Config.parse(config), TWO_KINDS) == set(code)


@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_model_that_is_compiled_as_a_whole_is_compiled_for_each_config(make_detection, by_blocks):
    """Blocks that are compiled by themselves are shared by configs; what is not compiled needs nothing."""
    extra = codec.to_plain(TorchDetection(is_compiled=True, by_blocks=by_blocks))
    detection = dataclasses.replace(make_detection(), plans=TWO_KINDS, extra=extra)
    needs = [needs_of(detection)(Config.parse([f"a.*:checkpoint:{count}", "b.*:checkpoint"])) for count in (1, 2, 3)]
    assert len(set(needs)) == (1 if by_blocks else 3)
    assert needs_of(dataclasses.replace(detection, extra={}))(Config()) == frozenset()
