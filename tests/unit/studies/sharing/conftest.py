"""A study that several workers share, in a journal of its own."""

import contextlib
import dataclasses

import pytest

from autorecompute.plans import Space
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.sharing import SharedStudy, parse_storage
from autorecompute.studies.tuned import Tuned
from stand_ins.sharing import LIMIT, shorten_lives


@pytest.fixture
def url(tmp_path):
    """A storage."""
    return parse_storage(f"journal:{tmp_path}/journal")


@pytest.fixture
def tuned(make_detection):
    """What the study is about, without a word of its plans, as a storage has it."""
    sizes = dataclasses.replace(Sizes.of(make_detection()), space=Space(plans=()))
    return Tuned(problem=Problem.of(make_detection(), LIMIT), sizes=sizes, command=("python", "train.py"))


@pytest.fixture
def problem(tuned):
    """The problem in it."""
    return tuned.problem


@pytest.fixture
def with_problem(tuned, problem):
    """The same with something else in its problem."""
    return lambda **changes: dataclasses.replace(tuned, problem=dataclasses.replace(problem, **changes))


@pytest.fixture
def open_worker(url):
    """Opens the study for one more worker."""
    with contextlib.ExitStack() as workers:

        def open_worker(name="bert"):
            notes = []
            worker = SharedStudy(url, name, notes.append)
            worker.notes = notes
            workers.callback(worker.leave)
            return worker

        yield open_worker


@pytest.fixture
def join(open_worker, with_problem, space):
    """Has one more worker join, with another problem, sizes or command."""

    def join(*, sizes=None, command=None, **changes):
        worker, tuned = open_worker(), with_problem(**changes)
        others = {"sizes": sizes or tuned.sizes, "command": command or tuned.command}
        worker.join(dataclasses.replace(tuned, **others), space, is_limit_free=False)
        return worker

    return join


@pytest.fixture
def space(make_space):
    """The plans."""
    return make_space()


@pytest.fixture
def short_lives(monkeypatch):
    """Workers beat often, and are taken for dead soon."""
    shorten_lives(monkeypatch)
