"""Gradients compared, also on a device that cannot hold a step without recompute."""

import contextlib
import functools
import itertools
import math
import random
import types

import pytest
import torch
from torch import nn

import tiny_models
from autorecompute.backends.common import PART, relative_difference
from autorecompute.backends.torch.check import gradients
from autorecompute.backends.torch.check.gradients import block_by_block, check_gradients
from autorecompute.backends.torch.fake.live import LiveBytes
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.backends.torch.switch.intercepting import around_of
from autorecompute.plans import Choice

X = torch.ones(4, 8)


class Board:
    choices = ()

    def __init__(self, model, *, is_exact=False):
        self.model, self.is_exact = model, is_exact

    @contextlib.contextmanager
    def trying(self):
        yield
        self.set(())

    def set(self, choices):
        self.choices = tuple(choices)
        self.model.is_recomputed = bool(self.choices)


def check(model, x=X, **promise):
    return check_gradients(model, Board(model, **promise), [Choice("*", "checkpoint")], (x,), {})


class Unordered(nn.Module):
    """Its gradients are off by a random share, as from sums in any order, and by another one where it is recomputed."""

    is_recomputed = False

    def __init__(self, error, noise=0.0, weight=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8) if weight is None else weight)
        self.error, self.noise, self.random = error, noise, random.Random(5)

    @property
    def wrong(self):
        return 1 + self.error * self.is_recomputed

    def forward(self, x):
        return (x * self.weight * (self.wrong + self.noise * self.random.uniform(-1, 1))).sum()


@pytest.mark.parametrize(
    ("noise", "error", "agrees"),
    [(0.0, 0.0, True), (0.0, 0.01, False), (0.005, 0.0, True), (0.005, 0.1, False), (0.5, 0.3, False)],
    ids=["exact", "wrong", "noisy", "noisy and wrong", "too noisy to tell"],
)
def test_a_config_may_differ_by_what_steps_differ_by(noise, error, agrees):
    """By four times as much, and never by more than a twentieth."""
    model = Unordered(error, noise)
    found = check(model)
    assert found.agrees is agrees
    assert ("steps without recompute" in found.message) is not agrees
    assert not model.is_recomputed


@pytest.mark.parametrize(
    ("noise", "error", "agrees"),
    [(0.0, 1e-6, False), (1e-5, 0.0, True), (1e-5, 0.01, False)],
    ids=["", "noisy", "both"],
)
def test_what_is_exact_may_differ_where_steps_differ_by_themselves(noise, error, agrees):
    """On a CPU, too, an index that several threads add to differs from step to step."""
    assert check(Unordered(error, noise), is_exact=True).agrees is agrees


class Autocast(Unordered):
    """Multiplies in bfloat16: the gradient of the weight is rounded as that is, though it is in float32."""

    def __init__(self, error):
        super().__init__(error, weight=torch.rand(2048))

    def forward(self, x):
        products = torch.outer(x[0, :8].bfloat16(), (self.weight * self.wrong).bfloat16())
        return (products.float() * torch.linspace(0.1, 1, products.numel()).view_as(products)).sum()


class Scaled(Unordered):
    """Returns features beside a scale, which a loss outside of it is made of: a single number need not be the loss."""

    def __init__(self, error):
        super().__init__(error)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return x * self.weight * self.wrong, self.scale.exp()


class Attending(Unordered):
    """Has a gradient that is nothing but rounding, as that of a key's bias: it differs by any amount."""

    def __init__(self, error):
        super().__init__(error)
        self.other, self.bias = (nn.Parameter(torch.ones(8)) for _ in range(2))

    def forward(self, x):
        return (x * (self.wrong * self.weight + self.other + 1e-9 * self.random.uniform(-1, 1) * self.bias)).sum()


class Halved(Unordered):
    """Has gradients in float16 that would all be zero without a loss scale, as of a mean over many tokens."""

    def __init__(self, error):
        super().__init__(error, weight=torch.rand(2048).half())

    def forward(self, x):
        return (x.repeat(1, 256).half() * (self.weight * self.wrong)).float().mean() * 1e-6


@pytest.mark.parametrize(
    ("kind", "harmless", "wrong"), [(Autocast, 0.01, 0.1), (Scaled, 0, 0.01), (Attending, 0, 0.1), (Halved, 0, 0.2)]
)
def test_a_wrong_gradient_is_told_from_one_that_is_rounded_in_another_way(kind, harmless, wrong):
    for error in (0.0, harmless):
        assert check(kind(error)).agrees
    found = check(kind(wrong))
    assert not found.agrees
    assert found.parameter in ("weight", "the loss")


