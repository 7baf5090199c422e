"""Small steps that are profiled before a search, and whole steps that are looked at before a trial."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from autorecompute.errors import ScriptError
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.search.sampling import MODEL
from autorecompute.studies import StudyFolder
from autorecompute.tuning.budget import Budget, Task
from autorecompute.tuning.searcher_factory import PROFILED_BATCH, analyse, informative_configs, survey
from autorecompute.units import GIB, MIB
from fake_backend import controller
from stand_ins.blocks import BlocksBench, limit_for
from unit.conftest import build_detection, build_measurement, build_space, build_step


def begin(*failing):
    """A bench on which some configs fail, and whose first measurement of a process is too high."""
    held_mib, profile = itertools.chain([900], itertools.repeat(500)), build_step("fl", ("x", 0, 1, "batch"))

    def measure(config, effort):
        if config in failing:
            return build_measurement(Outcome.OOM, message="out of memory")
        return build_measurement(held_bytes=next(held_mib) * MIB, profile=profile if effort.profiles else None)

    return SimpleNamespace(log=Path("worker.log"), measure=measure)


def test_none_comes_first_nothing_twice_and_a_config_that_fails_is_left_out_but_for_that_without_recompute():
    """The answer has the bytes that a settled process holds."""
    space = build_space()
    wanted = Config.of(space.plans[:2])
    configs = informative_configs(space, [wanted, space.all_on])
    assert configs[:3] == [Config(), wanted, space.all_on]
    assert len(set(configs)) == len(configs)
    assert {Config.of([plan]) for plan in space.plans} < set(configs)
    assert {space.all_on.without_plan(plan) for plan in space.plans} < set(configs)
    found = survey(begin(space.all_on), [Config(), space.all_on, Config.of(space.plans[:1])])
    assert set(found.profiles) == {Config(), Config.of(space.plans[:1])}
    assert (found.held_bytes, found.peak_bytes) == (500 * MIB, 700 * MIB)
    with pytest.raises(ScriptError, match=r"out of memory\. Outcome: oom\. Its output: worker\.log"):
        survey(begin(Config()), [Config()])


@pytest.mark.parametrize(("can_change_batch", "seconds"), [(False, 60.0), (True, 25.0)])
def test_without_time_for_an_answer_after_them_small_steps_are_left_out(tmp_path, clock, can_change_batch, seconds):
    """A live script is not given up for steps after which nothing could be tried: greedy answers instead."""
    folder, notes = StudyFolder("bert", tmp_path), []
    folder.prepare()
    budget = Budget(seconds, clock.now)
    budget._seen[Task.START].append(20.0)
    budget._seen[Task.TRIAL].append(2.0)
    bench = SimpleNamespace(can_change_batch=can_change_batch, close=lambda: notes.append("closed"))
    context = SimpleNamespace(folder=folder, bench=bench, note=notes.append, detection=build_detection(), budget=budget)
    assert analyse(context) is None
    assert notes == ["no time to profile small steps, the search begins without"]


def test_what_should_take_too_much_as_a_whole_step_is_tried_after_others(tune_in, make_root, monkeypatch):
    def memory_of(detection):
        small = survey(BlocksBench(detection=detection), [Config(), detection.space.all_on], PROFILED_BATCH)
        return controller.memory_model(detection.space, small)

    monkeypatch.setattr(controller, "memory_of", memory_of)

    def search(step_bytes):
        steps = {
            config: GradientCheck(agrees=True, worst=0.0, steps=0, step_bytes=size)
            for config, size in step_bytes.items()
        }
        tuning = tune_in(make_root(), BlocksBench(), sampler=MODEL, limit_bytes=limit_for(9 * MIB))
        tuning.bench.whole_steps = steps
        tuning.run()
        presets = tuning.bench.detection.space.presets.values()
        return [trial.config for trial in tuning.watcher.trials if trial.config not in presets]

    first = search({})[0]
    assert search({first: 1})[0] == first
    assert first not in search({first: GIB})[:3]
