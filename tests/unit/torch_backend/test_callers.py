"""What the code that calls something says about it."""

import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.find.source import calls_before_backward, keeps_result, literals_of, local_of
from stand_ins.asking import Asking, run_script

ONES = torch.ones(2, requires_grad=True)


class Told(nn.Module):
    def forward(self, x):
        frame = sys._getframe()
        while frame.f_code not in CALLERS:
            frame = frame.f_back
        self.is_kept = keeps_result(frame)
        return Result((x, x))


class Result(tuple):
    __slots__ = ()
    loss = scores = ONES


def give_on(model):
    sum(model(ONES)).sum().backward()


def give_back(model):
    """A function that trainers call; the name goes with it."""
    result = model(ONES)
    return sum(result)


def take_loss(model):
    loss = model(ONES).loss
    loss.sum().backward()


def take_scores(model):
    scores = model(ONES).scores
    scores.sum().backward()


def take_apart(model):
    _first, second = model(ONES)
    second.sum().backward()


def keep(model):
    result = model(ONES)
    result.loss.sum().backward()


KEPT = {give_on: False, give_back: False, take_loss: False, take_scores: True, take_apart: True, keep: True}
CALLERS = {call.__code__ for call in KEPT}


@pytest.mark.parametrize(("call", "is_kept"), KEPT.items())
def test_a_result_is_kept_where_it_has_a_name_as_its_backward_pass_runs(call, is_kept):
    """A name in a function that calls ``backward`` outlives the loss; a loss alone holds nothing else."""
    model = Told()
    call(model)
    assert model.is_kept is is_kept


class Summand:
    def take(self, _other, *_more):
        self.literals = literals_of(sys._getframe(1))
        return self

    __add__ = __radd__ = __mul__ = take


TWO = 2.0


@pytest.mark.parametrize(
    ("compute", "literals"),
    [
        (lambda x: 1.0 + x, {1.0}),
        (lambda x: x + -3, {-3}),
        (lambda x: TWO + x, set()),
        (lambda x: (x * TWO) + 0.5, {0.5}),
        (lambda x: x.take(4.0, TWO), {4.0}),
        (
            lambda x: (
                # An expression of several lines, with an ä before it: "ä" + ...
                x + 7.0
            ),
            {7.0},
        ),
        (lambda x: x + True, set()),
        (eval("lambda x: x + 1.0"), set()),  # noqa: S307
    ],
)
def test_literals_are_those_of_the_expression_alone(compute, literals):
    """Variables may change, and so may code whose source nobody can read."""
    assert compute(Summand()).literals == literals


def test_variables_of_all_kinds_are_found():
    def outer(own, shared):
        def inner():
            return local_of(sys._getframe(), "shared"), shared

        return local_of(sys._getframe(), "own"), local_of(sys._getframe(), "shared"), *inner(), own

    assert outer(1, 2) == (1, 2, 2, 2, 1)


@pytest.mark.parametrize(("asked", "value"), [("self", None), ("width", 3)])
def test_a_dict_of_its_variables_that_a_function_holds_keeps_all_it_had(asked, value):
    """It is the frame's own before Python 3.13: where a name is found, Python adds what the function has by now."""

    def hold():
        width, name = 3, "bert"
        config = locals()
        return local_of(sys._getframe(), asked), {"asked": asked, "width": width, "name": name}, config

    found, before, config = hold()
    assert found == value
    assert before.items() <= config.items()
    assert asked == "width" or config == before


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="each locals() is a dict of its own there")
def test_names_made_by_exec_are_left_in_their_function():
    def make(width):
        exec("depth = 1")  # noqa: S102
        return local_of(sys._getframe(), "width"), eval("depth"), width  # noqa: S307

    assert make(3) == (3, 1, 3)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a frame holds no copies there")
def test_no_copies_of_variables_are_left_in_a_frame():
    """A tensor would live on in them, whose name the function has given away."""

    def forget():
        kept, shared = ONES.clone(), ONES.clone()
        alive = weakref.ref(kept), weakref.ref(shared)

        def share():
            return shared

        local_of(sys._getframe(), "kept")
        kept = shared = None
        return [one() for one in alive], kept, share

    assert forget()[0] == [None, None]


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
