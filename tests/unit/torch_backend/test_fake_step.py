"""What the caching allocator makes of a step on fake tensors."""

import pytest
import torch

from autorecompute.backends.torch.caching_allocator import AllocatorSettings, AllocatorStats, OutOfCardMemoryError
from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fake_step import FakeStep, card_memory, requests_of
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.live import BACKWARD, FORWARD, OUTSIDE, Event, Segment
from autorecompute.backends.torch.options import CHECKPOINT
from autorecompute.plans import Choice
from autorecompute.units import MIB
from tiny_models import call_of, make


def steps_of(training, *configs):
    """The meter of a step with the first config, and the steps of all of them."""
    found = detect(training.model, *call_of(training))
    script = Script(*call_of(training), (torch.optim.AdamW(training.model.parameters()),))
    steps = FakeSteps(training.model, found.structure.units, script, found.values)
    board = found.switchboard(training.model)
    with steps.prepared(board) as (_, take):
        taken = [take(config, optimizes=not place) for place, config in enumerate(configs)]
    return steps.run(board, configs[0]), taken


def test_what_a_step_requests_is_what_lives_in_it(training):
    """To the byte, at every model: the allocator rounds it up by 511 bytes for each block at most."""
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
    growing = AllocatorSettings(expandable_segments=True)
    assert card_memory(recomputed).reserved < card_memory(plain).reserved
    assert card_memory(plain, growing).reserved <= card_memory(plain).reserved


def step_of(*events, held=None, state=()):
    """A step of changes in MiB, by phase and storage."""
    changes = [Event(Segment(phase, 0), size * MIB, storage) for phase, storage, size in events]
    sizes = {number: size * MIB for number, size in (held or {}).items()}
    return FakeStep(sum(sizes.values()), tuple(changes), {}, sizes, frozenset(state))


STEP = step_of(
    (FORWARD, 2, 12),
    (BACKWARD, 3, 16),
    (BACKWARD, 2, -12),
    (OUTSIDE, 3, -16),
    held={0: 16, 1: 16},
    state=[1],
)
"""Weights and state, an activation and a gradient."""


def test_the_state_comes_after_the_first_backward_pass():
    """It takes the place that an activation left or a new one, and later steps find what is left."""
    sizes = [(request.storage, request.size // MIB) for request in requests_of(STEP, steps=2)]
    passed = [(2, 12), (3, 16), (2, -12)]
    assert sizes == [(0, 16), *passed, (1, 16), (3, -16), *passed, (3, -16)]


def test_a_step_that_leaves_something_is_brought_back_to_its_beginning():
    """What it leaves goes, and what it freed of before comes again."""
    left = step_of((FORWARD, 1, 12), (OUTSIDE, 0, -16), held={0: 16})
    sizes = [(request.storage, request.size // MIB) for request in requests_of(left, steps=1)]
    assert sizes == [(0, 16), (1, 12), (0, -16), (1, -12), (0, 16)]


def test_peaks_are_those_of_the_whole_training():
    """Weights, activation and gradient are 44 MiB, with the state 60; the activation's segment is too small for it."""
    assert card_memory(STEP) == AllocatorStats(60 * MIB, 60 * MIB, 60 * MIB)


def test_a_step_beyond_the_limit_is_refused():
    """As PyTorch refuses it."""
    with pytest.raises(OutOfCardMemoryError):
        card_memory(STEP, limit=59 * MIB)
