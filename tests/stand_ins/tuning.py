"""A tuning, and who watches it."""

import math

from autorecompute.studies import StudyFolder
from autorecompute.trials import Job
from autorecompute.trials.job import Effort
from autorecompute.tuning.context import TuningContext, TuningSettings
from autorecompute.tuning.tuner import Tuner
from autorecompute.units import MIB
from stand_ins.formula import FormulaBench


class Watcher:
    """Keeps what it is told."""

    def __init__(self):
        self.told, self.notes, self.trials, self.leaders, self.usable = [], [], [], [], []

    def detected(self, detection, limit_bytes, *, known_trials, budget, deadline_seconds):
        self.told.append((detection, limit_bytes, len(known_trials), budget))
        self.deadline_seconds = deadline_seconds

    def trial_begins(self, number, description, reason, prediction):
        """Nothing to keep."""

    def trial_ended(self, trial):
        self.trials.append(trial)

    def leads(self, trial, relative_throughput):
        self.leaders.append((trial, relative_throughput))

    def may_be_used(self, best):
        self.usable.append(best)

    def note(self, text):
        self.notes.append(text)


class Tuning:
    """One session of a tuning on a formula, in a folder that outlives it."""

    effort = Effort(warmup=2, steps=5)

    def __init__(self, root, bench=None, name="bert", *, detection=None, shared=None, longest=None, **changes):
        script = root / "train.py"
        script.touch()
        self.bench, self.watcher = bench or FormulaBench(detection), Watcher()
        self.folder = StudyFolder(name, root / "studies")
        self.folder.prepare()
        asked = {"limit_bytes": 600 * MIB, "max_trials": 40, "timeout_seconds": None, "batch": 32, "sampler": "greedy"}
        # Whatever may be gained pays for a training without end, however fast the machine of the test is.
        settings = TuningSettings(effort=self.effort, **{"training_seconds": math.inf, **asked, **changes})
        job = Job(script=script, batch_flag="--bs", longest=longest)
        self.context = TuningContext(
            job=job, bench=self.bench, folder=self.folder, settings=settings, progress=self.watcher, shared=shared
        )
        self.tuner = Tuner(self.context)

    def run(self):
        return self.tuner.run()

    @property
    def tried(self):
        """The configs that were measured as trials, in order."""
        return [config for config, effort in self.bench.measured if (effort.warmup, effort.steps) == (2, 5)]
