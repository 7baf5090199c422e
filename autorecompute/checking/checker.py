"""Whether a stored config is still valid here: its plans, its identity, its peak, its gradients and its speed.

One process of the script is enough: the plans are detected as its first session is made, the config is measured on it,
its gradients are compared, and it takes turns with no recompute where the batch fits without.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.checking.rules import check_gradients, check_peak, check_plans, check_relative, check_speed
from autorecompute.errors import ScriptError, UsageError
from autorecompute.figures import comparable_steps
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.result import Best, Result
from autorecompute.studies.checked import CheckLine, CheckReport, CheckVerdict
from autorecompute.studies.identity import compare
from autorecompute.studies.problem import Problem, Sizes
from autorecompute.trials.effort import Effort
from autorecompute.trials.lock import hold_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.training_job import Detection
    from autorecompute.trials.bench import Bench

ROUNDS = 3
"""So often the config and no recompute take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a study has to be held against.

    Attributes:
        study: Its name.
        problem: Its problem, at the batch of its best config.
        sizes: The sizes that was met at.
        result: Its answer.
        best: The config of that.
        trials: What it measured.
        has_knobs: Whether other settings were kept, which may make another graph than the problem's.
    """

    study: str
    problem: Problem
    sizes: Sizes
    result: Result
    best: Best
    trials: tuple[Trial, ...]
    has_knobs: bool = False

    @property
    def steps_peak_bytes(self) -> int | None:
        """Return the peak of the config's steps, as its trial had it; the peak of its whole process is above that."""
        peaks = [trial.measurement.peak_bytes for trial in self.trials if trial.config == self.best.config]
        return next((peak for peak in peaks if peak is not None), None)


class Checker:
    """Checks one config on one process.

    Args:
        bench: Where the script runs, under the knobs that were kept.
        stored: What it is held against.
        steps: Timed steps in each window.
        on_note: Called with a sentence on what goes on.
    """

    def __init__(self, bench: Bench, stored: Stored, steps: int, on_note: Callable[[str], None]) -> None:
        self._bench, self._stored, self._on_note = bench, stored, on_note
        self._effort = Effort(warmup=1, steps=steps)
        self._lines: list[CheckLine] = []
        self._measured: list[Measurement] = []
        self._ratios: list[float] = []

    def run(self, command: tuple[str, ...]) -> CheckReport:
        """Return what was found.

        Raises:
            ScriptError: the script fails by itself.
            SetupError: the installation lacks something.
            UsageError: the command gives another batch.
        """
        detection = self._bench.detect()
        plans = check_plans(self._stored.best.config, detection)
        self._lines.append(plans)
        self._check_identity(detection)
        # Plans that are gone are gone at any batch, and the rest would be measured without them.
        if plans.verdict is not CheckVerdict.FAILS:
            self._require_batch(detection.batch)
            with hold_device(detection.device, f"check of study {self._stored.study}", self._on_note):
                self._measure(is_same_device=self._is_same_device(detection))
        return self._report(command)

    def _require_batch(self, batch: int) -> None:
        stored = self._stored
        if batch != stored.best.batch:
            raise UsageError(
                f"The command gives a batch of {batch}, and study '{stored.study}' is about {stored.best.batch}. "
                "Give the script that batch, or write {batch} where its arguments take it."
            )

    def _check_identity(self, detection: Detection) -> None:
        stored = self._stored
        problem = Problem.of(detection, stored.problem.limit_bytes)
        here = {**problem.parts, **Sizes.of(detection).parts}
        there = {**problem.seen_here(stored.problem).parts, **stored.sizes.parts}
        if stored.has_knobs:
            # What was detected under them is not what the study began with.
            here, there = ({**parts, "graph": "", "plans": ""} for parts in (here, there))
        differences = compare(here, there)
        self._lines += [
            CheckLine(what=found.part, stored=found.there, here=found.here, verdict=CheckVerdict.DIFFERS)
            for found in differences
        ]
        if not differences:
            digest = stored.problem.digest
            self._lines.append(CheckLine(what="problem", stored=digest, here="the same"))

    def _is_same_device(self, detection: Detection) -> bool:
        here = Problem.of(detection, 0)
        there = here.seen_here(self._stored.problem)
        return (here.device, here.device_bytes) == (there.device, there.device_bytes)

    def _measure(self, *, is_same_device: bool) -> None:
        best, result = self._stored.best, self._stored.result
        if not self._take(best.config).outcome.is_measured:
            return
        if not best.config.is_none:
            self._on_note("comparing its gradients with those without recompute")
            self._lines.append(check_gradients(self._bench.check(best.config)))
        can_compare = not best.config.is_none and best.relative_throughput is not None
        if can_compare and result.baseline.outcome is not Outcome.OOM:
            self._take_turns()
        else:
            self._repeat()
        self._lines.insert(1, check_peak(self._peak_bytes, self._stored.steps_peak_bytes, best))
        if self._ratios:
            self._lines.append(check_relative(self._ratios, best))
        else:
            self._lines.append(check_speed(self._rates, best, is_same_device=is_same_device))

    def _take_turns(self) -> None:
        for number in range(1, ROUNDS + 1):
            self._on_note(f"round {number} of {ROUNDS}, beside no recompute")
            reference = self._bench.measure(Config(), self._effort)
            reference_seconds, seconds = comparable_steps([reference, self._take(self._stored.best.config)])
            if not reference_seconds or not seconds:
                return
            self._ratios.append(reference_seconds / seconds)

    def _repeat(self) -> None:
        for _ in range(ROUNDS - 1):
            if not self._take(self._stored.best.config).outcome.is_measured:
                return

    def _take(self, config: Config) -> Measurement:
        """Return a window of the stored config; one that fails speaks against it, whenever it comes."""
        measurement = self._bench.measure(config, self._effort)
        if measurement.outcome.is_measured:
            self._measured.append(measurement)
        else:
            self._fail(measurement)
        return measurement

    def _fail(self, measurement: Measurement) -> None:
        if measurement.outcome is Outcome.SCRIPT_ERROR:
            trace = "".join(f"\n  {line}" for line in measurement.trace)
            raise ScriptError(f"The script fails. {measurement.message}{trace}\nIts output: {self._bench.log}")
        self._lines.append(
            CheckLine(
                what="steps",
                stored=str(Outcome.OK),
                here=str(measurement.outcome),
                verdict=CheckVerdict.FAILS,
                note=measurement.message,
            )
        )

    @property
    def _peak_bytes(self) -> int:
        return max(measurement.peak_bytes or 0 for measurement in self._measured)

    @property
    def _rates(self) -> list[float]:
        return [rate for measurement in self._measured if (rate := measurement.samples_per_second) is not None]

    def _report(self, command: tuple[str, ...]) -> CheckReport:
        report = CheckReport(
            study=self._stored.study,
            config=self._stored.best.description,
            command=command,
            lines=tuple(self._lines),
            limit_bytes=self._stored.problem.limit_bytes,
        )
        if not self._measured:
            return report
        return replace(
            report,
            peak_bytes=self._peak_bytes,
            samples_per_second=statistics.median(self._rates),
            relative_throughput=statistics.median(self._ratios) if self._ratios else None,
        )
