"""How often a script calls its model before it goes back."""

import linecache
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.calls import calls_before_backward


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.found = None

    def forward(self, x):
        if self.found is None and torch.is_grad_enabled():
            self.found = calls_before_backward()
        return (self.weight * x).sum()


def found_in(source, tmp_path):
    file, model = tmp_path / "script.py", Asking()
    file.write_text(textwrap.dedent(source))
    linecache.checkcache(str(file))
    x, views, args = torch.ones(2), [torch.ones(2)] * 3, SimpleNamespace(two=False)
    names = {"__name__": "__main__", "model": model, "x": x, "views": views, "args": args, "torch": torch}
    exec(compile(file.read_text(), str(file), "exec"), names)  # noqa: S102
    return model.found


SCRIPTS = {
    "one call": (1, "model(x).backward()"),
    "two views in one line": (
        2,
        """
        for _ in range(2):
            a, b = model(x), model(
                x.flip(-1)
            )
            (a * b).backward()
        """,
    ),
    "each with a backward pass of its own": (
        1,
        """
        for _ in range(2):
            model(x).backward()
            loss = model(x)
            loss.backward()
        """,
    ),
    "two losses, then another step": (
        2,
        """
        loss = model(x)
        loss = loss + model(x)
        loss.backward()
        for _ in range(2):
            model(x).backward()
        """,
    ),
    "a teacher without gradients": (
        2,
        """
        with torch.no_grad():
            target = model(x)
        loss = model(x) + model(x) - target
        with torch.no_grad():
            model(x)
        loss.backward()
        """,
    ),
    "a comprehension": (3, "sum([model(view) for view in views]).backward()"),
    "a generator": (3, "sum(model(view) for view in views).backward()"),
    "a loop over views": (
        3,
        """
        for _ in range(2):
            found = []
            for number, view in enumerate(views):
                found.append(model(view))
            torch.stack(found).sum().backward()
        """,
    ),
    "a loop that goes back in each round": (
        1,
        """
        for view in views:
            loss = model(view)
            loss.backward()
        """,
    ),
    "a loop that may end at any time": (
        1,
        """
        losses = []
        for _ in range(10000):
            losses.append(model(x))
            if len(losses) == 2:
                break
        sum(losses).backward()
        """,
    ),
    "a function of the script for each view": (
        4,
        """
        def encode(x):
            return model(x) + model(-x)

        def step():
            loss = encode(x) * encode(2 * x)
            loss.backward()

        step()
        """,
    ),
    "a method, and what goes back in another function": (
        2,
        """
        class Learner:
            def loss(self, x):
                return model(x)

            def go_back(self, loss):
                loss.backward()

            def fit(self):
                loss = self.loss(x)
                self.go_back(loss + self.loss(-x))
                self.loss(x)

        Learner().fit()
        """,
    ),
    "a branch that is not taken": (
        1,
        """
        loss = model(x)
        if args.two:
            loss = loss + model(x)
        loss.backward()
        """,
    ),
    "a branch that nobody knows": (
        2,
        """
        loss = model(x)
        if len(views) > 9:
            loss = loss + model(x)
        loss.backward()
        """,
    ),
    "gradients by autograd.grad": (
        1,
        """
        torch.autograd.grad(model(x), model.weight)
        torch.autograd.grad(model(x), model.weight)
        """,
    ),
    "more than a step can hold": (
        1,
        """
        outputs = [model(x) for _ in range(1000)]
        sum(outputs).backward()
        """,
    ),
}


@pytest.mark.parametrize(("calls", "source"), SCRIPTS.values(), ids=SCRIPTS)
def test_calls_are_counted_up_to_the_backward_pass(calls, source, tmp_path):
    assert found_in(source, tmp_path) == calls
