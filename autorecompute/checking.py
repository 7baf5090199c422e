"""Holds a stored answer against this machine."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import ScriptError, UsageError
from autorecompute.figures import comparable_steps
from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.studies.checked import CheckLine, CheckReport, CheckVerdict
from autorecompute.studies.problem import Problem, Sizes, compare
from autorecompute.trials.job import Effort
from autorecompute.trials.private import hold_device
from autorecompute.units import format_bytes, format_count, format_rate, format_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import GradientCheck, Trial
    from autorecompute.result import Best, Bucket, Result
    from autorecompute.studies.problem import Head
    from autorecompute.training_job import Detection
    from autorecompute.trials.bench import Bench


PEAK_TOLERANCE = 0.05  # a peak that differs by more than this share is reported, even within the limit

PEAK_NOISE = 0.01
"""Peaks of the same steps differ by this share from process to process, on a CPU. No card lets more than the limit."""

RELATIVE_TOLERANCE = 0.15
"""Even the best round is slower than stored by more than this share where a config fails: taken side by side, the
throughput relative to no recompute hardly depends on what else the machine does."""

LOOSEST = 0.30
"""Largest loss of throughput: where the stored one was known less well, its interval counts, down to this share below
it."""

RATE_TOLERANCE = 0.30  # the same for samples/s, which processes minutes apart on a shared machine do not agree about

BROKEN = {Outcome.CRASH, Outcome.HANG, Outcome.TIMEOUT}
"""Ends of a process by its orders. Others end for want of memory, or by the script."""


def check_plans(config: Config, detection: Detection) -> CheckLine:
    """Tell whether the model still offers every choice of the config: some training systems ignore others silently."""
    known = [choice for plan in detection.plans for choice in plan.choices]
    missing = sorted(str(on) for on in config.choices if not any(on.covers(choice) for choice in known))
    if config in detection.space.opaque_presets.values():
        missing = []
    return CheckLine(
        what="plans",
        stored=f"{format_count(len(config.choices), 'choice')} on",
        here=f"{len(config.choices) - len(missing)} detected",
        verdict=CheckVerdict.FAILS if missing else CheckVerdict.OK,
        note=f"{', '.join(missing)} would be ignored" if missing else "",
    )


def check_peak(peak_bytes: int, stored_bytes: int | None, best: Best) -> CheckLine:
    """Return the peak of the steps beside the limit, and beside what the config's trial had."""
    stored = best.peak_bytes if stored_bytes is None else stored_bytes
    expected = peak_bytes + best.peak_bytes - stored
    verdict, note = CheckVerdict.OK, f"limit {format_bytes(best.limit_bytes)}"
    if peak_bytes > best.limit_bytes:
        is_noise = peak_bytes <= best.limit_bytes * (1 + PEAK_NOISE)
        verdict = CheckVerdict.DIFFERS if is_noise else CheckVerdict.FAILS
        above = format_bytes(peak_bytes - best.limit_bytes)
        note = f"{above} above the limit{', as peaks of the same steps may be' if is_noise else ''}"
    elif expected > best.limit_bytes:
        verdict = CheckVerdict.DIFFERS
        note = f"a whole process may need {format_bytes(expected)}, above the limit of {format_bytes(best.limit_bytes)}"
    elif abs(peak_bytes / stored - 1) > PEAK_TOLERANCE:
        verdict = CheckVerdict.DIFFERS
    return CheckLine(
        what="peak of a step", stored=format_bytes(stored), here=format_bytes(peak_bytes), verdict=verdict, note=note
    )


def check_gradients(check: GradientCheck | Measurement) -> CheckLine:
    """Return the gradients beside those without recompute, which have to be compared."""
    here, verdict, note = "not compared", CheckVerdict.NOT_COMPARED, check.message
    if isinstance(check, Measurement):
        verdict = CheckVerdict.FAILS if check.outcome in BROKEN else verdict
        note = f"{check.outcome}: {check.message}"
    elif check.steps:
        here = "wrong" if not check.agrees else "equal" if check.worst == 0 else f"within {check.worst:.1e}"
        verdict = CheckVerdict.OK if check.agrees else CheckVerdict.FAILS
        note = check.message or ("" if check.agrees else f"{check.parameter} is off by {check.worst:.1e}")
    return CheckLine(what="gradients", stored="equal", here=here, verdict=verdict, note=note)


