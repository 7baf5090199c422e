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
    1: {
        "one call": "model(x).backward()",
        "each with a backward pass of its own": """
            for _ in range(2):
                model(x).backward()
                loss = model(x)
                loss.backward()
        """,
        "a loop that goes back in each round": """
            for view in views:
                loss = model(view)
                loss.backward()
        """,
        "a loop that may end at any time": """
            losses = []
            for _ in range(10000):
                losses.append(model(x))
                if len(losses) == 2:
                    break
            sum(losses).backward()
        """,
        "a branch that is not taken": """
            loss = model(x)
            if args.two:
                loss = loss + model(x)
            loss.backward()
        """,
        "gradients by autograd.grad": """
            torch.autograd.grad(model(x), model.weight)
            torch.autograd.grad(model(x), model.weight)
        """,
        "more than a step can hold": """
            outputs = [model(x) for _ in range(1000)]
            sum(outputs).backward()
        """,
    },
    2: {
        "two views in one line": """
            for _ in range(2):
                a, b = model(x), model(
                    x.flip(-1)
                )
                (a * b).backward()
        """,
        "two losses, then another step": """
            loss = model(x)
            loss = loss + model(x)
            loss.backward()
            for _ in range(2):
                model(x).backward()
        """,
        "a teacher without gradients": """
            with torch.no_grad():
                target = model(x)
            loss = model(x) + model(x) - target
            with torch.no_grad():
                model(x)
            loss.backward()
        """,
        "a method, and what goes back in another function": """
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
        "a branch that nobody knows": """
            loss = model(x)
            if len(views) > 9:
                loss = loss + model(x)
            loss.backward()
        """,
    },
    3: {
        "a comprehension": "sum([model(view) for view in views]).backward()",
        "a generator": "sum(model(view) for view in views).backward()",
        "a loop over views": """
            for _ in range(2):
                found = []
                for number, view in enumerate(views):
                    found.append(model(view))
                torch.stack(found).sum().backward()
        """,
    },
    4: {
        "a function of the script for each view": """
            def encode(x):
                return model(x) + model(-x)

            def step():
                loss = encode(x) * encode(2 * x)
                loss.backward()

            step()
        """,
    },
}
"""By the number of calls."""


@pytest.mark.parametrize(
    ("calls", "source"),
    [pytest.param(calls, source, id=name) for calls, scripts in SCRIPTS.items() for name, source in scripts.items()],
)
def test_calls_are_counted_up_to_the_backward_pass(calls, source, tmp_path):
    assert found_in(source, tmp_path) == calls