def test_no_more_gradients_are_held_than_at_the_end_of_a_step():
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
    x = torch.rand(2, 256)
    weights = list(model.parameters())
    gradient_bytes = sum(parameter.nbytes for parameter in weights)
    with LiveBytes([*weights, x]) as live:
        assert check(model, x, is_exact=True).agrees
    assert gradient_bytes < live.peak - live.base < gradient_bytes + 4 * max(weight.nbytes for weight in weights)


class Forgetful(nn.Module):
    is_recomputed = False

    def __init__(self):
        super().__init__()
        self.kept, self.lost = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        kept = x * self.kept
        return (kept if self.is_recomputed else kept + 0 * self.lost).sum()


def test_a_gradient_that_is_missing_is_infinitely_far_off_also_where_it_would_be_zero():
    found = check(Forgetful())
    assert (found.agrees, found.parameter, found.worst) == (False, "lost", math.inf)


@pytest.mark.parametrize("place", [0, PART - 1, PART, 2 * PART + 4])
def test_a_difference_in_any_part_of_a_large_gradient_counts(place):
    """Beside the largest number of all; beside what is infinite nothing would differ, in the same part or another."""
    expected = torch.ones(2 * PART + 5)
    expected[PART // 2] = 4
    found = expected.clone()
    assert relative_difference(expected, found) == 0
    found[place] = 2
    assert relative_difference(expected, found) == 0.25
    for worse in (expected, found):
        worse[PART // 2] = math.inf
    assert relative_difference(expected, expected.clone()) == 0
    assert relative_difference(expected, found) == math.inf
    found[place] = math.nan
    assert relative_difference(expected, found) == math.inf


class OftenCalled(Unordered):
    """Wrong in its second call of a step where it is recomputed."""

    def __init__(self):
        super().__init__(error=1.0)
        self.waiting = 0

    def forward(self, x):
        self.waiting += 1
        return (x * self.weight).sum() * (self.wrong if self.waiting > 1 else 1)


@pytest.mark.parametrize(("calls", "agrees"), [(1, True), (2, False)])
def test_a_step_that_calls_the_model_several_times_is_compared_as_such(calls, agrees):
    model = OftenCalled()
    assert check_gradients(model, Board(model), [Choice("*", "checkpoint")], (X,), {}, calls=calls).agrees is agrees


@pytest.mark.parametrize(("tf32", "kind"), [(True, "float16"), (False, "float32")])
def test_float32_on_a_card_has_the_tolerance_of_what_its_tensor_cores_round_to(monkeypatch, tf32, kind):
    model = types.SimpleNamespace(
        parameters=lambda: [types.SimpleNamespace(device=torch.device("cuda"))],
        named_parameters=lambda: [("weight", torch.ones(1)), ("half", torch.ones(1, dtype=torch.bfloat16))],
    )
    monkeypatch.setattr(gradients, "takes_tf32", lambda _packet=None: tf32)
    kind_of = gradients._kind_of(model, "")
    assert [kind_of(name) for name in ("weight", "half", "loss")] == [kind, "bfloat16", kind]


LENGTHS = itertools.cycle((0.1, 0.7, 0.4, 0.9, 0.2))


class Device(LiveBytes):
    """Memory of so many bytes beyond what is there; more of it fails as on a card."""

    def __init__(self, known, limit_bytes):
        super().__init__(known)
        self.limit_bytes = limit_bytes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if self.now - self.base > self.limit_bytes:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return result


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(32, 256), nn.Linear(256, 32), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.down(self.dropout(torch.nn.functional.gelu(self.up(x))))


class Unrestored(Block):
    """Goes by an iterator of the script, which nobody puts back when it is run again."""

    def forward(self, x):
        return super().forward(x * (1 + next(LENGTHS)))


def deep(kind=Block):
    torch.manual_seed(0)
    model, x = nn.Sequential(*(kind() for _ in range(8)), nn.Linear(32, 4)), torch.rand(2, 64, 32)
    return Tuned.of(model.train(), (x,), {}), model, x


def check_on_device(kind, share=0.5):
    tuned, model, x = deep(kind)
    with LiveBytes([*model.parameters(), x]) as whole:
        model(x).sum().backward()
    model.zero_grad()
    with Device([*model.parameters(), x], round(share * (whole.peak - whole.base))):
        return check_gradients(model, tuned.board, [Choice("*", "checkpoint")], (x,), {}, blocks=tuned.blocks)


def test_gradients_are_compared_where_a_step_without_recompute_does_not_fit_and_wrong_ones_are_found():
    check = check_on_device(Block)
    assert (check.agrees, check.worst) == (True, 0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        check_on_device(Block, 0.05)
    check = check_on_device(Unrestored)
    assert not check.agrees
    assert check.parameter


class Ended(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Block() for _ in range(8))), nn.Linear(32, 256)

    def forward(self, x):
        return torch.nn.functional.gelu(self.head(self.blocks(x))).square().sum()


def test_what_lies_outside_of_blocks_is_compared_too():
    """With all blocks checkpointed, as the graph is then what it was."""
    torch.manual_seed(0)
    model, x = Ended().train(), torch.rand(2, 64, 32)
    tuned = Tuned.of(model, (x,), {})
    (site,) = (site.name for site in tuned.board.sites.values() if site.occurrences == ("",))
    choices = [Choice("blocks.*", "checkpoint"), Choice(site, "drop")]
    with Device([*model.parameters(), x], 3 * 2**20):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            check_gradients(model, tuned.board, choices, (x,), {})
        check = check_gradients(model, tuned.board, choices, (x,), {}, blocks=tuned.blocks)
    assert check.agrees
    assert not tuned.missed


def gradients_shown(model, lose, blocks):
    found, parameters = {}, dict(model.named_parameters())

    def add(name, gradient):
        found[name] = found[name] + gradient if name in found else gradient

    hooks = [parameter.register_hook(functools.partial(add, name)) for name, parameter in parameters.items()]
    torch.manual_seed(1)
    with block_by_block(blocks.values()) as asked:
        torch.autograd.grad(lose(), [*parameters.values(), asked], allow_unused=True)
    for hook in hooks:
        hook.remove()
    return found


def looked_at(training):
    """Detect a model; give that, and a function for the gradients of its step, with these blocks run alone."""
    args, kwargs = tiny_models.call_of(training)
    lose = functools.partial(training.loss, training.model, training.batch)
    return Tuned.of(training.model, args, kwargs), functools.partial(gradients_shown, training.model, lose)


def without_dropout(training):
    for module in training.model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return training


def test_block_by_block_a_step_computes_what_a_whole_one_does(training):
    tuned, shown = looked_at(without_dropout(training))
    whole, parts = shown({}), shown(tuned.blocks)
    assert tuned.blocks
    assert parts.keys() == whole.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)
    assert not any(map(around_of, tuned.blocks.values()))


def test_every_plan_takes_effect_in_a_block_that_is_run_alone(training):
    tuned, shown = looked_at(training)
    expected = shown(tuned.blocks)
    for site in tuned.board.sites.values():
        for option in site.options:
            tuned.board.set([Choice(site.name, option)])
            assert not tiny_models.differences(expected, shown(tuned.blocks))
            assert not [path for path in tuned.missed if path in tuned.blocks]


def test_under_autocast_weights_of_blocks_have_gradients():
    """Casts that were made without autograd are not taken for those that have a graph."""
    tuned, model, x = deep()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        shown = gradients_shown(model, lambda: model(x).float().sum(), tuned.blocks)
    assert shown.keys() == dict(model.named_parameters()).keys()


class Returning(Block):
    def __init__(self):
        super().__init__()
        self.table, self.bias = torch.ones(4), nn.Parameter(torch.ones(32))

    def forward(self, x):
        return super().forward(x), self.table, self.bias


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Returning() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x, table, bias = block(x)
            x = x * table.mean() + bias
        return x.sum()


def test_what_a_block_returns_of_its_own_stays_as_it_was():
    torch.manual_seed(0)
    model, x = Chain().train(), torch.rand(2, 8, 32)
    with block_by_block(model.blocks) as asked:
        torch.autograd.grad(model(x), [*model.parameters(), asked], allow_unused=True)
    for block in model.blocks:
        assert not block.table.requires_grad
        assert block.bias.is_leaf
    model(x).backward()
    assert all(block.bias.grad is not None for block in model.blocks)
