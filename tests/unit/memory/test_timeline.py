import pytest
import torch
from torch import nn

from autorecompute.backends.torch.fake.steps import Script
from autorecompute.memory import Phase, trace
from autorecompute.plans import Config
from stand_ins.surveyed import Surveyed
from tiny_models import ResNet
from unit.conftest import build_step


def blocks(count=2):
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(count)))


class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = blocks(), blocks()

    def forward(self, x):
        return self.layer2(self.layer1(x))


STEP = build_step(
    "fflbb", ("x", 0, 4, "batch", "10"), ("y", 1, 3, "10*batch"), ("z", 1, 1, "batch", "20"), ("dy", 3, 4, "7")
)


def test_a_tensor_is_alive_from_its_maker_to_its_last_reader_or_the_end():
    assert trace(build_step("flb", ("gradient", 2, 3, "4"))).live_bytes == (0, 0, 4)
    assert trace(STEP).live_bytes == (20, 80, 40, 47, 27)
    assert trace(STEP, {"batch": 10}).live_bytes == (100, 400, 200, 207, 107)
    with pytest.raises(ValueError, match=r"2\*heads"):
        build_step("fl", ("x", 0, 1, "2*heads"))


def test_peak_stash_phases_and_layers_are_those_of_what_is_alive():
    """The stash is what the backward pass reads of the forward pass.

    Phases add up to the whole, layers to that pass.
    """
    timeline = trace(STEP)
    assert (timeline.peak, timeline.peak_bytes, timeline.stash_bytes) == (1, 80, 40)
    assert [(tensor.name, size) for tensor, size in timeline.largest_at_peak()] == [("z", 40), ("x", 20), ("y", 20)]
    by_phase = timeline.live_by_phase()
    assert by_phase[Phase.BACKWARD] == (0, 0, 0, 7, 7)
    assert tuple(map(sum, zip(*by_phase.values(), strict=True))) == timeline.live_bytes
    by_layer = timeline.live_by_layer()
    assert by_layer == {"layer.0": (20,) * 5, "layer.1": (0, 60, 20, 20, 0)}
    assert tuple(map(sum, zip(*by_layer.values(), strict=True))) == timeline.live_by_phase()[Phase.FORWARD]


ROWS = torch.randn(4, 8)


@pytest.mark.parametrize(
    ("model", "inputs", "layers"),
    [
        (blocks(3), ROWS, ["0", "1", "2"]),
        (nn.Sequential(nn.Linear(8, 8), blocks(), nn.Linear(8, 2)), ROWS, ["", "1.0", "1.1"]),
        (Stages(), ROWS, ["layer1", "layer2"]),
        (ResNet(), torch.randn(4, 3, 16, 16), ["", "layer1.0", "layer1.1", "layer2.0", "layer2.1"]),
        (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)), ROWS, [""]),
    ],
    ids=["numbers", "numbers in numbers", "stages", "blocks in stages", "nothing repeats"],
)
def test_in_plain_pytorch_each_block_is_a_layer_whatever_it_is_called(model, inputs, layers):
    """What lies in no block, the optimizer too, is in none."""
    script = Script((inputs,), {}, [torch.optim.AdamW(model.parameters())])
    timeline = Surveyed(model, script).memory.timeline(Config())
    by_layer, profile = timeline.live_by_layer(), timeline.profile
    assert list(by_layer) == layers
    assert all(map(any, by_layer.values()))
    assert tuple(map(sum, zip(*by_layer.values(), strict=True))) == timeline.live_by_phase()[Phase.FORWARD]
    assert {profile.layer_of(operation) for operation in profile.operations} == {"", *layers}


def test_recompute_is_told_up_to_the_peak_and_after_it():
    tensors = [(f"r{place}", place, last, "batch", "10") for place, last in ((3, 9), (4, 8), (5, 6), (7, 8))]
    before, after = trace(build_step("fflrrrbrbb", ("x", 0, 3, "6"), *tensors)).recomputed()
    assert [operation.name for operation in before] == [f"/model/layer.{place}/r" for place in (3, 4, 5)]
    assert [operation.name for operation in after] == ["/model/layer.7/r"]
    assert trace(STEP).recomputed() == ([], [])
