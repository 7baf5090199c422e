"""What a rank gathers and reduces in a step: counted as it comes and goes, and told from activations."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from autorecompute.backends.torch.fake.live import LiveBytes
from autorecompute.backends.torch.fake.machine import divide
from autorecompute.backends.torch.fake.steps import FakeSteps, Script, buckets_around
from autorecompute.backends.torch.fake.survey import bytes_of, survey_steps
from autorecompute.backends.torch.fake.tensors import LargeTensorsAreFake, is_fake
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.plans import Config

WIDTH, BATCH, BLOCKS = 16, 8, 7


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def test_a_storage_that_is_resized_is_counted_with_its_size():
    """It gives its memory back and takes it again, as gathered parameters do, under the same number."""
    with LiveBytes() as meter:
        tensor = torch.zeros(1000)
        storage, full = tensor.untyped_storage(), meter.now
        storage.resize_(0)
        assert meter.now == full - 4000
        storage.resize_(4000)
        assert (meter.now, meter.peak) == (full, full)
    storage.resize_(0)
    assert meter.now == full


def test_a_sharded_model_on_fakes_is_divided_alike_with_and_without_units_that_are_left_out(alone):
    """Few blocks stand for many: each kind has the bytes that whole steps have, and all of them are the peak."""
    with LargeTensorsAreFake(all_weights=True) as fakes:
        model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        for block in model:
            fully_shard(block, mesh=alone)
        fully_shard(model, mesh=alone)
        assert all(map(is_fake, model.parameters()))
        optimizer = torch.optim.AdamW(model.parameters())
        with fakes.small_ones_too(model, [optimizer]):
            script = Script(fakes.without_floats((torch.randn(BATCH, WIDTH),)), {}, [optimizer])
            tuned = Tuned.of(model, script.args, {})
            assert len(tuned.found.repeated) == BLOCKS - 4
            steps = survey_steps(model, tuned.found, tuned.board, script)
            configs = [Config.parse(texts) for texts in ([], ["*:checkpoint"], ["*:checkpoint:3"])]
            for config, rank in zip(configs, divide(model, tuned, script, steps, configs), strict=True):
                whole = FakeSteps(model, tuned.found.structure.units, script, tuned.found.values)
                assert rank.peak_bytes == whole.run(tuned.board, config.choices).peak
                assert rank.parameter_bytes == bytes_of(model)
                assert rank.gathered_bytes > 0


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("are_gradients", [True, False])
def test_buckets_are_as_large_as_the_gradients_and_hold_them_where_they_are_views(are_gradients):
    """What is found around the model is what DDP was told; a frozen parameter has no place in it."""
    model = nn.Sequential(Block(), Block())
    model[0].up.requires_grad_(requires_grad=False)
    seen = []
    model.register_forward_pre_hook(lambda module, _: seen.append(buckets_around(module)))
    DistributedDataParallel(model, gradient_as_bucket_view=are_gradients)(torch.randn(BATCH, WIDTH))
    (buckets,) = seen
    assert buckets.are_gradients is are_gradients
    trained = [parameter.nbytes for parameter in model.parameters() if parameter.requires_grad]
    assert sum(tensor.nbytes for tensor in buckets.tensors) == sum(trained)
    with buckets.in_use():
        model(torch.randn(BATCH, WIDTH)).sum().backward()
    held = {tensor.data_ptr() for tensor in buckets.tensors}
    assert (model[1].down.weight.grad.data_ptr() in held) is are_gradients
