import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autorecompute import codec
from autorecompute.backends.torch.fake.live import BACKWARD, FORWARD, OUTSIDE, Event, Segment
from autorecompute.backends.torch.fake.repeats import card_memory, fragmented_bytes, requests_of
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.forecast.caching_allocator import (
    AllocatorStats,
    CachingAllocator,
    settings_in,
)
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.records import CHECKPOINT
from autorecompute.plans import Choice
from autorecompute.training_job import Detection
from autorecompute.units import KIB, MIB
from stand_ins.surveyed import detect_in
from tiny_models import call_of, make


def steps_of(training, *configs):
    found = detect_in(training)
    script = Script(*call_of(training), (torch.optim.AdamW(training.model.parameters()),))
    steps = FakeSteps(training.model, found.structure.units, script, found.values)
    board = found.switchboard(training.model)
    with steps.prepared(board) as (_, take):
        taken = [take(config, optimizes=not place) for place, config in enumerate(configs)]
    return steps.run(board, configs[0]), taken


@pytest.mark.parametrize("training", ["gpt2", "encoder", "resnet"], indirect=True)
def test_what_a_step_requests_is_what_lives_in_it(training):
    """To the byte: the allocator rounds it up by 511 bytes for each block at most."""
    meter, (step,) = steps_of(training, [])
    stats = card_memory(step)
    assert stats.requested == meter.peak
    storages = len(step.held) + len({event.storage for event in step.events})
    assert 0 <= stats.allocated - stats.requested < 512 * storages
    assert stats.reserved >= stats.allocated


def test_less_is_reserved_where_blocks_are_recomputed():
    """Of activations that are larger than all else; the segment that grows reserves no more than fixed ones."""
    training = make("gpt2", layers=4, batch=64)
    _, (plain, recomputed) = steps_of(training, [], [Choice("transformer.h.*", CHECKPOINT)])
    assert card_memory(recomputed).reserved < card_memory(plain).reserved
    assert card_memory(plain, expandable_segments=True).reserved <= card_memory(plain).reserved


@pytest.mark.parametrize(
    ("variables", "capability", "workspace"),
    [
        ({}, (9, 0), 32 * MIB),
        ({}, (8, 0), 8 * MIB + 128 * KIB),
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, (9, 0), 32 * MIB),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8:128:1"}, (9, 0), 256 * KIB),
        ({"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"}, (9, 0), None),
    ],
)
def test_a_fresh_process_reserves_what_does_not_fit_together_and_a_workspace(variables, capability, workspace):
    lost = card_memory(STEP).reserved - card_memory(STEP).requested
    assert fragmented_bytes(STEP, variables, capability) == (None if workspace is None else lost + workspace)


def step_of(*events, held, state=()):
    changes = [Event(Segment(phase, 0), size * MIB, storage) for phase, storage, size in events]
    sizes = {number: size * MIB for number, size in held.items()}
    return SimpleNamespace(events=changes, held=sizes, state=set(state))


STEP = step_of(
    (FORWARD, 2, 12), (BACKWARD, 3, 16), (BACKWARD, 2, -12), (OUTSIDE, 3, -16), held={0: 16, 1: 16}, state=[1]
)
"""Weights and state, an activation and a gradient."""

LEAVING = step_of((FORWARD, 1, 12), (OUTSIDE, 0, -16), held={0: 16})
PASSED = [(2, 12), (3, 16), (2, -12)]


@pytest.mark.parametrize(
    ("step", "steps", "expected"),
    [
        # The state takes the place that an activation left or a new one, and later steps find what is left.
        (STEP, 2, [(0, 16), *PASSED, (1, 16), (3, -16), *PASSED, (3, -16)]),
        # What a step leaves goes, and what it freed of before comes again.
        (LEAVING, 1, [(0, 16), (1, 12), (0, -16), (1, -12), (0, 16)]),
    ],
    ids=["the state comes after the first backward pass", "a step is brought back to its beginning"],
)
def test_a_training_requests_what_its_steps_do(step, steps, expected):
    assert [(storage, size // MIB) for storage, size in requests_of(step, steps=steps)] == expected


def test_peaks_are_those_of_the_whole_training():
    """Weights, activation and gradient are 44 MiB, with the state 60; the activation's segment is too small for it."""
    assert card_memory(STEP) == AllocatorStats(60 * MIB, 60 * MIB, 60 * MIB)


# ``python benchmarks/card_memory.py --requests`` records them on the card at hand.
RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "h100_requests.json.gz").read_bytes()))["recorded"]


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: found["settings"] or "default")
def test_the_same_requests_reserve_what_they_reserved_on_the_card(found):
    allocator = CachingAllocator(**settings_in({"PYTORCH_ALLOC_CONF": found["settings"]}))
    allocator.answer(found["requests"])
    assert {name: getattr(allocator.peak, name) for name in found["peaks"]} == found["peaks"]


TABLES = sorted((Path(__file__).parents[3] / "studies/tables").glob("torch_*.json.gz"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name.partition(".")[0])
def test_a_recorded_table_still_tells_its_steps(table):
    """Nothing else reads what a detection of an earlier version has of them."""
    detection = codec.decode(json.dumps(json.loads(gzip.decompress(table.read_bytes()))["detection"]), Detection)
    assert TorchMemoryModel.of(detection).steps.parts
