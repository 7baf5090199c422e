"""One worker of a study whose trials are looked up in a recorded table: ``tune`` but for the training.

``python benchmarks/replay/worker.py --storage sqlite:///PATH --study NAME --folder DIR`` keeps the configs that
it measured as lines of ``measured.jsonl`` in its folder. Several of them are several workers, each with a device of its
own. None takes another one for dead that has beaten within half an hour,
however busy the machine is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import time
from pathlib import Path

# A worker that computes in threads would keep the others from the processor.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.reports.live import LiveView
from autorecompute.studies import StudyFolder, shared_study
from autorecompute.studies.analysis import keep_analysis
from autorecompute.studies.storage import parse_storage
from autorecompute.trials import Job
from autorecompute.tuning.context import TuningContext, TuningSettings
from autorecompute.tuning.tuner import Tuner
from autorecompute.waiting import pause
from replay import Replay
from tables import SUFFIX, TABLES, load

REFERENCE_SECONDS = 0.1
PATIENT_SECONDS = 1800
TABLE, SHARE = "gpt2_clm", 0.4
"""What is tuned, and how far the limit is from the least peak to that of no recompute."""


class ReplayedBench:
    """A bench that looks up what a config measures, takes a given time for it, and keeps a journal of trials."""

    def __init__(self, replay, journal, trial_seconds):
        """Begins with nothing measured."""
        self._replay, self._journal, self._trial_seconds = replay, journal, trial_seconds
        table = replay.table
        self._known = {choice for plan in table.space.plans for choice in plan.choices}
        found = dataclasses.replace(table.detection, batch=table.plain["batch"])
        # A card of its own for each worker, for one of them at a time measures on a card.
        card = dataclasses.replace(found.device, uuid=f"worker-{os.getpid()}")
        self.detection = dataclasses.replace(found, device=card)
        self.log = Path("00.log")
        self.is_live = self.can_change_batch = True
        self.starts, self.steps = 1, 0  # no answer is due for their number
        self._chance = random.Random(os.getpid())

    def close(self):
        """No process to end."""

    def detect(self):
        """Return what the table was recorded of."""
        return self.detection

    def measure(self, config, effort):
        """One of the recordings of the config; the reference between two trials takes no time."""
        if effort.warmup > 1:
            pause(self._trial_seconds)
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(config.texts)}\n")
        return self._look_up(config, effort.steps)

    def check(self, _config):
        """Every gradient is right."""
        return GradientCheck(agrees=True, worst=0.0, steps=3)

    def watch(self, environment, effort, batch):
        """A whole process of the config that the variables name."""
        path = environment.get("ORTMODULE_MEMORY_OPT_CONFIG")
        config = Config.parse(json.loads(Path(path).read_text())) if path else Config()
        pause(self._trial_seconds)
        measured = self._look_up(config, effort.steps)
        # What is not held anyway grows with the samples, and so does the time.
        share, resting = (batch or self.detection.batch) / self.detection.batch, self.detection.resting_bytes
        return dataclasses.replace(
            measured,
            batch=batch or measured.batch,
            samples=batch or measured.samples,
            peak_bytes=round(resting + (measured.peak_bytes - resting) * share),
            step_seconds=tuple(seconds * share for seconds in measured.step_seconds),
        )

    def take_output(self):
        """Nothing is printed."""
        return ""

    def _look_up(self, config, steps):
        if config not in self.detection.space.opaque_presets.values():
            # Plans that save next to nothing were not recorded.
            config = Config(config.choices & self._known)
        recordings = self._replay.table.recordings[self._replay.nearest(config, ())]
        recording = self._chance.choice([known for known in recordings if known.peak_bytes is not None])
        batch = self.detection.batch
        # As if the machine always kept one pace.
        pace = REFERENCE_SECONDS / recording.reference_seconds
        return Measurement(
            outcome=Outcome(recording.outcome),
            peak_bytes=recording.peak_bytes,
            step_seconds=tuple(seconds * pace for seconds in (recording.seconds * steps)[:steps]),
            samples=batch,
            batch=batch,
        )


def read_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", required=True)
    parser.add_argument("--study", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--max-trials", type=int, default=40)
    parser.add_argument("--trial-seconds", type=float, default=0.2)
    return parser.parse_args()


def main():
    """Tunes to the end, which a failure ends with its traceback."""
    args = read_arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    shared_study.HEARTBEAT_SECONDS, shared_study.GRACE_SECONDS = 1, PATIENT_SECONDS
    replay = Replay(load(TABLES / f"{TABLE}{SUFFIX}"))
    folder = StudyFolder(args.study, args.folder / "studies")
    folder.prepare()
    small = replay.table.memory.small
    kept = {config: small.profiles[config] for config in (Config(), replay.table.detection.space.all_on)}
    keep_analysis(folder, dataclasses.replace(small, profiles=kept))
    script = args.folder / "train.py"
    script.touch()
    shared = shared_study.SharedStudy(parse_storage(args.storage), args.study)
    bench = ReplayedBench(replay, args.folder / "measured.jsonl", args.trial_seconds)
    settings = TuningSettings(
        limit_bytes=replay.limit_bytes(SHARE),
        max_trials=args.max_trials,
        timeout_seconds=None,
        began_seconds=time.monotonic(),
        batch=replay.table.plain["batch"],
        is_fresh=True,
        training_seconds=math.inf,
    )
    job = Job(script=script, batch_flag="--bs")
    with LiveView() as view:
        Tuner(TuningContext(job=job, bench=bench, folder=folder, settings=settings, progress=view, shared=shared)).run()


if __name__ == "__main__":
    main()
