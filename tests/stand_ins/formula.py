"""A bench whose memory and time follow a formula."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.training_job import Detection
from autorecompute.units import MIB
from fake_backend.controller import read_config

RESTING = 100 * MIB
SAMPLE = 25 * MIB
"""Memory that a sample takes without recompute."""
SAVINGS = (6 * MIB, 4 * MIB, 3 * MIB, MIB, MIB // 2)
"""What each plan, in the space's order, takes off a sample's memory."""
COSTS = (0.04, 0.03, 0.05, 0.01, 0.005)
"""What each plan adds to a step, as a share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turned:
    """What a knob does to whatever trains under it.

    Attributes:
        speed: Throughput with it over that without.
        more_bytes: What it adds to the peak.
        loss: What it adds to the loss.
        outcome: How processes under it end, if not well.
        detection: What is found under it, if that is something else.
        wrong: Plans whose gradients are wrong under it.
        failure: What detecting under it ends with.
        speeds: The speed of one process after the other, instead.
    """

    speed: float = 1.0
    more_bytes: int = 0
    loss: float = 0.0
    outcome: Outcome | None = None
    detection: Detection | None = None
    wrong: tuple = ()
    failure: Exception | None = None
    speeds: Iterator[float] | None = None

    def on(self, measurement):
        """The measurement with it."""
        if self.outcome is not None:
            return Measurement(outcome=self.outcome, message="it went wrong")
        speed = self.speed if self.speeds is None else next(self.speeds)
        return dataclasses.replace(
            measurement,
            peak_bytes=measurement.peak_bytes + self.more_bytes,
            step_seconds=tuple(seconds / speed for seconds in measurement.step_seconds),
            losses=tuple(loss + self.loss for loss in measurement.losses),
        )


LOSS = 7.5


class FormulaBench:
    """Measures what a formula says: memory per sample, and time per step and per sample.

    Args:
        detection: What it detects.
        oom_bytes: Peak above which a config runs out of memory instead of being measured.
        step_seconds, sample_seconds: Time that a step takes, whatever its batch, and time for each sample.
        savings: What each plan, in the space's order, takes off a sample's memory at all its occurrences.
        costs: What each plan then adds to a step, as a share.
    """

    def __init__(
        self, detection, *, oom_bytes=None, step_seconds=0.1, sample_seconds=0.01, savings=SAVINGS, costs=COSTS
    ):
        self.detection, self.oom_bytes = detection, oom_bytes
        self.savings, self.costs = savings, costs
        self.step_seconds, self.sample_seconds = step_seconds, sample_seconds
        self.log = Path("workers/01.log")
        self.is_live = True
        self.measured, self.watched = [], []
        self.checked, self.wrong, self.warnings = [], (), ()
        self.checked_under = []
        self.step_bytes_of = {}
        """Whose gradients were compared under a knob."""
        self.broken = {}
        """Measurements by config, instead of the formula's."""
        self.life_bytes, self.every_life_bytes = {}, 0
        """By config, and of all others, what the whole life of a process needs beyond the timed steps."""
        self.broken_lives = {}
        """Measurements of whole processes by config, instead of the formula's."""
        self.pace = lambda _: 1.0
        """How much slower the machine is at the nth measurement."""
        self.others = None
        """Share of the processors that others have at the nth measurement; the pace leaves processor time as it is."""
        self.interrupt_at = None
        """Number of the measurement in which the user loses patience."""
        self.knobs = {}
        """What a variable does to a process: a :class:`Turned` by the variable's name."""
        self.environments = []
        self.impatient_at = None
        """Number of the fresh process in which the user loses patience."""
        self.broken_at = None
        """Number of the fresh process that the machine takes away."""
        self.failure = None
        """What detecting ends with, instead of a detection."""
        self.plain = None
        """A bench for the script without the wrapping."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """No process to end."""

    def detect(self):
        """What the formula's graph has."""
        if self.failure is not None:
            raise self.failure
        return self.detection

    def measure(self, config, effort):
        """What the formula says of a config."""
        if len(self.measured) == self.interrupt_at:
            raise KeyboardInterrupt
        self.measured.append((config, effort))
        number = len(self.measured) - 1
        measured = self.broken.get(config) or self.formula(config, effort, self.detection.batch, pace=self.pace(number))
        if self.others is None or not measured.step_seconds:
            return measured
        cpu_seconds = (self.seconds(config, self.detection.batch),) * effort.steps
        return replace(measured, cpu_seconds=cpu_seconds, others_share=self.others(number))

    def check(self, config):
        """Whether the gradients of a config are right; all are, but those that the test breaks."""
        agrees = not any(config.has(plan) for plan in self.wrong)
        self.checked.append(config)
        return GradientCheck(agrees=agrees, worst=0.0 if agrees else 0.5, parameter="" if agrees else "w", steps=3)

    def step_bytes(self, config):
        """What a whole step takes, where the test says so."""
        return self.step_bytes_of.get(config)

    def watch(self, environment, effort, batch):
        """What the formula says of a run under this environment."""
        if len(self.watched) == self.impatient_at:
            raise KeyboardInterrupt
        is_broken = len(self.watched) == self.broken_at
        config = self.read_config(environment)
        self.watched.append((config, batch))
        self.environments.append(environment)
        if is_broken:
            return Measurement(outcome=Outcome.OOM, message="no memory")
        life = self.life_bytes.get(config, self.every_life_bytes)
        measured = self.broken_lives.get(config) or self.formula(
            config, effort, batch or self.detection.batch, extra_bytes=life
        )
        for turned in (self.knobs[name] for name in environment if name in self.knobs):
            measured = turned.on(measured)
        return measured

    def under(self, variables, logs):
        """A bench whose processes see these variables."""
        assert logs.is_dir()
        bench = FormulaBench(self.detection, savings=self.savings, costs=self.costs)
        bench.wrong, bench.checked = self.wrong, self.checked_under
        for turned in (self.knobs[name] for name in variables if name in self.knobs):
            bench.detection = turned.detection or bench.detection
            bench.wrong = turned.wrong or bench.wrong
            bench.failure = turned.failure
        return bench

    def unwrapped(self, _logs):
        """The bench for the script without the wrapping."""
        return self.plain or FormulaBench(self.detection, savings=self.savings, costs=self.costs)

    def take_output(self):
        """What was printed."""
        return f"{len(self.measured)} measured\n"

    def formula(self, config, effort, batch, *, pace=1.0, extra_bytes=0):
        """The figures of a config at a batch."""
        peak = self.peak_bytes(config, batch) + extra_bytes
        if self.oom_bytes and peak > self.oom_bytes:
            return Measurement(outcome=Outcome.OOM, message="no memory")
        seconds = self.seconds(config, batch) * pace
        steps = (seconds,) * effort.steps
        return Measurement(
            outcome=Outcome.OK,
            peak_bytes=peak,
            step_seconds=steps,
            losses=(LOSS,) * len(steps),
            samples=batch,
            batch=batch,
            warnings=self.warnings,
        )

    def read_config(self, environment):
        """What a process under this environment recomputes."""
        return read_config(environment)

    def peak_bytes(self, config, batch):
        """The peak."""
        return RESTING + round(batch * (SAMPLE - sum(self._of(config, self.savings))))

    def seconds(self, config, batch):
        """The time of a step."""
        return (self.step_seconds + batch * self.sample_seconds) * (1 + sum(self._of(config, self.costs)))

    def _of(self, config, figures):
        shares = zip(self.detection.plans, figures, strict=True)
        return [figure * self.detection.space.share(config, plan) for plan, figure in shares if config.has(plan)]
