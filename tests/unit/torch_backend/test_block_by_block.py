"""Gradients compared on a device that cannot hold a step without recompute."""

import functools
import itertools

import pytest
import torch
from torch import nn

import tiny_models
from autorecompute.backends.torch.check.gradients import block_by_block, check_gradients
from autorecompute.backends.torch.fake.live import LiveBytes
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.backends.torch.switch.intercepting import around_of
from autorecompute.plans import Choice

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


def test_gradients_are_compared_where_a_step_without_recompute_does_not_fit():
    check = check_on_device(Block)
    assert (check.agrees, check.worst) == (True, 0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        check_on_device(Block, 0.05)


def test_wrong_gradients_are_found_there():
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
    """What is found in a model, and a function that gives the gradients of its step, with these blocks run alone."""
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
