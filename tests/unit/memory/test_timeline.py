"""What is alive when, in steps that can be followed on paper."""

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.forecast import TorchMemoryModel
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.memory import Phase, find_chain, trace
from autorecompute.plans import Config, Space
from tiny_models import ResNet


def blocks(count=2):
    """Layers that their place in a ``Sequential`` names."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(count)))


class Stages(nn.Module):
    """Blocks that have a name and a number, without a dot in between."""

    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = blocks(), blocks()

    def forward(self, x):
        """One stage after the other."""
        return self.layer2(self.layer1(x))


def torch_timeline(model, inputs):
    """A step of a model in plain PyTorch, as it is seen on fake tensors."""
    tuned = Tuned.of(model, (inputs,), {})
    script = Script((inputs,), {}, [torch.optim.AdamW(model.parameters())])
    steps = survey_steps(model, tuned.found, tuned.board, script)
    return TorchMemoryModel(Space(plans=()), steps, 0, {}).timeline(Config())


@pytest.fixture
def step(make_step):
    """Two layers: each keeps ten bytes a sample for its backward, and the second makes twenty more on its way."""
    return make_step(
        "fflbb", ("x", 0, 4, "batch", "10"), ("y", 1, 3, "10*batch"), ("z", 1, 1, "batch", "20"), ("dy", 3, 4, "7")
    )


def test_a_tensor_is_alive_from_its_maker_to_its_last_reader(step):
    """The bytes of each moment are those of the tensors that live then, both ends included."""
    assert trace(step).live_bytes == (20, 80, 40, 47, 27)


def test_the_peak_is_where_most_is_alive(step):
    """The peak has a place, a size, and the tensors that make it up, largest first."""
    timeline = trace(step)
    assert (timeline.peak, timeline.peak_bytes) == (1, 80)
    assert [(tensor.name, size) for tensor, size in timeline.alive_at(1)] == [("z", 40), ("x", 20), ("y", 20)]


def test_the_stash_is_what_backward_reads_of_forward(step):
    """Neither what forward alone needs nor what backward makes is part of it."""
    assert trace(step).stash_bytes == 40


def test_shapes_follow_the_dimensions(step):
    """At five times the batch everything grows that depends on it, and nothing else."""
    assert trace(step, {"batch": 10}).live_bytes == (100, 400, 200, 207, 107)


def test_an_unknown_dimension_is_an_error(make_step):
    """A step in which a tensor has no size is none."""
    with pytest.raises(ValueError, match=r"2\*heads"):
        make_step("fl", ("x", 0, 1, "2*heads"))


def test_phases_add_up_to_the_whole(step):
    """What the phases hold at a moment is all that is held then."""
    timeline = trace(step)
    by_phase = timeline.live_by_phase()
    assert by_phase[Phase.BACKWARD] == (0, 0, 0, 7, 7)
    assert tuple(map(sum, zip(*by_phase.values(), strict=True))) == timeline.live_bytes


def test_layers_add_up_to_the_forward_pass(step):
    """Each layer has what its own forward pass made, for as long as it is alive."""
    timeline = trace(step)
    by_layer = timeline.live_by_layer()
    assert by_layer == {"layer.0": (20,) * 5, "layer.1": (0, 60, 20, 20, 0)}
    assert tuple(map(sum, zip(*by_layer.values(), strict=True))) == timeline.live_by_phase()[Phase.FORWARD]


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        (lambda: (blocks(3), torch.randn(4, 8)), ["0", "1", "2"]),
        (lambda: (nn.Sequential(nn.Linear(8, 8), blocks(), nn.Linear(8, 2)), torch.randn(4, 8)), ["", "1.0", "1.1"]),
        (lambda: (Stages(), torch.randn(4, 8)), ["layer1", "layer2"]),
        (lambda: (ResNet(), torch.randn(4, 3, 16, 16)), ["", "layer1.0", "layer1.1", "layer2.0", "layer2.1"]),
        (lambda: (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(4, 8)), [""]),
    ],
    ids=["numbers", "numbers_in_numbers", "stages", "blocks_in_stages", "nothing_repeats"],
)
def test_in_plain_pytorch_each_block_is_a_layer_whatever_it_is_called(make, layers):
    """A bare number names a block as well as ``h.0`` does, and what lies in no block, the optimizer too, is in none."""
    timeline = torch_timeline(*make())
    by_layer, profile = timeline.live_by_layer(), timeline.profile
    assert list(by_layer) == layers
    assert all(map(any, by_layer.values()))
    assert tuple(map(sum, zip(*by_layer.values(), strict=True))) == timeline.live_by_phase()[Phase.FORWARD]
    assert {profile.layer_of(operation) for operation in profile.operations} == {"", *layers}


def test_what_outlives_the_step_is_alive_to_its_end(make_step):
    """A gradient that the step hands over is held until the last operation, and not beyond."""
    assert trace(make_step("flb", ("gradient", 2, 3, "4"))).live_bytes == (0, 0, 4)


def test_a_chain_is_what_has_to_be_recomputed_before_the_peak(make_step):
    """Three of four recomputed operations run before any backward: their tensors are most of the peak."""
    tensors = [(f"r{place}", place, last, "batch", "10") for place, last in ((3, 9), (4, 8), (5, 6), (7, 8))]
    chain = find_chain(trace(make_step("fflrrrbrbb", ("x", 0, 3, "6"), *tensors)))
    assert [operation.name for operation in chain.operations] == [
        "/model/layer.3/r",
        "/model/layer.4/r",
        "/model/layer.5/r",
    ]
    assert (chain.recomputed, chain.waiting_bytes) == (4, 60)
    assert chain.share_of_work == pytest.approx(0.75)


def test_a_step_without_recompute_has_no_chain(step):
    """Nothing is recomputed, so nothing waits."""
    chain = find_chain(trace(step))
    assert (chain.operations, chain.share_of_work, chain.waiting_bytes) == ((), 0.0, 0)
