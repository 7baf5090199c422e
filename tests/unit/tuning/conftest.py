"""A bench whose memory and time follow a formula, and the tuning around it."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from pathlib import Path

import pytest

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.studies import StudyFolder
from autorecompute.trials import Job
from autorecompute.trials.bench import Effort
from autorecompute.tuning import Tuner, TuningSettings, Workplace
from autorecompute.units import MIB

RESTING = 100 * MIB
SAMPLE = 25 * MIB
"""Memory that a sample takes without recompute."""
SAVINGS = (6 * MIB, 4 * MIB, 3 * MIB, MIB, MIB // 2)
"""What each plan, in the space's order, takes off a sample's memory."""
COSTS = (0.04, 0.03, 0.05, 0.01, 0.005)
"""What each plan adds to a step, as a share."""


class FormulaBench:
    """Measures what a formula says: memory per sample, and time per step and per sample.

    Args:
        detection: What it detects.
        oom_bytes: Peak above which a config runs out of memory instead of being measured.
        step_seconds, sample_seconds: Time that a step takes, whatever its batch, and time for each sample.
    """

    def __init__(self, detection, *, oom_bytes=None, step_seconds=0.1, sample_seconds=0.01):
        self.detection, self.oom_bytes = detection, oom_bytes
        self.step_seconds, self.sample_seconds = step_seconds, sample_seconds
        self.log = Path("workers/01.log")
        self.measured, self.watched = [], []
        self.checked, self.wrong, self.warnings = [], (), ()
        self.broken = {}
        """Measurements by config, instead of the formula's."""
        self.life_bytes = {}
        """By config, what the whole life of its process needs beyond the timed steps."""
        self.broken_lives = {}
        """Measurements of whole processes by config, instead of the formula's."""
        self.pace = lambda _: 1.0
        """How much slower the machine is at the nth measurement."""
        self.interrupt_at = None
        """Number of the measurement in which the user loses patience."""

    def detect(self):
        """What the formula's graph has."""
        return self.detection

    def measure(self, config, effort):
        """What the formula says of a config."""
        if len(self.measured) == self.interrupt_at:
            raise KeyboardInterrupt
        self.measured.append((config, effort))
        pace = self.pace(len(self.measured) - 1)
        return self.broken.get(config) or self.formula(config, effort, self.detection.batch, pace=pace)

    def check(self, config):
        """Whether the gradients of a config are right; all are, but those that the test breaks."""
        agrees = not any(config.has(plan) for plan in self.wrong)
        self.checked.append(config)
        return GradientCheck(agrees=agrees, worst=0.0 if agrees else 0.5, parameter="" if agrees else "w", steps=3)

    def watch(self, environment, effort, batch):
        """What the formula says of a run under this environment."""
        config = Config()
        for path in environment.values():
            config = Config.from_rows(json.loads(Path(path).read_text()))
        self.watched.append((config, batch))
        life = self.life_bytes.get(config, 0)
        return self.broken_lives.get(config) or self.formula(
            config, effort, batch or self.detection.batch, extra_bytes=life
        )

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
            samples=batch,
            batch=batch,
            warnings=self.warnings,
        )

    def peak_bytes(self, config, batch):
        """The peak."""
        return RESTING + batch * (SAMPLE - sum(self._of(config, SAVINGS)))

    def seconds(self, config, batch):
        """The time of a step."""
        return (self.step_seconds + batch * self.sample_seconds) * (1 + sum(self._of(config, COSTS)))

    def _of(self, config, figures):
        return [figure for plan, figure in zip(self.detection.plans, figures, strict=True) if config.has(plan)]


class Watcher:
    """Keeps what it is told."""

    def __init__(self):
        self.told, self.notes, self.trials = [], [], []

    def detected(self, detection, limit_bytes, *, known_trials, budget):
        """Keeps how far an earlier session came."""
        self.told.append((detection, limit_bytes, known_trials, budget))

    def trial_begins(self, number, description, reason):
        """Nothing to keep."""

    def trial_ended(self, trial):
        """Keeps the trial."""
        self.trials.append(trial)

    def note(self, text):
        """Keeps the note."""
        self.notes.append(text)


class Tuning:
    """One session of a tuning on a formula, in a folder that outlives it."""

    effort = Effort(warmup=2, steps=5)

    def __init__(self, root, bench, **changes):
        script = root / "train.py"
        script.touch()
        self.bench, self.watcher = bench, Watcher()
        self.folder = StudyFolder("bert", root / "studies")
        self.folder.prepare()
        asked = {"limit_bytes": 600 * MIB, "max_trials": 40, "timeout_seconds": None, "batch": 32}
        settings = TuningSettings(effort=self.effort, **{**asked, **changes})
        job = Job(script=script, batch_flag="--bs")
        place = Workplace(job=job, bench=bench, folder=self.folder, settings=settings, progress=self.watcher)
        self.tuner = Tuner(place)

    def run(self):
        """The answer."""
        return self.tuner.run()

    @property
    def tried(self):
        """The configs that were measured as trials, in order."""
        return [config for config, effort in self.bench.measured if effort == self.effort]


@pytest.fixture(scope="session", autouse=True)
def _own_locks(tmp_path_factory):
    """No test waits for a tuning that measures on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session")
def make_bench(make_detection):
    """Builds a bench."""

    def make(detection=None, **formula):
        return FormulaBench(detection or make_detection(resting_bytes=RESTING), **formula)

    return make


@pytest.fixture(scope="session")
def tune_in(make_bench):
    """Begins a session of the study that lies in a folder."""

    def tune_in(root, bench=None, *, detection=None, **settings):
        return Tuning(root, bench or make_bench(detection), **settings)

    return tune_in


@pytest.fixture(scope="session")
def make_root():
    """Makes folders in memory where there are any: a storage waits for its disk at every trial."""
    with contextlib.ExitStack() as roots:
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() else None
        yield lambda: Path(roots.enter_context(tempfile.TemporaryDirectory(prefix="autorecompute-test-", dir=place)))


@pytest.fixture
def make_tuning(make_root, tune_in):
    """Begins a session of one and the same study."""
    return functools.partial(tune_in, make_root())
