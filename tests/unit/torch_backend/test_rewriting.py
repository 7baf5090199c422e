"""Operators made again: what the backward pass reads, and what it must not be given silently."""

import copy
import time

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.options import CHECKPOINT, DROP
from autorecompute.backends.torch.rewriting import Mask
from autorecompute.plans import Choice
from tiny_models import call_of, differences, make


def all_operators(found):
    """Every operator of every unit."""
    return [Choice(site.name, DROP) for site in found.sites if DROP in site.options]


def switched(model, *args):
    """The model's board with all its operators on, after looking at a call of it."""
    found = detect(model, args, {})
    assert all_operators(found)
    board = found.switchboard(model)
    board.set(all_operators(found))
    return board


def gradients(model, *args, loss=torch.sum):
    """Gradients of a loss of what the model returns, from the same random numbers each time."""
    torch.manual_seed(0)
    parameters = list(model.parameters())
    return torch.autograd.grad(loss(model(*args)), parameters, allow_unused=True)


def same(first, second):
    """Whether gradients are equal bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a is not None)


class Chain(nn.Module):
    """A product into a norm into a product, whose every link can be dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.dropout = nn.LayerNorm(8, eps=3e-4), nn.Dropout(0.4)

    def forward(self, x):
        """As many features as it gets."""
        x = self.first(x)
        return self.last(self.dropout(self.norm(functional.silu(x) * x).relu()))


X = torch.linspace(-1, 1, 64).reshape(8, 8)


def test_a_dropped_norm_is_made_from_its_dropped_input():
    """A chain of dropped operators gives the bits of the plain pass."""
    torch.manual_seed(0)
    model = Chain()
    expected = gradients(model, X)
    switched(model, X)
    assert same(gradients(model, X), expected)


def test_a_norm_with_another_epsilon_than_anybody_knows_is_not_offered():
    """What cannot be made again bit for bit is no plan, and says so."""

    class Odd(Chain):
        def forward(self, x):
            x = self.first(x)
            return self.last(functional.layer_norm(x, (8,), self.norm.weight, self.norm.bias, 7e-3))

    found = detect(Odd(), (X,), {})
    assert "layer_norm" not in {site.name for site in found.sites}
    assert "layer_norm could not be made again" in str(next(one for one in found.refusals if one.place == "layer_norm"))


def penalized(model):
    """Gradients of a loss with a penalty on the gradient of its input, as in a WGAN-GP."""
    torch.manual_seed(0)
    inputs = X.clone().requires_grad_()
    result = model(inputs)
    (slope,) = torch.autograd.grad(result.sum(), inputs, create_graph=True)
    loss = slope.square().sum() + result.square().sum()
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def test_a_graph_of_the_gradients_goes_through_what_is_made_again():
    """create_graph=True: autograd gives it the place in the graph of what was dropped, and each bit is the same."""
    torch.manual_seed(0)
    model = nn.Sequential(Chain(), nn.Tanh(), Chain(), nn.Sigmoid())
    expected = penalized(model)
    switched(model, X)
    assert same(penalized(model), expected)


def test_a_kept_graph_is_gone_through_twice(training):
    """A second backward pass over the same graph adds the same gradients again."""

    def twice():
        torch.manual_seed(1)
        loss = training.loss(training.model, training.batch)
        loss.backward(retain_graph=True)
        loss.backward()
        found = {
            name: value.grad.clone() for name, value in training.model.named_parameters() if value.grad is not None
        }
        training.model.zero_grad()
        return found

    found = detect(training.model, *call_of(training))
    expected = twice()
    found.switchboard(training.model).set(all_operators(found))
    assert differences(twice(), expected) == []


def test_autograd_still_sees_what_is_changed_in_place():
    """The trap: under hooks on all tensors a change in place goes unseen and gradients are wrong; ours raises."""

    class Changes(Chain):
        def forward(self, x):
            x = self.first(x)
            h = self.norm(functional.silu(x) * x)
            y = self.last(h.relu())
            with torch.no_grad():
                x.mul_(float(self.scale))
            return y

    model = Changes()
    model.scale = 1.0
    expected = None
    model.scale = 2.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(model, X)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        wrong = gradients(model, X)
    model.scale = 1.0
    plain = Chain()
    plain.load_state_dict(model.state_dict())
    expected = gradients(plain.eval(), X)
    assert not same(wrong, expected)
    model.scale = 2.0
    found = detect(model, (X,), {})
    found.switchboard(model).set(all_operators(found))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(model, X)


def test_another_graph_than_the_one_that_was_looked_at_is_left_alone():
    """A module that takes another path trains as without us, and it is counted."""

    class Turns(Chain):
        def forward(self, x):
            return super().forward(x) if self.turn else self.last(functional.gelu(self.first(x)))

    model = Turns()
    model.turn = True
    found = detect(model, (X,), {})
    found.switchboard(model).set(all_operators(found))
    model.turn = False
    plain = copy.deepcopy(model)
    assert same(gradients(model, X), gradients(plain, X))
    assert found.programs[""].around(frozenset(choice.site for choice in all_operators(found))).missed == 1


def test_a_checkpoint_of_the_script_around_a_unit_is_left_alone():
    """A model whose operators are on may be run inside a checkpoint."""
    model = Chain()
    expected = gradients(model, X)
    switched(model, X)
    inputs = X.clone().requires_grad_()
    torch.manual_seed(0)
    loss = checkpoint(model, inputs, use_reentrant=False).sum()
    assert same(torch.autograd.grad(loss, list(model.parameters())), expected)


