import contextlib
import dataclasses
import functools

import pytest

from autorecompute import waiting
from autorecompute.plans import Config, Space
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.sharing import SharedStudy, journal, opening, parse_storage, pulse, study
from autorecompute.studies.tuned import Tuned
from stand_ins.sharing import LIMIT


@pytest.fixture
def url(tmp_path):
    return parse_storage(f"journal:{tmp_path}/journal")


@pytest.fixture
def tuned(make_detection):
    sizes = dataclasses.replace(Sizes.of(make_detection()), space=Space(plans=()))
    return Tuned(problem=Problem.of(make_detection(), LIMIT), sizes=sizes, command=("python", "train.py"))


@pytest.fixture
def with_problem(tuned):
    return lambda **changes: dataclasses.replace(tuned, problem=dataclasses.replace(tuned.problem, **changes))


@pytest.fixture
def open_worker(url):
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
    def join(*, sizes=None, command=None, **changes):
        worker, tuned = open_worker(), with_problem(**changes)
        others = {"sizes": sizes or tuned.sizes, "command": command or tuned.command}
        worker.join(dataclasses.replace(tuned, **others), space, is_limit_free=False)
        return worker

    return join


@pytest.fixture
def space(make_space):
    return make_space()


@pytest.fixture
def config(space):
    return Config.of(space.plans[:1])


class Clock:
    """Time that goes by where somebody sleeps, and only there."""

    def __init__(self):
        self.now, self._coming = 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        due = [event for event in self._coming if event[0] <= self.now]
        self._coming = [event for event in self._coming if event not in due]
        for _, happen in due:
            happen()

    def after(self, seconds, happen):
        self._coming.append((self.now + seconds, happen))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (journal, opening, waiting):
        monkeypatch.setattr(module, "time", clock)
    # Workers beat when they are told to: a thread would hold the lock while nobody really waits for it.
    monkeypatch.setattr(pulse, "BEAT_SECONDS", 1e6)
    monkeypatch.setattr(study, "Pulse", functools.partial(pulse.Pulse, clock=clock.monotonic))
    return clock


@pytest.fixture
def outlive(clock):
    """So much time goes by for these workers, who beat, that any other is dead."""

    def outlive(*workers):
        for beat in range(1, int(pulse.DEAD_SECONDS / 5.0) + 3):
            clock.sleep(5.0)
            for worker in workers:
                worker._study.set_user_attr(f"{pulse.BEAT}{worker.session}", beat)
                worker.refresh()

    return outlive
