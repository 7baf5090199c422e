import types

import pytest

from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.training_job import ALLOCATOR, Device
from autorecompute.trials.bench import join, measure_in_turns, takes_turns
from unit.conftest import build_detection, build_measurement, build_space


class Machine:
    """Slows down by a factor of three after ``slow_after`` steps, whatever is trained."""

    def __init__(self, make_measurement, slow_after=1000, *, ends_at_once=False):
        self.make_measurement, self.slow_after, self.ends_at_once = make_measurement, slow_after, ends_at_once
        self.order, self.broken, self.starts = [], {}, 1

    def measure(self, config, effort):
        assert (effort.warmup, effort.steps) == (0, 1)
        self.order.append(config)
        self.starts += self.ends_at_once
        if config in self.broken:
            return Measurement(outcome=self.broken[config])
        pace = 3.0 if len(self.order) > self.slow_after else 1.0
        seconds = pace * (1 if config.is_none else 2)
        return self.make_measurement(step_seconds=(seconds,), cpu_seconds=(seconds,), losses=(seconds,))


CONFIGS = [Config(), *(Config.of([plan]) for plan in build_space().plans[:2])]


def test_configs_are_measured_back_and_forth_so_that_a_machine_that_slows_down_meets_all_alike():
    machine = Machine(build_measurement)
    found = measure_in_turns(machine, CONFIGS, 2)
    assert machine.order == [*CONFIGS, *reversed(CONFIGS)]
    assert {config: len(measured.step_seconds) for config, measured in found.items()} == dict.fromkeys(CONFIGS, 2)
    one, other, _ = CONFIGS
    found = measure_in_turns(Machine(build_measurement, slow_after=6), [one, other], 6)
    for figure in ("step_seconds", "cpu_seconds", "losses"):
        assert sum(getattr(found[other], figure)) == 2 * sum(getattr(found[one], figure))


def test_a_config_that_fails_is_left_out_and_a_script_that_ends_not_started_for_every_step():
    machine = Machine(build_measurement)
    machine.broken[CONFIGS[1]] = Outcome.OOM
    found = measure_in_turns(machine, CONFIGS, 3)
    assert machine.order.count(CONFIGS[1]) == 1
    assert found[CONFIGS[1]].outcome is Outcome.OOM
    assert len(found[CONFIGS[2]].step_seconds) == 3
    found = measure_in_turns(Machine(build_measurement, ends_at_once=True), CONFIGS, 5)
    assert {len(measured.step_seconds) for measured in found.values()} == {1}


def test_a_joined_measurement_says_once_how_busy_the_host_was():
    joined = join([build_measurement(others_share=share, marks=("seen",)) for share in (0.0, 0.6)])
    assert joined.others_share == 0.3
    assert joined.marks == ("seen", "host busy: 30 % of the cores by others")


GROWING = {ALLOCATOR: "expandable_segments:True"}


@pytest.mark.parametrize(
    ("backend", "kind", "more", "turns"),
    [
        ("torch", "cpu", {}, True),
        ("ortmodule", "cpu", {}, False),
        ("torch", "cuda", {}, False),
        ("torch", "cuda", GROWING, True),
    ],
)
def test_a_system_that_swaps_in_no_time_takes_turns(backend, kind, more, turns):
    """An ORTModule makes its graphs anew, and a card's allocator has to grow its segments."""
    versions = {"python": "3.11", "torch": "2.13.0", "backend": backend, **more}
    found = build_detection(
        versions=versions, extra={}, plan_versions=(), device=Device(kind=kind, name="It", total_bytes=2**30)
    )
    bench = types.SimpleNamespace(detect=lambda: found)
    assert takes_turns(bench) is turns
