"""Module calls made again: the same bits as without, whatever the module does."""

import copy
import gc

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.find.probe import Probe
from autorecompute.backends.torch.find.structure import structure_of
from autorecompute.backends.torch.forecast.records import CHECKPOINT, KEEP_MATMUL
from autorecompute.backends.torch.switch.checkpoints import Checkpoint, checkpointed
from autorecompute.backends.torch.switch.intercepting import put_around, release
from autorecompute.backends.torch.switch.module_state import SMALL
from autorecompute.backends.torch.switch.switchboard import Site, Switchboard
from autorecompute.plans import Choice
from stand_ins.watched import watched
from tiny_models import differences, make


def board_of(model):
    """Every module group of a model as a site, where its modules are called."""
    groups = structure_of(model).groups.items()
    called = {p for p, m in model.named_modules() if not isinstance(m, nn.ModuleList)}
    options = (CHECKPOINT, KEEP_MATMUL)
    return Switchboard(model, [Site(name, options, paths) for name, paths in groups if called.issuperset(paths)])


class Sibling(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Child(Sibling):
    def forward(self, x):
        return 2 * super().forward(x)


class Heir(Sibling):
    """Inherits its forward."""


class Warming(nn.Module):
    """Begins to write its buffer in its third call, in place or not, and computes with what it was."""

    def __init__(self, numbers, *, in_place):
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 4), in_place
        self.register_buffer("scale", torch.ones(numbers))
        self.steps = 0

    def forward(self, x):
        result = torch.tanh(self.linear(x) * self.scale[0].item())
        self.steps += 1
        if self.steps > 2:
            if self.in_place:
                self.scale.mul_(2)
            else:
                self.scale = self.scale * 2
        return result


def gradients_of(layer, steps=4):
    found = []
    for _ in range(steps):
        layer.zero_grad()
        layer(torch.ones(2, 4)).square().sum().backward()
        found += [parameter.grad.clone() for parameter in layer.parameters()]
    return [*found, *layer.buffers()]


@pytest.mark.parametrize(
    "make_layer",
    [
        lambda: Warming(4, in_place=True),
        lambda: Warming(4, in_place=False),
        lambda: Warming(SMALL, in_place=False),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),  # it writes its vectors first
    ],
    ids=["in place", "another", "another large one", "spectral norm"],
)
def test_a_layer_is_made_again_from_the_buffers_it_had(make_layer):
    """With what was written the gradients of that step would be wrong without a word."""
    layer = make_layer()
    expected = gradients_of(copy.deepcopy(layer))
    put_around(layer, [Checkpoint(layer, watched())])
    assert all(map(torch.equal, gradients_of(layer), expected))


def test_a_large_buffer_that_is_first_written_later_is_told():
    """Nobody has kept what it was, and a training does not end for it; in the next step somebody has."""
    layer = Warming(SMALL, in_place=True)
    expected = gradients_of(copy.deepcopy(layer))
    put_around(layer, [Checkpoint(layer, watched())])
    gradients_of(layer, steps=2)
    with pytest.warns(UserWarning, match=r"a large buffer .* was first written in a later call"):
        gradients_of(layer, steps=1)
    assert all(map(torch.equal, gradients_of(layer, steps=1), expected[-3:]))


def test_a_product_that_is_changed_in_place_is_told():
    """Kept, it would be changed twice: behind ``matmul`` torch does not see that."""

    class Scores(nn.Module):
        def forward(self, x):
            scores = torch.matmul(x, x.transpose(-1, -2))
            scores += 1
            return torch.softmax(scores.square(), -1) @ x

    seen = Probe(nn.Sequential(Scores()), []).run((torch.ones(2, 3, 4, requires_grad=True),), {})
    assert seen.changed == {("0", torch.ops.aten.bmm.default)}


