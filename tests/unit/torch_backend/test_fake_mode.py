import dataclasses
import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autorecompute import codec
from autorecompute.backends.torch.fake.live import BACKWARD, FORWARD, OUTSIDE, Event, Segment
from autorecompute.backends.torch.fake.machine import CardKernels, reserve
from autorecompute.backends.torch.fake.repeats import card_memory, fragmented_bytes, requests_of
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.fake.survey import bytes_of, survey_steps
from autorecompute.backends.torch.fake.tensors import LargeTensorsAreFake, is_fake
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.forecast.caching_allocator import AllocatorStats, CachingAllocator, settings_in
from autorecompute.backends.torch.forecast.cards import capability_of
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.records import TorchDetection
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.errors import ScriptError
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.training_job import Detection
from autorecompute.units import KIB, MIB
from stand_ins.surveyed import Surveyed, detect_in
from tiny_models import call_of, make

TERABYTE = 1 << 40

WIDE = 1024
"""A square matrix of floats of this width takes 4 MiB: more than what is real."""


@pytest.fixture(scope="module", params=["llama", "resnet"])
def surveyed(request):
    return Surveyed.of(request.param, layers=2)


def test_a_model_of_fakes_offers_what_the_real_one_does_and_is_forecast_at_another_batch_as_well(surveyed):
    """Gradients of weights stay as they are, and activations grow."""
    script = surveyed.script
    with LargeTensorsAreFake() as fakes, fakes.small_ones_too(surveyed.model, script.optimizers):
        args, kwargs = fakes.without_floats((script.args, script.kwargs))
        tuned = Tuned.of(surveyed.model, args, kwargs)
        steps = survey_steps(surveyed.model, tuned.found, tuned.board, Script(args, kwargs, script.optimizers))
    assert [site.name for site in tuned.found.sites] == [site.name for site in surveyed.found.sites]
    assert tuned.found.savings == surveyed.found.savings
    assert steps == surveyed.steps
    batch = surveyed.steps.batch
    memory = dataclasses.replace(surveyed.memory, resting_bytes=bytes_of(surveyed.model))
    script = dataclasses.replace(surveyed.script, batch=(batch, 3 * batch))
    steps = FakeSteps(surveyed.model, surveyed.found.structure.units, script, surveyed.found.values)
    for config in (Config(), surveyed.space.presets["blocks"]):
        peak = steps.run(surveyed.board, config.choices).peak
        assert memory.forecast(config, {BATCH: 3 * batch}).peak_bytes == pytest.approx(peak, rel=0.001)


def test_a_model_larger_than_the_memory_is_made_and_trained():
    before = psutil.Process().memory_info().rss
    with LargeTensorsAreFake():
        model = nn.Sequential(*(nn.Linear(1 << 19, 1 << 19, bias=False) for _ in range(2))).to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(4, 1 << 19, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) >= TERABYTE
    assert model[0].weight.dtype == model[0].weight.grad.dtype == torch.bfloat16
    assert psutil.Process().memory_info().rss - before < 256 * MIB


def test_what_decides_about_the_data_is_real_and_nothing_is_fake_any_more_behind_it():
    iterate = DataLoader._get_iterator
    with LargeTensorsAreFake():
        samples = TensorDataset(torch.arange(12), torch.randn(12, WIDE, WIDE))
        batches = list(DataLoader(samples, batch_size=4, shuffle=True, num_workers=2))
    assert sorted(number for numbers, _ in batches for number in numbers.tolist()) == list(range(12))
    assert all(is_fake(images) and images.shape == (4, WIDE, WIDE) for _, images in batches)
    assert DataLoader._get_iterator is iterate
    assert not is_fake(torch.randn(WIDE, WIDE))


def test_a_number_that_is_looked_at_is_taken_to_be_1_and_told_with_its_line():
    with LargeTensorsAreFake() as fakes:
        assert nn.Linear(WIDE, WIDE)(torch.randn(2, WIDE)).mean().item() == 1
    (line,) = fakes.assumed
    assert line.startswith("test_fake_mode.py:")


@pytest.mark.parametrize("look", [torch.nonzero, torch.unique, lambda tensor: tensor[tensor > 0]])
def test_a_shape_that_depends_on_values_ends_with_the_line(look):
    with LargeTensorsAreFake(), pytest.raises(ScriptError, match=r"test_fake_mode\.py:\d+ looks at values"):
        look(torch.randn(WIDE, WIDE))


def test_a_kernel_without_a_fake_is_named_with_how_it_can_have_one():
    @torch.library.custom_op("autorecompute_tests::twice", mutates_args=())
    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    with LargeTensorsAreFake(), pytest.raises(ScriptError, match=r"autorecompute_tests.twice.*register_fake"):
        twice(torch.randn(WIDE, WIDE))


def test_what_is_found_with_a_cards_kernels_is_there_in_its_steps():
    training = make("gpt2", batch=64)
    optimizer = torch.optim.AdamW(training.model.parameters())
    with LargeTensorsAreFake() as fakes, fakes.small_ones_too(training.model, [optimizer]):
        args, kwargs = fakes.without_floats(call_of(training))
        with CardKernels(capability_of("H100")).active([optimizer]):
            tuned = Tuned.of(training.model, args, kwargs)
            script = Script(args, kwargs, [optimizer])
            steps = survey_steps(training.model, tuned.found, tuned.board, script)
            space = space_of(tuned.found, tuned.board, steps)
            whole = FakeSteps(training.model, tuned.found.structure.units, script, tuned.found.values)
            configs = [space.presets[name] for name in ("none", "blocks", "all_on")]
            meters = {config: whole.run(tuned.board, config.choices) for config in configs}
            held = reserve(training.model, tuned, script, meters)
    assert tuned.missed == ()
    memory = TorchMemoryModel(space, steps, 0, {}, TorchDetection(on_card=held))
    for config, meter in meters.items():
        forecast = memory.forecast(config, memory.dims)
        assert forecast.live_bytes == meter.peak - meter.base
        assert meter.peak <= forecast.allocated_bytes <= forecast.reserved_bytes
        assert forecast.reserved_bytes % (2 * MIB) == 0
    twice = memory.forecast(space.presets["none"], {"batch": 2 * steps.batch})
    assert (twice.allocated_bytes, twice.reserved_bytes) == (None, None), "no whole step was run there"


@pytest.mark.parametrize("training", ["gpt2", "encoder", "resnet"], indirect=True)
def test_what_a_step_requests_is_what_lives_in_it(training):
    """To the byte: the allocator rounds it up by 511 bytes for each block at most."""
    found = detect_in(training)
    script = Script(*call_of(training), (torch.optim.AdamW(training.model.parameters()),))
    steps = FakeSteps(training.model, found.structure.units, script, found.values)
    board = found.switchboard(training.model)
    with steps.prepared(board) as (_, take):
        step = take([], optimizes=True)
    meter, stats = steps.run(board, []), card_memory(step)
    assert stats.requested == meter.peak
    storages = len(step.held) + len({event.storage for event in step.events})
    assert 0 <= stats.allocated - stats.requested < 512 * storages
    assert stats.reserved >= stats.allocated


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
