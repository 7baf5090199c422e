"""Plays whole tunings on a table: searches, races, confirmations and comparisons, each paid in steps of the training.

A window costs what it costs a worker on a processor: steps of warm-up, one in which live tensors are counted, and the
timed ones. Every timed step takes what the config truly takes, off by as much as a recorded step of any config is off
from the others of its recording, and by the pace of the machine.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from autorecompute.errors import NothingFitsError
from autorecompute.figures import RaceEnd
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.studies import StudyFolder
from autorecompute.trials import Bench
from autorecompute.trials.job import Job
from autorecompute.tuning.context import TuningContext, TuningSettings
from autorecompute.tuning.race import TIE
from autorecompute.tuning.tuner import Tuner

START_SECONDS = 10.0
"""Of a script that imports torch and makes a small model."""

CHECK_STEPS = 2
"""Passes in which the gradients of a config are compared: with it and without."""

FIXED_SHARE = 0.1
"""Of a step, what a smaller batch does not shorten."""


class Clock:
    """Time that passes in steps alone."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        """The time."""
        return self.now


class TableBench(Bench):
    """A bench that plays a table, and counts what it plays.

    Args:
        replay: The table.
        clock: Moves as steps are taken.
        seed: Of the noise.
        weather: The pace of the machine, one factor a step.

    Attributes:
        steps: Steps of the training so far, in all processes.
        started: Processes so far.
        usable: What fresh processes confirmed within the limit: the config, with the steps and processes until then.
    """

    def __init__(self, replay, clock, seed, weather, limit_bytes, logs):  # noqa: PLR0917  (what is played)
        super().__init__(Job(script=Path(__file__), batch_flag="--bs"), replay.table.plain["batch"], logs)
        self._replay, self._clock, self._weather, self._limit = replay, clock, weather, limit_bytes
        self._chance = random.Random(f"{seed} {limit_bytes}")
        self.steps, self._is_live, self._seen = 0, False, set()
        self.usable, self.configs = [], {}
        table = replay.table
        self._unit = statistics.median(
            each.reference_seconds for recordings in table.recordings.values() for each in recordings
        )
        own_batch = replace(table.detection, batch=table.plain["batch"])
        self._found = replace(own_batch, plans=table.space.plans, own_presets=table.space.own_presets)

    @property
    def is_live(self):
        """Tell whether a process waits for orders."""
        return self._is_live

    def close(self):
        """Ends it."""
        self._is_live = False

    def detect(self):
        """Starts it where none is there."""
        if not self._is_live:
            self.starts += 1
            self._is_live, self._seen = True, set()
            self._clock.now += START_SECONDS
            self._pass(Config(), 1)
        return self._found

    def detect_ranks(self):
        """One."""
        return (self.detect(),)

    def measure(self, config, effort):
        """A window."""
        self.detect()
        key = config, effort.batch
        is_known = key in self._seen and effort.warmup == 0
        before = 0 if is_known else max(effort.warmup, 1) + 1
        self._seen.add(key)
        warmup = self._pass(config, before, effort.batch)
        return self._measured(config, warmup, self._pass(config, effort.steps, effort.batch), effort.batch)

    def check(self, config):
        """No gradients of a table are wrong."""
        self.detect()
        self._pass(config, CHECK_STEPS)
        return GradientCheck(agrees=True, worst=0.0, steps=1)

    def whole_step(self, _config):
        """None was recorded."""
        return

    def watch(self, environment, effort, batch):
        """A process of its own."""
        self.close()
        self.starts += 1
        self._clock.now += START_SECONDS
        config = self.configs[environment["config"]] if environment else Config()
        warmup = self._pass(config, 1 + effort.warmup, batch)
        measured = self._measured(config, warmup, self._pass(config, effort.steps, batch), batch)
        if environment and measured.peak_bytes <= self._limit:
            self.usable.append((config, self.steps, self.starts))
        return measured

    def take_output(self):
        """Nothing is printed."""
        return ""

    def emit(self, config, _knobs=()):
        """Return the environment of a process with a config."""
        self.configs[config.hash] = config
        return {"config": config.hash}

    def _share(self, batch):
        return 1.0 if batch is None else batch / self._found.batch

    def _pass(self, config, count, batch=None):
        truth = self._unit * self._replay.truth_of(config).ratio
        length = truth * (FIXED_SHARE + (1 - FIXED_SHARE) * self._share(batch))
        taken = [length * self._chance.choice(jitters(self._replay)) * next(self._weather) for _ in range(count)]
        self.steps += count
        self._clock.now += sum(taken)
        return tuple(taken)

    def _measured(self, config, warmup, taken, batch):
        resting, peak = self._found.resting_bytes, self._replay.truth_of(config).peak_bytes
        return Measurement(
            outcome=Outcome.OK,
            peak_bytes=round(resting + (peak - resting) * self._share(batch)),
            step_seconds=taken,
            warmup_seconds=sum(warmup),
            samples=batch or self._found.batch,
            batch=batch or self._found.batch,
        )


def jitters(replay):
    """Return by which factors recorded steps are off from what is usual."""
    found = replay.__dict__.get("jitters")
    if found is None:
        recordings = [each for known in replay.table.recordings.values() for each in known if len(each.seconds) > 1]
        # Steps are off from their own mean by less than from the true one.
        unseen = [(len(each.seconds) / (len(each.seconds) - 1)) ** 0.5 for each in recordings]
        found = [
            1 + (seconds / statistics.mean(each.seconds) - 1) * more
            for each, more in zip(recordings, unseen, strict=True)
            for seconds in each.seconds
        ]
        replay.__dict__["jitters"] = found
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Figures of one tuning.

    Attributes:
        first_steps: Steps until the first answer that may be used; ``None`` where there was none.
        first_starts: Processes until then.
        first_regret: Share of the best throughput that this answer loses.
        steps: Steps to the end.
        starts: Processes to the end.
        regret: Share of the best throughput that the last answer loses.
        seconds: The tuning's time.
        trials: Trials.
        is_infeasible: Whether an answer truly needs more than the limit.
        is_wrong: Whether the race was sure of a winner that is slower than another finalist by more than a tie.
    """

    first_steps: int | None
    first_starts: int | None
    first_regret: float | None
    steps: int
    starts: int
    regret: float | None
    seconds: float
    trials: int
    is_infeasible: bool
    is_wrong: bool


