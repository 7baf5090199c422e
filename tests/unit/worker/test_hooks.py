import time

import pytest
import torch

from autorecompute.worker import hooks

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
        hooks.follow_losses(lambda _: told.append("loss"), told.append),
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


def test_what_others_have_put_there_since_stays(monkeypatch):
    class Place:
        def speak(self):
            return "own"

    put_back = hooks.put_in(Place, "speak", lambda _: "ours")
    monkeypatch.setattr(Place, "speak", lambda _: "theirs")
    put_back()
    assert Place().speak() == "theirs"
