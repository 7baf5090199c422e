"""Gradients beside the training, of whatever a script trains, and however it checkpoints."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.check.gradients import Step, check_gradients
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.graphs import grad_of_leaves
from autorecompute.backends.torch.find.structure import structure_of
from autorecompute.backends.torch.switch.intercepting import put_around
from autorecompute.plans import Choice
from stand_ins.other_checkpoint import Recomputed

X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        inner = checkpoint(self.first, x, use_reentrant=True)
        return x + self.dropout(self.second(torch.tanh(torch.relu(inner))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.begin = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.scales = [torch.ones(1, requires_grad=True)]

    def forward(self, x):
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x) * self.scales[0]
        return x.square().mean()


def test_gradients_of_a_model_with_reentrant_checkpoints_are_compared():
    """As Transformers 4 checkpoints by default; ``autograd.grad`` refuses to go through one."""
    torch.manual_seed(0)
    model = Net()
    found = detect(model, (X,), {})
    board = found.switchboard(model)
    model(X).backward()
    leaves = [*model.parameters(), *model.scales]
    before = [leaf.grad for leaf in leaves]
    copies = [gradient.clone() for gradient in before]
    assert board.sites
    for site in board.sites.values():
        for option in site.options:
            check = check_gradients(model, board, [Choice(site.name, option)], (X[:2],), {})
            assert (check.agrees, check.worst) == (True, 0)
    assert all(leaf.grad is gradient for leaf, gradient in zip(leaves, before, strict=True))
    assert all(map(torch.equal, before, copies))


def test_a_wrong_gradient_is_seen_behind_a_reentrant_checkpoint():
    torch.manual_seed(0)
    model = Net()
    board = detect(model, (X,), {}).switchboard(model)
    original = board.set

    def wrong(choices):
        original(choices)
        put_around(model.layers[1].first, [lambda call, _module, x: call(x) * 1.5] if board.choices else [])

    board.set = wrong
    (site, *_) = board.sites
    assert not check_gradients(model, board, [Choice(site, board.sites[site].options[0])], (X[:2],), {}).agrees
    wrong([])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # where a block runs without autograd
def test_blocks_with_reentrant_checkpoints_in_them_are_run_one_by_one():
    torch.manual_seed(0)
    model = Net().eval()
    shown = {}

    def run(blocks):
        shown.clear()
        Step(model, (X,), {}, blocks=blocks).run(1, lambda part, tensor: shown.update({part: tensor.clone()}))
        return dict(shown)

    expected, found = run(()), run(tuple(model.layers))
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[part], expected[part], atol=1e-6) for part in expected)
    assert [leaf.grad for leaf in (*model.parameters(), *model.scales)] == [None] * 15


def test_a_hook_that_steps_in_the_backward_pass_does_not_run():
    """Or the weights would be others after a comparison."""
    layer, stepped = nn.Linear(4, 4), []
    layer.weight.register_post_accumulate_grad_hook(stepped.append)
    loss = checkpoint(layer, torch.ones(2, 4, requires_grad=True), use_reentrant=True).sum()
    (gradient,) = grad_of_leaves([loss], [layer.weight], [torch.ones(())])
    assert torch.equal(gradient, torch.full((4, 4), 2.0))
    assert (stepped, layer.weight.grad) == ([], None)
    layer(torch.ones(2, 4)).sum().backward()
    assert len(stepped) == 1


def test_what_goes_back_by_itself_puts_no_gradient_into_a_weight():
    """``autograd.grad`` does not keep it from that."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x, shown = torch.ones(2, 4), []
    model.forward = lambda x: Recomputed.apply(model[1], model[0](x)).sum()
    Step(model, (x,), {}).run(1, lambda part, _: shown.append(part[0]))
    assert {"0.weight", "0.bias", "1.weight", "1.bias"} <= set(shown)
    assert [weight.grad for weight in model.parameters()] == [None] * 4


@pytest.mark.parametrize("has_gradient", [False, True])
def test_a_fake_step_leaves_the_gradients_of_weights_in_no_module(has_gradient):
    """A step on fake tensors goes back to them, too: a fake gradient would end the script's own backward pass."""
    model = Net()
    for layer in model.layers:
        layer.forward = lambda x, layer=layer: x + layer.second(torch.relu(layer.first(x)))
    (scale,) = model.scales
    scale.grad = torch.full((1,), 3.0) if has_gradient else None
    optimizer = torch.optim.Adam([*model.parameters(), scale])
    before = scale.grad
    found = detect(model, (X,), {})
    steps = FakeSteps(model, structure_of(model).units, Script((X,), {}, [optimizer]), found.values)
    assert steps.run(found.switchboard(model), []).peak > 0
    assert scale.grad is before
    model(X).backward()
    assert type(scale.grad) is torch.Tensor
    optimizer.step()
