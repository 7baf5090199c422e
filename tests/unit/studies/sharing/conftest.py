"""A study that several workers share, in a journal of its own."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from autorecompute.studies import Problem
from autorecompute.studies.sharing import SharedStudy, parse_storage
from stand_ins.sharing import LIMIT, shorten_lives


@pytest.fixture
def url(tmp_path):
    """A storage."""
    return parse_storage(f"journal:{tmp_path}/journal")


@pytest.fixture
def problem(make_detection):
    """What the study is about."""
    return Problem.of(make_detection(), LIMIT)


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
def join(open_worker, problem, space):
    """Has one more worker join."""

    def join(**changes):
        worker = open_worker()
        worker.join(dataclasses.replace(problem, **changes), space, is_limit_free=False)
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
