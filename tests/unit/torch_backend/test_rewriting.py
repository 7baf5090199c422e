import copy
import weakref

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.switch import rewriting
from autorecompute.backends.torch.switch.intercepting import around_of
from autorecompute.backends.torch.switch.rewriting import mask_of, of_mask
from stand_ins.late import drops
from tiny_models import make


def switched(model, *args, **kwargs):
    """The model's board with all its operators on, after looking at a call of it."""
    found = detect(model, args, kwargs)
    assert drops(found)
    board = found.switchboard(model)
    board.set(drops(found))
    return board


def gradients(model, *args):
    torch.manual_seed(0)
    return torch.autograd.grad(model(*args).sum(), list(model.parameters()), allow_unused=True)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a is not None)


class Chain(nn.Module):
    """A product into a norm into a product, whose every link can be dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.dropout = nn.LayerNorm(8, eps=3e-4), nn.Dropout(0.4)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.dropout(self.norm(functional.silu(x) * x).relu()))


X = torch.linspace(-1, 1, 64).reshape(8, 8)


def test_a_dropped_norm_is_made_from_its_dropped_input_and_a_graph_of_the_gradients_goes_through_it():
    """Also inside a checkpoint of the script."""
    model = Chain()
    expected = gradients(model, X)
    switched(model, X)
    assert same(gradients(model, X), expected)
    torch.manual_seed(0)
    loss = checkpoint(model, X.clone().requires_grad_(), use_reentrant=False).sum()
    assert same(torch.autograd.grad(loss, list(model.parameters())), expected)
    model = nn.Sequential(Chain(), nn.Tanh(), Chain(), nn.Sigmoid())
    expected = penalized(model)
    switched(model, X)
    assert same(penalized(model), expected)


def penalized(model):
    torch.manual_seed(0)
    inputs = X.clone().requires_grad_()
    result = model(inputs)
    (slope,) = torch.autograd.grad(result.sum(), inputs, create_graph=True)
    loss = slope.square().sum() + result.square().sum()
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def test_autograd_still_sees_what_is_changed_in_place():
    """Under hooks on all tensors such a change goes unseen and gradients are wrong."""

    class Changes(Chain):
        def forward(self, x):
            x = self.first(x)
            result = self.last(self.norm(functional.silu(x) * x).relu())
            with torch.no_grad():
                x.mul_(2)
            return result

    model = Changes()
    switched(model, X)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(model, X)


def test_another_graph_than_the_one_that_was_looked_at_is_left_alone_and_counted():
    class Turns(Chain):
        turn = True

        def forward(self, x):
            return super().forward(x) if self.turn else self.last(functional.gelu(self.first(x)))

    model = Turns()
    found = detect(model, (X,), {})
    found.switchboard(model).set(drops(found))
    model.turn = False
    assert same(gradients(model, X), gradients(copy.deepcopy(model), X))
    (rewrite,) = around_of(model)
    assert rewrite.missed == 1


def test_a_graph_that_is_thrown_away_leaves_nothing_behind():
    """Hooks hold no node that holds them: without a backward pass everything is freed at once."""
    training = make("gpt2")
    switched(training.model, **training.batch)
    result, held = training.model(**training.batch), set()
    result.logits.grad_fn.metadata["held"] = held
    alive = weakref.ref(held)
    del held, result
    assert alive() is None


def masks():
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
    is_other, *others = mask_of(mask)
    assert is_other.element_size() == 1
    again = of_mask(is_other, *others)
    assert again.dtype == mask.dtype
    assert torch.equal(again, mask)


class Scaled(nn.Module):
    """A block with arguments that a script may change: the batch of a GroupNorm, the slope of a ReLU, a factor."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.norm = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1), nn.GroupNorm(2, 8)
        self.scale = 0.5

    def forward(self, x):
        x = functional.silu(self.norm(self.first(x)))
        return self.last(torch.sin(functional.leaky_relu(x, self.scale)) * torch.sin(x * self.scale))


def test_arguments_that_nodes_keep_are_those_of_each_step():
    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), Scaled(), Scaled())
    board = switched(model, torch.randn(2, 4, 3, 3))
    assert {"group_norm", "leaky_relu", "mul"} <= {site.rpartition("/")[2] for site in board.sites}
    larger = torch.randn(5, 4, 3, 3)
    for block in model:
        block.scale = 0.25
    dropped = gradients(model, larger)
    board.set([])
    assert same(dropped, gradients(model, larger))