def check_relative(ratios: Sequence[float], best: Best) -> CheckLine:
    """Throughput as a share of that without recompute, from rounds beside it."""
    stored = best.relative_throughput
    assert stored is not None, "rounds beside no recompute need a stored ratio"
    least = stored * (1 - RELATIVE_TOLERANCE)
    if best.relative_low is not None:
        least = min(least, max(best.relative_low, stored * (1 - LOOSEST)))
    note = f"the best round counts, at least {least:.2f}x is wanted"
    return _speed_line("relative throughput", f"{stored:.2f}x", ratios, "{:.2f}".format, "x", least=least, note=note)


def check_speed(rates: Sequence[float], best: Best, *, is_same_device: bool) -> CheckLine:
    """Samples/s, on the device that they were stored for."""
    least = best.samples_per_second * (1 - RATE_TOLERANCE) if is_same_device else 0.0
    wanted = f"the best window counts, at least {format_rate(least)} are wanted"
    note = wanted if is_same_device else "another device: not compared"
    stored = format_rate(best.samples_per_second)
    line = _speed_line("throughput", stored, rates, format_samples, " samples/s", least=least, note=note)
    return line if is_same_device else replace(line, verdict=CheckVerdict.NOT_CHECKED)


def _speed_line(  # noqa: PLR0913  (what a figure is printed with, and held against)
    what: str, stored: str, found: Sequence[float], form: Callable[[float], str], unit: str, *, least: float, note: str
) -> CheckLine:
    here = f"{form(statistics.median(found))}{unit} ({form(min(found))}-{form(max(found))})"
    verdict = CheckVerdict.OK if max(found) >= least else CheckVerdict.FAILS
    return CheckLine(what=what, stored=stored, here=here, verdict=verdict, note=note)


ROUNDS = 3  # so often the config and no recompute take turns


