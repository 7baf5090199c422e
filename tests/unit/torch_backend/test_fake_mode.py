"""A process whose large tensors have no data: what a script does in it, and what is told of its models."""

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autorecompute.backends.torch.fake_mode import LargeTensorsAreFake
from autorecompute.backends.torch.fake_tensors import is_fake
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.forecast import TorchMemoryModel
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.survey import bytes_of, survey_steps
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.errors import ScriptError
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH
from autorecompute.units import MIB
from tiny_models import call_of

TERABYTE = 1 << 40

WIDE = 1024
"""A square matrix of floats of this width takes 4 MiB: more than what is real."""


def told(training, optimizer, args, kwargs):
    """What is found in a model, and what steps of it take."""
    tuned = Tuned.of(training.model, args, kwargs)
    return tuned.found, survey_steps(training.model, tuned.found, tuned.board, Script(args, kwargs, [optimizer]))


def test_a_model_of_fakes_offers_and_takes_what_the_real_one_does(training):
    """Sites, savings and every byte of every step are those that the same model has with data."""
    optimizer = torch.optim.AdamW(training.model.parameters())
    args, kwargs = call_of(training)
    real, real_steps = told(training, optimizer, args, kwargs)
    with LargeTensorsAreFake() as fakes, fakes.small_ones_too(training.model, [optimizer]):
        fake, fake_steps = told(training, optimizer, *fakes.without_floats((args, kwargs)))
    assert [site.name for site in fake.sites] == [site.name for site in real.sites]
    assert fake.savings == real.savings
    assert fake_steps == real_steps


def test_a_forecast_at_another_batch_is_what_fake_steps_take_there(training):
    """Gradients of weights stay as they are, and activations grow: without recompute and with all blocks."""
    optimizer = torch.optim.AdamW(training.model.parameters())
    args, kwargs = call_of(training)
    found, taken = told(training, optimizer, args, kwargs)
    board = found.switchboard(training.model)
    space = space_of(found, board, taken)
    model = TorchMemoryModel(space, taken, bytes_of(training.model), {})
    script = Script(args, kwargs, [optimizer], batch=(taken.batch, 3 * taken.batch))
    steps = FakeSteps(training.model, found.structure.units, script, found.values)
    for config in (Config(), space.presets["blocks"]):
        peak = steps.run(board, config.choices).peak
        assert model.forecast(config, {BATCH: 3 * taken.batch}).peak_bytes == pytest.approx(peak, rel=0.001)


def test_a_model_larger_than_the_memory_is_made_and_trained():
    """A terabyte of weights takes none, through forward, backward, the optimizer and a conversion."""
    before = psutil.Process().memory_info().rss
    with LargeTensorsAreFake():
        model = nn.Sequential(*(nn.Linear(1 << 19, 1 << 19, bias=False) for _ in range(2))).to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(4, 1 << 19, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) >= TERABYTE
    assert model[0].weight.dtype == model[0].weight.grad.dtype == torch.bfloat16
    assert psutil.Process().memory_info().rss - before < 256 * MIB


def test_what_decides_about_the_data_is_real():
    """A shuffled loader gives each sample once, also where it was to read in other processes."""
    with LargeTensorsAreFake():
        samples = TensorDataset(torch.arange(12), torch.randn(12, WIDE, WIDE))
        loader = DataLoader(samples, batch_size=4, shuffle=True, num_workers=2)
        batches = list(loader)
    assert sorted(number for numbers, _ in batches for number in numbers.tolist()) == list(range(12))
    assert all(is_fake(images) and images.shape == (4, WIDE, WIDE) for _, images in batches)


def test_a_number_that_is_looked_at_is_taken_to_be_1_and_told_with_its_line():
    """A script that prints its loss goes on."""
    with LargeTensorsAreFake() as fakes:
        loss = nn.Linear(WIDE, WIDE)(torch.randn(2, WIDE)).mean()
        assert loss.item() == 1
    (line,) = fakes.assumed
    assert line.startswith("test_fake_mode.py:")


@pytest.mark.parametrize("look", [torch.nonzero, torch.unique, lambda tensor: tensor[tensor > 0]])
def test_a_shape_that_depends_on_values_ends_with_the_line(look):
    """How many elements there are cannot be taken to be anything."""
    with LargeTensorsAreFake(), pytest.raises(ScriptError, match=r"test_fake_mode\.py:\d+ looks at values"):
        look(torch.randn(WIDE, WIDE))


def test_a_kernel_without_a_fake_is_named():
    """The sentence says which one, and how it can have one."""

    @torch.library.custom_op("autorecompute_tests::twice", mutates_args=())
    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    with LargeTensorsAreFake(), pytest.raises(ScriptError, match=r"autorecompute_tests.twice.*register_fake"):
        twice(torch.randn(WIDE, WIDE))


def test_nothing_is_fake_any_more_behind_it():
    """A process that leaves it makes tensors with data, and loaders as they were."""
    iterate = DataLoader._get_iterator
    with LargeTensorsAreFake():
        pass
    assert not is_fake(torch.randn(WIDE, WIDE))
    assert DataLoader._get_iterator is iterate
