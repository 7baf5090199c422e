"""How often a script calls its model before it goes back."""

from types import SimpleNamespace

import pytest
import torch

from autorecompute.backends.torch.find.source import calls_before_backward
from stand_ins.asking import Asking, run_script


def found_in(source, tmp_path):
    x, views, args = torch.ones(2), [torch.ones(2)] * 3, SimpleNamespace(two=False)
    names = {"model": Asking(calls_before_backward), "x": x, "views": views, "args": args}
    return run_script(source, tmp_path / "script.py", names)


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