def test_an_argument_given_twice_is_one_object_again():
    """Given three copies of one tensor, attention takes another path: torch's checkpoint gives them."""
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 4, 16, requires_grad=True)

    def gradient(call):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            call(x).sum().backward()
        found, x.grad = x.grad, None
        return found

    ours = gradient(lambda x: checkpointed(attention, (x, x), {"value": x}, watch=watched())[0])
    assert torch.equal(ours, gradient(lambda x: attention(x, x, x)[0]))


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_class_is_as_it_was_when_nothing_is_on_or_its_modules_are_gone(is_gone):
    before = [vars(kind).get("forward") for kind in (Sibling, Child, Heir)]
    modules = [Sibling(), Child(), Heir()]
    for module in modules:
        put_around(module, [Checkpoint(module, watched())])
    assert vars(Sibling)["forward"] is not before[0]
    while modules:
        module = modules.pop()
        if not is_gone:
            release(module)
        del module
    gc.collect()
    assert [vars(kind).get("forward") for kind in (Sibling, Child, Heir)] == before


def test_a_call_to_the_parents_forward_is_intercepted_once():
    calls = []

    def count(call, module, x):
        calls.append(type(module).__name__)
        return call(x)

    for module in (Sibling(), Child(), Heir()):
        put_around(module, [count])
        module(torch.ones(1, 4))
        Sibling()(torch.ones(1, 4))
        release(module)
    assert calls == ["Sibling", "Child", "Heir"]


def test_a_parameter_changed_before_the_backward_pass_is_told():
    layer = Sibling()
    put_around(layer, [Checkpoint(layer, watched())])
    loss = layer(torch.ones(1, 4, requires_grad=True)).sum()
    with torch.no_grad():
        layer.linear.bias.add_(1)
    with pytest.raises(RuntimeError, match="was changed between"):
        loss.backward()


def test_a_module_is_made_again_in_the_mode_it_was_in_before_an_evaluation():
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    x = torch.ones(4, 8, requires_grad=True)

    def gradient(around):
        put_around(layer, around)
        torch.manual_seed(0)
        loss = layer(x).square().sum()
        layer.eval()
        loss.backward()
        layer.train()
        found, x.grad = x.grad, None
        return found

    assert torch.equal(gradient([Checkpoint(layer, watched())]), gradient([]))


def test_an_outer_checkpoint_takes_what_lies_inside():
    board = board_of(make("gpt2", layers=3).model)
    effects = board.resolve([Choice("transformer.h.*", CHECKPOINT, 1), Choice("transformer.h.*.mlp", CHECKPOINT)])
    paths = ["transformer.h.0", "transformer.h.1.mlp", "transformer.h.2.mlp"]
    assert sorted(effect.path for effect in effects) == paths
    assert board.resolve([Choice("transformer.h.*", CHECKPOINT)]) == board.resolve(
        [Choice("transformer.h.*", CHECKPOINT, 3), Choice("transformer.h.*.mlp", KEEP_MATMUL, 2)]
    )
    overlaps = board.overlaps()
    assert (("transformer.h.*", CHECKPOINT), ("transformer.h.*.mlp", CHECKPOINT)) in overlaps
    assert (("transformer.h.*.mlp", CHECKPOINT), ("transformer.h.*", CHECKPOINT)) not in overlaps


@pytest.mark.parametrize(
    ("choice", "message"),
    [(Choice("nowhere", CHECKPOINT), "no site nowhere"), (Choice("transformer.h.*", "again"), "no option again")],
)
def test_a_senseless_choice_leaves_on_what_was_on(choice, message):
    model = make("gpt2").model  # the board holds none
    board = board_of(model)
    board.set([Choice("transformer.h.*", CHECKPOINT, 1)])
    before = board.effects
    with pytest.raises(ValueError, match=message):
        board.set([choice])
    assert board.effects == before


def test_products_are_kept_in_calls_whose_weights_autocast_has_cast_before():
    """A weight is cast in the first call alone, and in each block that is run again."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    x = torch.randn(4, 8)

    def gradients():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(x) * model(-x)).float().sum()
        loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    expected = gradients()
    board_of(model).set([Choice("*", KEEP_MATMUL)])
    assert differences(gradients(), expected) == []
