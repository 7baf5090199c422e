"""A recorded model of six plans whose true peaks and step times are known."""

import itertools
import json
import random

import pytest

import tables
from autorecompute import codec
from autorecompute.backends.ortmodule.extra import OrtDetection
from autorecompute.memory import StepProfile
from autorecompute.plans import Choice, Config, Plan, Space

COSTS = (0.10, 0.02, 0.03, 0.0, 0.05, 0.08)
SAVINGS = (40, 10, 25, 15, 30, 35)
MIB = 2**20
WINDOW = 8


def build_space(*, is_whole=False):
    """The plans; each states the saving that it has, for a batch of 2, and covers as many nodes as it takes time.

    The whole space has one more, which saves nothing.
    """
    savings, costs = (SAVINGS, COSTS) if not is_whole else ((*SAVINGS, 0), (*COSTS, 0.0))
    plans = tuple(
        Plan(
            choices=(Choice(f"Node{place}+", "1"),),
            label=f"Node{place}+",
            occurrences=1 + round(100 * cost),
            saving_bytes=saving * MIB,
            saving=f"{saving * MIB // 2}*batch",
        )
        for place, (saving, cost) in enumerate(zip(savings, costs, strict=True))
    )
    return Space(plans=plans)


class Machine:
    """Writes the journal of a model as the recorder would.

    Args:
        noise: Standard deviation of a step time, as a share of it.
        outliers: Share of the configs whose steps take three times as long by accident.
        extra_seconds: What a config's step takes beyond the sum of its plans, by config.
        rounds: How often each config is measured.
        pace: How much slower the machine gets from each reference to the next, as a factor.
    """

    def __init__(self, *, noise=0.0, outliers=0.0, extra_seconds=None, rounds=1, pace=1.0):
        self.space = build_space()
        self.configs = [
            Config.of(plans)
            for size in range(len(COSTS) + 1)
            for plans in itertools.combinations(self.space.plans, size)
        ]
        self._noise, self._outliers, self._rounds, self._pace = noise, outliers, rounds, pace
        self._extra_seconds, self._chance = extra_seconds or {}, random.Random(0)

    def seconds(self, config):
        """The true step time, 1 without recompute."""
        costs = sum(cost for cost, plan in zip(COSTS, self.space.plans, strict=True) if config.has(plan))
        return 1 + costs + self._extra_seconds.get(config, 0)

    def peak_bytes(self, config):
        """The true peak."""
        savings = zip(SAVINGS, self.space.plans, strict=True)
        return (500 - sum(saving for saving, plan in savings if config.has(plan))) * MIB

    def rows(self):
        """What is measured, in random order, a new reference every few configs."""
        pace = 0.1
        for number in range(self._rounds):
            for place, config in enumerate(self._chance.sample(self.configs, k=len(self.configs))):
                if place % WINDOW == 0:
                    pace *= self._pace
                    reference = self._noisy(pace)
                step = self._noisy(pace * self.seconds(config))
                accident = 3 if self._chance.random() < self._outliers else 1
                yield {
                    "config": config.hash,
                    "round": number,
                    "outcome": "ok",
                    "peak_bytes": self.peak_bytes(config),
                    "seconds": [step * accident] * 3,
                    "reference_seconds": reference,
                }

    def _noisy(self, seconds):
        return seconds * self._chance.gauss(1, self._noise)


@pytest.fixture
def write_journal(make_detection, build_profile, tmp_path):
    """Writes a journal of a model to a file; a seventh plan is known and was not recorded."""

    def write(machine=None, rows=None, name="model"):
        machine = machine or Machine()
        whole = build_space(is_whole=True)
        extra = codec.to_plain(OrtDetection(layer_plans=whole.plans))
        profiles = [
            {"config": config.texts, "profile": codec.to_plain(build_profile)} for config in (Config(), whole.all_on)
        ]
        head = {
            "study": name,
            "arguments": ["--layers", "1"],
            "batch": 2,
            "is_sampled": False,
            "threads": 1,
            "effort": {"warmup": 1, "steps": 3},
            "peak_bytes": 500 * MIB,
            "plans": [plan.id for plan in machine.space.plans],
            "detection": codec.to_plain(make_detection(whole, dims={"batch": 1}, extra=extra)),
            "survey": {"peak_bytes": 300 * MIB, "held_bytes": 200 * MIB, "profiles": profiles},
            "configs": {config.hash: config.texts for config in [*machine.configs, whole.all_on]},
        }
        end = {**next(machine.rows()), "config": whole.all_on.hash}
        lines = [head, *(machine.rows() if rows is None else rows), end]
        file = tmp_path / f"{name}.journal"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return file

    return write


@pytest.fixture
def build_profile(make_step):
    """A profiled step of one operation each way."""
    profile = make_step("flb", ("x", 0, 2, "batch"))
    assert isinstance(profile, StepProfile)
    return profile


@pytest.fixture
def make_machine():
    """Builds a machine."""
    return Machine


@pytest.fixture
def make_table(write_journal):
    """The table of a machine."""
    return lambda machine=None, rows=None: tables.load(write_journal(machine, rows))
