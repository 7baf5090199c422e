import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.training_job import Detection
from autorecompute.units import MIB
from fake_backend.controller import read_config
from unit.conftest import build_detection

RESTING = 100 * MIB
LOSS = 7.5
SAMPLE = 25 * MIB  # memory that a sample takes without recompute
SAVINGS = (6 * MIB, 4 * MIB, 3 * MIB, MIB, MIB // 2)  # what each plan takes off that, in the space's order
COSTS = (0.04, 0.03, 0.05, 0.01, 0.005)  # what each plan adds to a step, as a share


def stop(tuning, *, after=None, **when):
    """A session that its user stopped: after so many seconds of its clock, or at what the bench counts to."""
    for name, number in when.items():
        setattr(tuning.bench, name, number)
    if after is not None:
        tuning.bench.clock.stop_at = tuning.bench.clock.now + after
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    return tuning


def instead(owner, name, answer):
    """Has a method be answered by a function, which gets the method before its arguments."""
    setattr(owner, name, functools.partial(answer, getattr(owner, name)))


def let_baseline_hold(bench, more_bytes):
    """Lets the process without recompute hold so much more than its tensors."""

    def measure_resident(measure, config, effort):
        measured = measure(config, effort)
        return replace(measured, resident_bytes=measured.peak_bytes + more_bytes if config.is_none else None)

    instead(bench, "measure", measure_resident)


def look_over_batch(bench):
    """Has the loss be one of the whole batch, where it is looked at."""

    def measure(before, config, effort):
        return replace(before(config, effort), is_over_batch=effort.looks_at_loss)

    instead(bench, "measure", measure)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turned:
    """What a knob does to whatever trains under it; ``speeds`` of one process after the other instead of one."""

    speed: float = 1.0
    more_bytes: int = 0
    loss: float = 0.0
    outcome: Outcome | None = None
    detection: Detection | None = None
    wrong: tuple = ()
    failure: Exception | None = None
    speeds: Iterator[float] | None = None

    def on(self, measurement):
        if self.outcome is not None:
            return Measurement(outcome=self.outcome, message="it went wrong")
        speed = self.speed if self.speeds is None else next(self.speeds)
        return replace(
            measurement,
            peak_bytes=measurement.peak_bytes + self.more_bytes,
            step_seconds=tuple(seconds / speed for seconds in measurement.step_seconds),
            losses=tuple(loss + self.loss for loss in measurement.losses),
        )


class FormulaBench:
    """Measures what a formula says: memory per sample, and time per step and per sample."""

    def __init__(
        self, detection=None, *, oom_bytes=None, step_seconds=0.1, sample_seconds=0.01, savings=SAVINGS, costs=COSTS
    ):
        self.detection = detection or build_detection(resting_bytes=RESTING)
        self.oom_bytes = oom_bytes
        self.savings, self.costs = savings, costs
        self.step_seconds, self.sample_seconds = step_seconds, sample_seconds
        self.log = Path("workers/01.log")
        self.is_live, self.starts = True, 1
        self.steps = 0  # counted by nobody, so that no answer is due for their number
        self.measured, self.watched, self.environments = [], [], []
        self.checked, self.checked_under = [], []  # the second: under a knob
        self.wrong, self.warnings = (), ()
        self.whole_steps = {}
        self.broken = {}  # measurements by config, instead of the formula's
        self.broken_lives = {}  # the same of whole processes
        # By config, and of all others, what the whole life of a process needs beyond the timed steps.
        self.life_bytes, self.every_life_bytes = {}, 0
        self.pace = lambda _: 1.0  # how much slower the machine is at the nth measurement
        self.others = None  # share of the processors that others have then; the pace leaves processor time as it is
        self.interrupt_at = self.impatient_at = None  # in which measurement, which process the user loses patience
        self.broken_at = None  # which fresh process the machine takes away
        self.knobs = {}  # a Turned by the variable's name
        self.failure = None  # what detecting ends with

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """No process to end."""

    def detect(self):
        if self.failure is not None:
            raise self.failure
        return self.detection

    def detect_ranks(self):
        return (self.detect(),)

    def measure(self, config, effort):
        if len(self.measured) == self.interrupt_at:
            raise KeyboardInterrupt
        self.measured.append((config, effort))
        number = len(self.measured) - 1
        batch = effort.batch or self.detection.batch
        measured = self.broken.get(config) or self.formula(config, effort, batch, pace=self.pace(number))
        if self.others is None or not measured.step_seconds:
            return measured
        cpu_seconds = (self.seconds(config, self.detection.batch),) * effort.steps
        return replace(measured, cpu_seconds=cpu_seconds, others_share=self.others(number))

    def check(self, config):
        agrees = not any(config.has(plan) for plan in self.wrong)
        self.checked.append(config)
        return GradientCheck(agrees=agrees, worst=0.0 if agrees else 0.5, parameter="" if agrees else "w", steps=3)

    def whole_step(self, config):
        return self.whole_steps.get(config)

    def watch(self, environment, effort, batch):
        if len(self.watched) == self.impatient_at:
            raise KeyboardInterrupt
        config = self.read_config(environment)
        self.watched.append((config, batch))
        self.environments.append(environment)
        if len(self.watched) - 1 == self.broken_at:
            return Measurement(outcome=Outcome.OOM, message="no memory")
        life = self.life_bytes.get(config, self.every_life_bytes)
        measured = self.broken_lives.get(config) or self.formula(
            config, effort, batch or self.detection.batch, extra_bytes=life
        )
        for turned in (self.knobs[name] for name in environment if name in self.knobs):
            measured = turned.on(measured)
        return measured

    def under(self, variables, logs):
        assert logs.is_dir()
        bench = FormulaBench(self.detection, savings=self.savings, costs=self.costs)
        bench.wrong, bench.checked = self.wrong, self.checked_under
        for turned in (self.knobs[name] for name in variables if name in self.knobs):
            bench.detection = turned.detection or bench.detection
            bench.wrong = turned.wrong or bench.wrong
            bench.failure = turned.failure
        return bench

    def take_output(self):
        return f"{len(self.measured)} measured\n"

    def formula(self, config, effort, batch, *, pace=1.0, extra_bytes=0):
        peak = self.peak_bytes(config, batch) + extra_bytes
        if self.oom_bytes and peak > self.oom_bytes:
            return Measurement(outcome=Outcome.OOM, message="no memory")
        seconds = self.seconds(config, batch) * pace
        return Measurement(
            outcome=Outcome.OK,
            peak_bytes=peak,
            step_seconds=(seconds,) * effort.steps,
            losses=(LOSS,) * effort.steps,
            samples=batch,
            batch=batch,
            warnings=self.warnings,
        )

    def read_config(self, environment):
        return read_config(environment)

    def peak_bytes(self, config, batch):
        return RESTING + round(batch * (SAMPLE - sum(self._of(config, self.savings))))

    def seconds(self, config, batch):
        return (self.step_seconds + batch * self.sample_seconds) * (1 + sum(self._of(config, self.costs)))

    def _of(self, config, figures):
        shares = zip(self.detection.plans, figures, strict=True)
        return [figure * self.detection.space.share(config, plan) for plan, figure in shares if config.has(plan)]
