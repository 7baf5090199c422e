from pathlib import Path

import pytest

from autorecompute.errors import ScriptError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.tuning.step_profiles import survey, telling_configs
from autorecompute.units import MIB


class Worker:
    log = Path("worker.log")

    def __init__(self, make_measurement, profile, failing):
        self.make, self.profile, self.failing = make_measurement, profile, failing
        self.measured = []

    def measure(self, config, effort):
        self.measured.append((config, effort.profiles))
        if config in self.failing:
            return self.make(Outcome.OOM, message="out of memory")
        held = (900 if len(self.measured) == 1 else 500) * MIB
        return self.make(held_bytes=held, profile=self.profile if effort.profiles else None)


@pytest.fixture
def begin(make_measurement, make_step):
    return lambda *failing: Worker(make_measurement, make_step("fl", ("x", 0, 1, "batch")), failing)


def test_none_comes_first_and_nothing_twice(make_space):
    space = make_space()
    wanted = Config.of(space.plans[:2])
    configs = telling_configs(space, [wanted, space.all_on])
    assert configs[:3] == [Config(), wanted, space.all_on]
    assert len(set(configs)) == len(configs)
    assert {Config.of([plan]) for plan in space.plans} < set(configs)
    assert {space.all_on.without_plan(plan) for plan in space.plans} < set(configs)


def test_a_config_that_fails_is_left_out(begin, make_space):
    space = make_space()
    worker = begin(space.all_on)
    found = survey(worker, [Config(), space.all_on, Config.of(space.plans[:1])])
    assert set(found.profiles) == {Config(), Config.of(space.plans[:1])}
    assert (found.held_bytes, found.peak_bytes) == (500 * MIB, 700 * MIB)


def test_without_a_step_without_recompute_there_is_nothing_to_tell(begin):
    with pytest.raises(ScriptError, match=r"out of memory\. Outcome: oom\. Its output: worker\.log"):
        survey(begin(Config()), [Config()])