class Checker:
    """Checks a study's best config on one process, where the script runs under the knobs that were kept."""

    def __init__(  # noqa: PLR0913, PLR0917  (the parts of a study that are compared, and how)
        self,
        bench: Bench,
        head: Head,
        result: Result,
        trials: Sequence[Trial],
        steps: int,
        on_note: Callable[[str], None],
    ) -> None:
        self._bench, self._result, self._trials, self._on_note = bench, result, trials, on_note
        assert result.best is not None, "a check is about a config to train with"
        self._best = result.best
        self._problem, self._sizes = replace(head.problem, batch=self._best.batch), head.sizes
        self._effort = Effort(warmup=1, steps=steps)
        self._lines: list[CheckLine] = []
        self._measured: list[Measurement] = []
        self._ratios: list[float] = []

    def run(self, command: tuple[str, ...]) -> CheckReport:
        """Return the report; raises ``ScriptError`` where the script fails, ``UsageError`` for another batch."""
        detection = self._bench.detect()
        plans = check_plans(self._best.config, detection)
        self._lines.append(plans)
        self._check_identity(detection)
        # Plans that are gone are gone at any batch, and the rest would be measured without them.
        if plans.verdict is not CheckVerdict.FAILS:
            if detection.batch != self._best.batch:
                raise UsageError(
                    f"The command gives a batch of {detection.batch}, and study '{self._result.study}' is about "
                    f"{self._best.batch}. Give the script that batch, or write {{batch}} where its arguments take it."
                )
            here = Problem.of(detection, 0)
            there = here.seen_here(self._problem)
            is_same_device = (here.device, here.device_bytes) == (there.device, there.device_bytes)
            with hold_device(detection.device, f"check of study {self._result.study}", self._on_note):
                self._measure(is_same_device=is_same_device)
        return self._report(command)

    def _check_identity(self, detection: Detection) -> None:
        problem = Problem.of(detection, self._problem.limit_bytes)
        here = {**problem.parts, **Sizes.of(detection).parts}
        there = {**problem.seen_here(self._problem).parts, **self._sizes.parts}
        if self._best.knobs:
            # What was detected under other settings is not what the study began with: they may make another graph.
            here, there = ({**parts, "graph": "", "plans": ""} for parts in (here, there))
        self._lines += [
            CheckLine(what=found.part, stored=found.there, here=found.here, verdict=CheckVerdict.DIFFERS)
            for found in compare(here, there)
        ] or [CheckLine(what="problem", stored=self._problem.digest, here="the same")]

    def _measure(self, *, is_same_device: bool) -> None:
        best = self._best
        if not self._take(best.config).outcome.is_measured:
            return
        if not best.config.is_none:
            self._on_note("comparing its gradients with those without recompute")
            self._lines.append(check_gradients(self._bench.check(best.config)))
        can_compare = not best.config.is_none and best.relative_throughput is not None
        if can_compare and self._result.baseline.outcome is not Outcome.OOM:
            self._take_turns()
        else:
            all(self._take(best.config).outcome.is_measured for _ in range(ROUNDS - 1))  # until one is not
        self._lines.insert(1, check_peak(self._peak_bytes, self._stored_peak_bytes, best))
        if self._ratios:
            self._lines.append(check_relative(self._ratios, best))
        else:
            self._lines.append(check_speed(self._rates, best, is_same_device=is_same_device))
        for bucket in best.buckets:
            self._check_bucket(bucket)

    def _check_bucket(self, bucket: Bucket) -> None:
        """Check the config of shorter batches at their longest length."""
        best, at = self._best, f"at {bucket.length} tokens"
        self._on_note(f"measuring batches of {bucket.length} tokens: {bucket.description}")
        if not self._bench.is_live:  # a process begins with its longest batch
            self._bench.measure(best.config, Effort(warmup=1, steps=1))
        effort = Effort(warmup=2, steps=self._effort.steps, length=bucket.length)
        found = self._bench.measure(bucket.config, effort)
        if found.peak_bytes is None:
            fails = CheckVerdict.FAILS
            line = CheckLine(
                what=f"steps {at}", stored="ok", here=str(found.outcome), verdict=fails, note=found.message
            )
            self._lines.append(line)
            return
        beyond_bytes = best.peak_bytes - (self._stored_peak_bytes or best.peak_bytes)
        whole = replace(best, peak_bytes=bucket.peak_bytes + beyond_bytes)
        lines = [check_peak(found.peak_bytes, bucket.peak_bytes, whole)]
        if not bucket.config.is_none:
            lines.append(check_gradients(self._bench.check(bucket.config)))
        self._lines += [replace(line, what=f"{line.what} {at}") for line in lines]

    def _take_turns(self) -> None:
        for number in range(1, ROUNDS + 1):
            self._on_note(f"round {number} of {ROUNDS}, beside no recompute")
            reference = self._bench.measure(Config(), self._effort)
            reference_seconds, seconds = comparable_steps([reference, self._take(self._best.config)])
            if not reference_seconds or not seconds:
                return
            self._ratios.append(reference_seconds / seconds)

    def _take(self, config: Config) -> Measurement:
        """Return a window of the stored config; one that fails speaks against it, whenever it comes."""
        measurement = self._bench.measure(config, self._effort)
        outcome, note = measurement.outcome, measurement.message
        if outcome is Outcome.SCRIPT_ERROR:
            trace = "".join(f"\n  {line}" for line in measurement.trace)
            raise ScriptError(f"The script fails. {note}{trace}\nIts output: {self._bench.log}")
        if outcome.is_measured:
            self._measured.append(measurement)
        else:
            line = CheckLine(what="steps", stored="ok", here=str(outcome), verdict=CheckVerdict.FAILS, note=note)
            self._lines.append(line)
        return measurement

    @property
    def _stored_peak_bytes(self) -> int | None:
        """Return the peak of the config's steps, as its trial had it; the peak of its whole process is above that."""
        peaks = [trial.measurement.peak_bytes for trial in self._trials if trial.config == self._best.config]
        return next((peak for peak in peaks if peak is not None), None)

    @property
    def _peak_bytes(self) -> int:
        return max(measurement.peak_bytes or 0 for measurement in self._measured)

    @property
    def _rates(self) -> list[float]:
        return [rate for measurement in self._measured if (rate := measurement.samples_per_second) is not None]

    def _report(self, command: tuple[str, ...]) -> CheckReport:
        has_steps = bool(self._measured)
        invalid = {CheckVerdict.FAILS, CheckVerdict.NOT_COMPARED}
        return CheckReport(
            valid=all(line.verdict not in invalid for line in self._lines),
            study=self._result.study,
            config=self._best.description,
            command=command,
            lines=tuple(self._lines),
            limit_bytes=self._problem.limit_bytes,
            peak_bytes=self._peak_bytes if has_steps else None,
            samples_per_second=statistics.median(self._rates) if has_steps else None,
            relative_throughput=statistics.median(self._ratios) if self._ratios else None,
        )