OPERATORS = {
    "elu": functional.elu,
    "softplus": lambda x: functional.softplus(x, beta=2.0),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "log_sigmoid": functional.logsigmoid,
    "erf": torch.erf,
    "sin": torch.sin,
    "maximum": lambda x: torch.maximum(torch.tanh(x), torch.sin(x)),
    "lerp": lambda x: torch.lerp(torch.tanh(x), torch.sin(x), 0.3),
    "addcmul": lambda x: torch.addcmul(torch.tanh(x), torch.sin(x), torch.cos(x), value=0.5),
    "upsample_nearest2d": lambda x: functional.interpolate(torch.tanh(x), scale_factor=2),
    "hardtanh": functional.hardtanh,
    "avg_pool2d": lambda x: functional.avg_pool2d(x, 3, 1, 1),
    "relu": lambda x: functional.relu(torch.sin(x), inplace=True),
    "group_norm": lambda x: functional.group_norm(x, 2, eps=3e-4),
    "layer_norm": lambda x: functional.layer_norm(x, (4,), torch.full((4,), 2.0), torch.ones(4), 7e-3),
}


class Through(nn.Module):
    """An operator between two convolutions, and a product which saves what the operator made."""

    def __init__(self, operator):
        super().__init__()
        self.first, self.last, self.operator = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1), operator

    def forward(self, x):
        return self.last(self.operator(self.first(x)))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_known_by_the_call_that_made_its_node(name):
    model = nn.Sequential(Through(OPERATORS[name]), Through(OPERATORS[name]))
    x = torch.randn(3, 2, 4, 4)
    expected = gradients(model, x)
    assert name in {site.rpartition("/")[2] for site in switched(model, x).sites}
    assert same(gradients(model, x), expected)


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_autograd(
    lambda ctx, gradient: gradient * 2 + 0 * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),  # noqa: ARG005
)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        y = torch.sin(x) * 2
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, gradient):
        return gradient * context.saved_tensors[0]


@pytest.mark.parametrize("operator", [doubled, Doubled.apply])
def test_an_operator_of_the_users_own_is_left_alone(operator):
    """Nobody knows what it reads and writes; operators inside it are not taken for what made its node."""
    model = nn.Sequential(*(Through(lambda x: operator(functional.gelu(torch.sin(x)))) for _ in range(2)))
    x = torch.randn(3, 2, 4, 4)
    expected = gradients(model, x)
    assert {site.rpartition("/")[2] for site in switched(model, x).sites if "/" in site} == {"sin"}
    assert same(gradients(model, x), expected)


class Shifted(nn.Module):
    """Adds a number that stands in the code, or one that the script may change."""

    def __init__(self, number):
        super().__init__()
        self.linear, self.number = nn.Linear(4, 4), number

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        return x * (1.0 + x) if self.number is None else x * (self.number + x)


def test_a_number_that_is_added_has_to_stand_in_the_code():
    """A node keeps no number that was added: one of a variable may be another one in the next step."""
    literal, variable = (
        {choice.site for choice in drops(detect(nn.Sequential(*map(Shifted, numbers)), (torch.ones(3, 4),), {}))}
        for numbers in ([None] * 3, [1.0] * 3)
    )
    assert "*/add" in literal - variable


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x, weights):
        return self.dropout(self.linear(x)) * weights.float()


def test_only_what_was_drawn_is_taken_for_a_mask():
    """Weights of zeros and ones in the first batch may be others in the next."""
    model = Weighted()
    x, weights = torch.randn(6, 4), torch.tensor([1, 0, 1, 1, 0, 1]).unsqueeze(1).expand(6, 4).double()
    board = switched(model, x, weights)
    dropped = gradients(model, x, weights / 3 + 1)
    board.set([])
    assert same(dropped, gradients(model, x, weights / 3 + 1))


class Stream:
    """A stream of a card, known by its name."""

    def __init__(self, name, told):
        self._name, self._told = name, told

    def wait_stream(self, other):
        self._told.append((self._name, "waits for", other._name))


class Changes(torch.autograd.Function):
    """Does something before the backward pass goes on."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.change()
        return gradient, None


def test_what_was_made_again_on_one_stream_is_read_on_another_behind_a_wait(monkeypatch):
    told, at = [], []
    main, side = Stream("main", told), Stream("side", told)
    monkeypatch.setattr(rewriting, "stream_of", lambda _: at[-1])
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: told.append(("kept for", stream._name)))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.other = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = functional.gelu(self.first(x))
            last = Changes.apply(self.last(x), lambda: at.append(main))
            return last + Changes.apply(self.other(x), lambda: at.append(side))

    model = Two()
    at.append(main)
    expected = gradients(model, X)
    at[:] = [main]
    switched(model, X)
    at[:] = [main]
    told.clear()
    assert same(gradients(model, X), expected)
    # Of two products that save it the later one comes first in the backward pass, on the side stream.
    waits = ("main", "waits for", "side")
    assert told == [waits, waits, ("kept for", "main")]
