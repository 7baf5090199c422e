import functools
import time
import weakref

import pytest
import torch
from torch.optim import lr_scheduler

from autorecompute.worker import hooks
from autorecompute.worker.hooks import expected_steps, follow_schedulers

POINTS = [
    (torch.Tensor, "backward"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "step"),
    (torch.optim.Optimizer, "add_param_group"),
    (torch.optim.Optimizer, "profile_hook_step"),
    (torch.optim.lr_scheduler.LRScheduler, "__init__"),
]


def train(optimizer, weight):
    weight.square().sum().backward()
    optimizer.step()


def test_what_is_followed_is_told_until_its_end():
    before = [getattr(*point) for point in POINTS]
    told = []
    ends = [
        hooks.follow_steps(told.append, told.append, told.append),
        hooks.follow_losses(lambda *_: told.append("loss"), told.append),
        hooks.follow_optimizers(lambda: told.append("optimizer")),
        hooks.follow_schedulers(set()),
    ]
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    train(optimizer, weight)
    assert told == ["optimizer", "loss", optimizer]
    for end in reversed(ends):
        end()
    assert [getattr(*point) for point in POINTS] == before
    train(torch.optim.SGD([weight], lr=0.1), weight)
    assert len(told) == 3


def test_what_a_step_raises_is_told_and_raised():
    """An optimizer makes its state in its first step, where memory may run out."""

    class Lacking(torch.optim.SGD):
        def step(self):
            raise MemoryError("no memory")

    told = []
    end = hooks.follow_steps(told.append, told.append, told.append)
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(MemoryError) as raised:
        train(Lacking([weight], lr=0.1), weight)
    end()
    assert told == [raised.value]


def test_a_compiled_step_is_followed():
    """The compiler would trace what a hook does, and run that in place of the hook."""
    told = []
    end = hooks.follow_steps(lambda optimizer: told.append((optimizer, time.monotonic())), told.append, told.append)

    class Own(torch.optim.SGD):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.sub_(weight.grad, alpha=group["lr"])

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Own([weight], lr=0.1)
    weight.square().sum().backward()
    step = torch.compile(optimizer.step, backend="eager")
    step()
    step()
    end()
    assert [one for one, _ in told] == [optimizer, optimizer]
    assert told[0][1] < told[1][1]
    assert weight.tolist() == pytest.approx([0.6, 0.6])


@pytest.fixture
def expected():
    schedulers = weakref.WeakSet()
    end = follow_schedulers(schedulers)
    yield functools.partial(expected_steps, schedulers)
    end()


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def go_along(optimizer, scheduler):
    for _ in range(2):
        optimizer.step()
        scheduler.step()


def after_warm_up(scheduler):
    """A hundred steps of warm-up in front, as scripts write it."""
    optimizer = scheduler.optimizer
    return lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100), scheduler], milestones=[100]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=400),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 400),
        # As Hugging Face's schedulers are made.
        lambda optimizer: lr_scheduler.LambdaLR(
            optimizer,
            functools.partial(lambda _step, num_training_steps: 1 / num_training_steps, num_training_steps=400),
        ),
        lambda optimizer: lr_scheduler.PolynomialLR(optimizer, total_iters=400),
        lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=400),
        lambda optimizer: after_warm_up(lr_scheduler.CosineAnnealingLR(optimizer, 300)),
        lambda optimizer: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 400)]
        ),
    ],
)
def test_a_scheduler_that_goes_by_steps_tells_the_length(expected, optimizer, make):
    """One that has not moved counts epochs."""
    scheduler = make(optimizer)
    assert expected(1) is None
    assert expected(3) is None
    go_along(optimizer, scheduler)
    assert expected(3) == 400


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
        lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10),
        lambda optimizer: after_warm_up(lr_scheduler.ConstantLR(optimizer, 1.0)),
    ],
)
def test_the_end_of_a_warm_up_is_not_that_of_the_training(expected, optimizer, make):
    """The search would be given a share of the warm-up's steps."""
    go_along(optimizer, make(optimizer))
    assert expected(3) is None
