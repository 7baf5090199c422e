import dataclasses

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autorecompute.backends.torch.fake.machine import CardKernels, reserve
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.fake.survey import bytes_of, survey_steps
from autorecompute.backends.torch.fake.tensors import LargeTensorsAreFake, is_fake
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.forecast.cards import capability_of
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.records import TorchDetection
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.errors import ScriptError
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.units import MIB
from stand_ins.surveyed import Surveyed
from tiny_models import call_of, make

TERABYTE = 1 << 40

WIDE = 1024
"""A square matrix of floats of this width takes 4 MiB: more than what is real."""


@pytest.fixture(scope="module", params=["llama", "resnet"])
def surveyed(request):
    return Surveyed.of(request.param, layers=2)


def test_a_model_of_fakes_offers_and_takes_what_the_real_one_does(surveyed):
    script = surveyed.script
    with LargeTensorsAreFake() as fakes, fakes.small_ones_too(surveyed.model, script.optimizers):
        args, kwargs = fakes.without_floats((script.args, script.kwargs))
        tuned = Tuned.of(surveyed.model, args, kwargs)
        steps = survey_steps(surveyed.model, tuned.found, tuned.board, Script(args, kwargs, script.optimizers))
    assert [site.name for site in tuned.found.sites] == [site.name for site in surveyed.found.sites]
    assert tuned.found.savings == surveyed.found.savings
    assert steps == surveyed.steps


def test_a_forecast_at_another_batch_is_what_fake_steps_take_there(surveyed):
    """Gradients of weights stay as they are, and activations grow."""
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
