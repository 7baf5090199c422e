"""A model on fake tensors with a card's kernels: its plans, its steps, and what the card's allocator would hold."""

import pytest
import torch

from autorecompute.backends.torch.card_kernels import CardKernels
from autorecompute.backends.torch.cards import CARDS
from autorecompute.backends.torch.fake_mode import LargeTensorsAreFake
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.forecast import TorchMemoryModel
from autorecompute.backends.torch.on_card import reserve
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.units import MIB
from tiny_models import call_of, make


@pytest.mark.parametrize("name", ["gpt2", "encoder"])
def test_what_is_found_with_a_cards_kernels_is_there_in_its_steps(name):
    """No operator is missed, each preset has the forecast peak, and the allocator holds that in whole segments."""
    training = make(name, batch=64)
    optimizer = torch.optim.AdamW(training.model.parameters())
    with LargeTensorsAreFake() as fakes, fakes.small_ones_too(training.model, [optimizer]):
        args, kwargs = fakes.without_floats(call_of(training))
        with CardKernels(CARDS["H100"].capability).active([optimizer]):
            tuned = Tuned.of(training.model, args, kwargs)
            script = Script(args, kwargs, [optimizer])
            steps = survey_steps(training.model, tuned.found, tuned.board, script)
            space = space_of(tuned.found, tuned.board, steps)
            whole = FakeSteps(training.model, tuned.found.structure.units, script, tuned.found.values)
            meters = {config: whole.run(tuned.board, config.choices) for config in space.presets.values()}
            held = reserve(training.model, tuned, script, meters)
    assert tuned.missed == ()
    memory = TorchMemoryModel(space, steps, 0, {}, held)
    for config, meter in meters.items():
        forecast = memory.forecast(config, memory.dims)
        assert forecast.live_bytes == meter.peak - meter.base
        assert meter.peak <= forecast.allocated_bytes <= forecast.reserved_bytes
        assert forecast.reserved_bytes % (2 * MIB) == 0
    twice = memory.forecast(space.presets["none"], {"batch": 2 * steps.batch})
    assert (twice.allocated_bytes, twice.reserved_bytes) == (None, None), "no whole step was run there"