class Silence:
    """Watches nothing."""

    def note(self, *_, **__):
        """Nothing."""

    detected = trial_begins = trial_ended = leads = may_be_used = note


def play(replay, share, seed, weather, watcher=None, **settings):
    """One tuning at this share of the way between the least peak and that without recompute."""
    limit_bytes, clock = replay.limit_bytes(share), Clock()
    with tempfile.TemporaryDirectory() as root, mock.patch("time.monotonic", clock.monotonic):
        folder = StudyFolder("played", Path(root) / "studies")
        folder.prepare()
        bench = TableBench(replay, clock, seed, weather, limit_bytes, Path(root))
        asked = {"limit_bytes": limit_bytes, "max_trials": 40, "timeout_seconds": None, "is_fresh": True}
        context = TuningContext(
            job=bench._job,
            bench=bench,
            folder=folder,
            settings=TuningSettings(batch=replay.table.plain["batch"], **{**asked, **settings}),
            progress=watcher or Silence(),
        )
        with (
            mock.patch.object(TuningContext, "emit", lambda _, config, knobs=(): bench.emit(config, knobs)),
            mock.patch.object(tempfile, "tempdir", root),
        ):
            try:
                result = Tuner(context).run()
            except NothingFitsError:
                result = None
    return _judge(replay, limit_bytes, bench, clock, result)


def _judge(replay, limit_bytes, bench, clock, result):
    best_ratio = replay.best_ratio(limit_bytes)

    def regret(config):
        return max(0.0, 1 - best_ratio / replay.truth_of(config).ratio)

    best = result.best if result is not None else None
    configs = [config for config, _, _ in bench.usable[:1]] + ([best.config] if best is not None else [])
    first = bench.usable[0] if bench.usable else (None, None, None)
    return Tuned(
        first_steps=first[1],
        first_starts=first[2],
        first_regret=regret(first[0]) if first[0] is not None else None,
        steps=bench.steps,
        starts=bench.starts,
        regret=regret(best.config) if best is not None else None,
        seconds=clock.now - 1000.0,
        trials=result.trials if result is not None else 0,
        is_infeasible=any(replay.exceeds(config, limit_bytes) for config in configs),
        is_wrong=best is not None and _is_wrong(replay, result),
    )


def _is_wrong(replay, result):
    ranking = result.best.ranking
    if ranking is None or ranking.end is RaceEnd.UNDECIDED:
        return False
    known = {config.hash: replay.truth_of(config).ratio for config in _raced(replay, result)}
    return replay.truth_of(result.best.config).ratio > min(known.values()) / (1 - TIE)


def _raced(replay, result):
    hashes = set(result.raced)
    seen = (config for config in itertools.chain(replay.truths, [result.best.config]))
    return [config for config in seen if config.hash in hashes] or [result.best.config]