def test_a_graph_that_is_thrown_away_leaves_nothing_behind():
    """Hooks hold no node that holds them: without a backward pass everything is freed at once."""
    training = make("gpt2")
    found = detect(training.model, *call_of(training))
    found.switchboard(training.model).set(all_operators(found))
    result = training.model(**training.batch)
    alive = []
    block = result.logits.grad_fn
    block.metadata["alive"] = Alive(alive)
    del block, result
    assert alive == ["gone"]


class Alive:
    """Tells when it is gone."""

    def __init__(self, told):
        self.told = told

    def __del__(self):
        self.told.append("gone")


def masks():
    """Masks of dropouts, by what is special about them."""
    torch.manual_seed(0)
    plain = torch.empty(16, 32).bernoulli_(0.7).div_(0.7)
    late = torch.zeros(16, 32)
    late[-1, -1] = 1 / (1 - 0.999)
    return {
        "plain": plain,
        "its few others are at the end": late,
        "all zeros": torch.zeros(16, 32),
        "transposed": plain.t(),
        "bfloat16": plain.bfloat16(),
        "float16": plain.half(),
        "float64": plain.double() / 3,
        "empty": plain[:0],
    }


@pytest.mark.parametrize("mask", [pytest.param(mask, id=name) for name, mask in masks().items()])
def test_a_mask_in_bytes_is_the_same_mask(mask):
    """Elements and type, in a quarter of the memory or half of it."""
    kept = Mask.of(mask)
    assert kept.is_other.element_size() == 1
    again = kept.tensor()
    assert again.dtype == mask.dtype
    assert torch.equal(again, mask)


class Scaled(nn.Module):
    """A block with arguments that a script may change: the batch of a GroupNorm, the slope of a ReLU, a factor."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.norm = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1), nn.GroupNorm(2, 8)
        self.scale = 0.5

    def forward(self, x):
        """Of the size that it gets."""
        x = functional.silu(self.norm(self.first(x)))
        return self.last(torch.sin(functional.leaky_relu(x, self.scale)) * torch.sin(x * self.scale))


def test_arguments_that_nodes_keep_are_those_of_each_step():
    """A larger batch and another scale than in the step that was looked at give the gradients of plain PyTorch."""
    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), Scaled(), Scaled())
    board = switched(model, torch.randn(2, 4, 3, 3))
    assert {"group_norm", "leaky_relu", "mul"} <= {site.rpartition("/")[2] for site in board.sites}
    x = torch.randn(5, 4, 3, 3)
    for block in model:
        block.scale = 0.25
    dropped = gradients(model, x)
    board.set([])
    assert same(dropped, gradients(model, x))


class Shifted(nn.Module):
    """Adds a number that stands in the code, or one that the script may change."""

    def __init__(self, number):
        super().__init__()
        self.linear, self.number = nn.Linear(4, 4), number

    def forward(self, x):
        """Of the size that it gets."""
        x = torch.tanh(self.linear(x))
        return x * (1.0 + x) if self.number is None else x * (self.number + x)


def test_a_number_that_is_added_has_to_stand_in_the_code():
    """A node keeps no number that was added: one of a variable may be another one in the next step."""
    x = torch.randn(3, 4)
    literal, variable = (
        {choice.site for choice in all_operators(detect(nn.Sequential(*map(Shifted, numbers)), (x,), {}))}
        for numbers in ([None] * 3, [1.0] * 3)
    )
    assert "*/add" in literal - variable


class Weighted(nn.Module):
    """Weighs its tokens."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x, weights):
        """Of the size that it gets."""
        return self.dropout(self.linear(x)) * weights.float()


def test_only_what_was_drawn_is_taken_for_a_mask():
    """Weights of zeros and ones in the first batch may be others in the next."""
    model = Weighted()
    x, weights = torch.randn(6, 4), torch.tensor([1, 0, 1, 1, 0, 1]).unsqueeze(1).expand(6, 4).double()
    board = switched(model, x, weights)
    dropped = gradients(model, x, weights / 3 + 1)
    board.set([])
    assert same(dropped, gradients(model, x, weights / 3 + 1))


def _trained(rank, port, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    (folder / str(rank)).write_text(repr(_wrong(rank)))
    # A thread of the group may still want the interpreter's lock to let go of the last gradients. What ends the group
    # waits for that thread, and does not give up the lock.
    time.sleep(0.1)
    torch.distributed.destroy_process_group()


def _wrong(rank):
    training = make("llama")
    found = detect(training.model, *call_of(training))
    parallel = nn.parallel.DistributedDataParallel(training.model)
    training.loss = lambda _model, batch: parallel(**batch).loss
    expected = training.gradients(seed=rank)
    board = found.switchboard(training.model)
    block = found.blocks[0]
    wrong = []
    for choices in (all_operators(found), [Choice(block, CHECKPOINT, 1), *all_operators(found)]):
        board.set(choices)
        wrong += differences(training.gradients(seed=rank), expected)
    return wrong


def test_ranks_that_train_together_get_the_bits_of_the_plain_step(tmp_path, unused_port):
    """Two gloo ranks under DistributedDataParallel: operators, and blocks beside operators."""
    torch.multiprocessing.spawn(_trained, (unused_port, tmp_path), nprocs=2)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["[]", "[]"]
