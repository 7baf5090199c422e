"""Runs the trials of a search: asks for configs and measures them until nothing is left to gain."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends.interface import Emission
from autorecompute.backends.registry import render
from autorecompute.errors import ScriptError, UsageError
from autorecompute.figures import comparable_steps
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies.folder import write_files
from autorecompute.trials.bench import ONE_STEP, drifts, join, takes_turns
from autorecompute.trials.job import Effort
from autorecompute.tuning.budget import Task
from autorecompute.tuning.ledger import settled
from autorecompute.units import format_count
from autorecompute.waiting import raise_if_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.search import Proposal, Searcher
    from autorecompute.trials import Bench
    from autorecompute.tuning.context import TuningContext
    from autorecompute.tuning.ledger import Ledger

    Hold = Callable[[Sequence[Trial]], list[Trial]]


REFERENCE_STEPS = 3


class TrialRunner:
    """Measures what a searcher proposes.

    Args:
        context: The tuning.
        ledger: Keeps the trials.
        has_reference: True if the config without recompute may be measured beside others.
    """

    def __init__(self, context: TuningContext, ledger: Ledger, *, has_reference: bool = True) -> None:
        self._context, self._ledger, self._has_reference = context, ledger, has_reference
        self._noted: set[str] = set()

    def search(self, searcher: Searcher, hold: Hold, after_trial: Callable[[list[Trial]], None]) -> SearchEnd:
        """Measure until no worker of the study has anything left to gain, or until trials or time are used up.

        ``hold`` holds trials to the limit, and ``after_trial`` is called with all of them after each.
        """
        reference: Reference | None = None
        while True:
            raise_if_over()
            for trial in self._ledger.refresh():
                self._context.progress.trial_ended(trial)
            proposal = self._propose(searcher, hold)
            if isinstance(proposal, SearchEnd):
                if self._ledger.wait():
                    continue
                return proposal
            # Not before: whether the batch runs without recompute may be what another worker is finding out.
            if reference is None:
                known = [trial for trial in settled(self._ledger.trials) if trial.config.is_none]
                has_failed = any(not trial.measurement.outcome.is_measured for trial in known)
                fails = has_failed or not self._has_reference or bool(self._context.why_not_without())
                # No longer than a trial: a script may have just enough steps for one.
                effort = Effort(warmup=1, steps=min(self._context.settings.effort.steps, REFERENCE_STEPS))
                reference = Reference(self._context.bench, effort, is_known_to_fail=fails)
            # What fails on this worker's host alone would be measured as a failure of every config, for all workers.
            if self._ledger.store is None and not proposal.config.is_none and (first := reference.first()) is not None:
                self._check_script(first)
            if self._measure(proposal, reference):
                after_trial(hold(settled(self._ledger.trials)))

    def keep(self, trial: Trial) -> None:
        """Fill the folder of a trial that ended here."""
        folder, versions = self._context.folder.trial(trial.number), self._context.detection.versions
        try:
            rendered = render(trial.config, (), versions, folder)
        except UsageError:  # the outcome says so
            rendered = Emission(variables={})
        self._context.folder.keep_trial(
            trial, self._context.command, rendered.variables, self._context.bench.take_output()
        )
        write_files(rendered.files)

    def _propose(self, searcher: Searcher, hold: Hold) -> Proposal | SearchEnd:
        if self._ledger.is_closing:
            return SearchEnd.NOTHING_LEFT
        held = hold(settled(self._ledger.trials))
        claimed = self._ledger.claimed
        if len(held) + len(claimed) >= self._context.settings.max_trials:
            return SearchEnd.TRIALS
        proposal = searcher.propose(held, claimed)
        if proposal is None or not self._pays(proposal, held):
            return SearchEnd.NOTHING_LEFT
        return proposal if self._context.allows_trial(held) else SearchEnd.TIME

    def _pays(self, proposal: Proposal, trials: Sequence[Trial]) -> bool:
        """Tell whether the training that follows gains more by the trial than that takes."""
        gain, seconds = proposal.gain, self._context.expect(Task.TRIAL)
        if gain is None or self._context.pays(gain, seconds):
            return True
        steps = [step for trial in trials if (step := trial.measurement.median_step_seconds)]
        own_seconds = self._context.budget.expect(Task.TRIAL)
        count = math.ceil(own_seconds / min(steps, default=own_seconds or 1.0))
        self._note_once(f"stopping: {format_count(count, 'more step')} could gain {gain:.2%}")
        return False

    def _measure(self, proposal: Proposal, reference: Reference) -> bool:
        """Tell whether the proposal became a trial; not so where another worker has its config."""
        description = self._context.detection.space.describe(proposal.config)
        with self._ledger.claim(proposal, description) as number:
            if number is None:
                return False
            self._context.progress.trial_begins(number, description, proposal.reason, proposal.prediction)
            began = time.monotonic()
            trial = self._ledger.keep(self._try(number, proposal, description, reference))
            if trial is None:
                return False
            self.keep(trial)
            if trial.measurement.outcome.is_measured:  # one that runs out of memory is over soon
                self._context.budget.learn(Task.TRIAL, time.monotonic() - began)
        self._context.progress.trial_ended(trial)
        for warning in trial.measurement.warnings:
            self._note_once(f"warning: {warning}")
        return True

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._context.note(text)

    def _try(self, number: int, proposal: Proposal, description: str, reference: Reference) -> Trial:
        is_reference = proposal.config.is_none
        settings = self._context.settings
        # A smaller batch is spoken of where a batch was asked for, and a training that goes on is never looked into.
        is_first = not any(trial.measurement.outcome.is_measured for trial in self._ledger.trials)
        effort = replace(settings.effort, looks_at_loss=settings.batch is not None and is_first)
        in_turns = reference.takes_turns and not is_reference
        if not is_reference and not in_turns:
            reference.measure_if_due()
        began = time.monotonic()
        if is_reference:
            measured = self._context.bench.measure(proposal.config, effort)
        else:
            fitting = [trial for trial in settled(self._ledger.trials) if trial.fits]
            measured = reference.measure_beside(proposal.config, effort, self._context.problem.limit_bytes, fitting)
        measurement = measured.under(self._context.problem.limit_bytes)
        elapsed = time.monotonic() - began
        if is_reference:
            self._check_script(measurement)
            reference.note(measurement)
        beside = reference.beside(measurement)
        return Trial(
            number=number,
            config=proposal.config,
            description=description,
            reason=proposal.reason,
            measurement=measurement,
            reference_seconds=beside.median_step_seconds if beside is not None else None,
            reference_cpu_seconds=beside.median_cpu_seconds if beside is not None else None,
            is_reference_disturbed=beside is not None and beside.is_disturbed,
            prediction=proposal.prediction,
            overhead_seconds=max(elapsed - _seconds_of(measurement) - (_seconds_of(beside) if in_turns else 0), 0.0),
        )

    def _check_script(self, measurement: Measurement) -> None:
        outcome = measurement.outcome
        if not outcome.is_measured and not outcome.is_about_memory and outcome is not Outcome.LOST:
            trace = "".join(f"\n  {line}" for line in measurement.trace)
            raise ScriptError(
                f"The script fails without any recompute. {measurement.message}{trace}\n"
                f"Outcome: {outcome}. Its output: {self._context.bench.log}"
            )


LONGEST_INTERVAL = 8
"""Trials between two measurements of the reference on a machine that keeps its pace."""

AGREEMENT = 0.05
"""Two measurements of the reference agree when they differ by no more than this share."""

SLOWEST_PLAUSIBLE, FASTEST_PLAUSIBLE = 0.6, 1.1
"""Throughputs that a config can have beside the reference: at most the forward pass runs twice, nothing gets faster."""


CLEARLY = 0.5
"""A trial is left where it is slower than the best by more than so many deviations of what was measured. That rules
nothing out: who is raced depends on what all trials together tell."""

USUAL_NOISE, LEAST_NOISE = 0.02, 0.01
"""Deviation of a step beside one of the reference, as a share: before the reference tells, and at the least."""

MOST_UNEASE = 4.0
"""On an uneasy machine a trial in turns takes so many times its steps at most."""

MEMORY, LEAST_TELLING = 16, 6
"""So many pairs of steps of the reference tell how far two steps are apart: the last ones, and at the least."""

DEVIATION = 1.4826
"""A normal deviation, in median absolute ones."""


class Reference:
    """The config without recompute, as measured in the last few minutes.

    A machine shared with others slows down and recovers by a factor within minutes, and for a second at a time. Where a
    swap takes no time, each step of a trial is timed beside one of the reference. Elsewhere the reference is measured
    before every trial at first, half as often each time it agrees with the last one, and before every trial again once
    it moved.

    Such a trial takes as long as it takes to know: it is left where it is over the limit or slower than the best.

    Args:
        bench: Measures it.
        effort: Steps of one measurement.
        is_known_to_fail: True if an earlier session saw that the batch does not run without recompute.
    """

    def __init__(self, bench: Bench, effort: Effort, *, is_known_to_fail: bool) -> None:
        self._bench, self._effort = bench, effort
        self._can_run = not is_known_to_fail
        self._latest: Measurement | None = None
        self._interval, self._age = 1, 0
        self._apart: deque[float] = deque(maxlen=MEMORY)

    def first(self) -> Measurement | None:
        """Measure it here now; return ``None`` where that is known."""
        if self._latest is not None or not self._can_run:
            return None
        measurement = self._bench.measure(Config(), self._effort)
        self.note(measurement)
        return measurement

    @property
    def takes_turns(self) -> bool:
        """Tell whether each config is timed in turns with the one without recompute, which runs.

        A card keeps its pace from trial to trial: there the turns of the race suffice.
        """
        return self._can_run and drifts(self._bench) and takes_turns(self._bench)

    def measure_beside(
        self, config: Config, effort: Effort, limit_bytes: float, fitting: Sequence[Trial]
    ) -> Measurement:
        """Measure a config; in turns until it is seen to be over the limit or slower than what fits, if it is."""
        if self.takes_turns:
            return self._measure_in_turns(config, effort, limit_bytes, fitting)
        return self._bench.measure(config, effort)

    def _measure_in_turns(
        self, config: Config, effort: Effort, limit_bytes: float, fitting: Sequence[Trial]
    ) -> Measurement:
        # The step in which live tensors are counted warms up as well.
        own = [self._bench.measure(config, replace(effort, warmup=max(effort.warmup - 1, 1), steps=1))]
        beside: list[Measurement] = []
        starts = self._bench.starts
        while own[-1].outcome.is_measured and len(beside) < effort.steps * self._unease:
            # Back and forth, so that a steady drift cancels.
            turns = [Config()] if not beside else [Config(), config] if len(beside) % 2 else [config, Config()]
            for one in turns:
                (beside if one.is_none else own).append(self._bench.measure(one, ONE_STEP))
            self._take(join(beside))
            if self._bench.starts != starts or not beside[-1].outcome.is_measured:
                break  # each further step could take another start
            if len(beside) % 2 == 0:
                self._learn_noise(beside[-2:])
            if self._is_settled(join(own), limit_bytes, fitting):
                break
        return join(own)

    def _is_settled(self, measurement: Measurement, limit_bytes: float, fitting: Sequence[Trial]) -> bool:
        """Tell whether further steps of a config cannot make it the best."""
        if measurement.under(limit_bytes).outcome is not Outcome.OK:
            return True
        lag = self._lag(measurement, fitting)
        return lag is not None and lag > CLEARLY * self._noise / math.sqrt(len(measurement.step_seconds))

    def _lag(self, measurement: Measurement, fitting: Sequence[Trial]) -> float | None:
        """Return how much longer a step takes than one of the best, as a logarithm; ``None`` where nothing tells."""
        own = _throughput_ratio(self._latest, measurement)
        best = max((trial.relative_throughput or 0.0 for trial in fitting), default=0.0)
        return math.log(best / own) if best and own else None

    @property
    def _noise(self) -> float:
        if len(self._apart) < LEAST_TELLING:
            return USUAL_NOISE
        return max(DEVIATION * statistics.median(self._apart), LEAST_NOISE)

    @property
    def _unease(self) -> float:
        """Return how many times as many steps tell as much as usual."""
        return min(max((self._noise / USUAL_NOISE) ** 2, 1.0), MOST_UNEASE)

    def _learn_noise(self, measurements: Sequence[Measurement]) -> None:
        """Learn from neighbouring steps of the reference how far two steps are apart by chance."""
        is_cpu_time = any(each.is_disturbed for each in measurements) and all(each.cpu_seconds for each in measurements)
        seconds = [step for each in measurements for step in (each.cpu_seconds if is_cpu_time else each.step_seconds)]
        self._apart.extend(abs(math.log(one / other)) for one, other in itertools.pairwise(seconds))

    def measure_if_due(self) -> None:
        """Measure the config without recompute, unless that is known not to run or was measured lately."""
        if self._can_run and (self._latest is None or not self._latest.step_seconds or self._age >= self._interval):
            self.note(self._bench.measure(Config(), self._effort))
        self._age += 1

    def beside(self, measurement: Measurement) -> Measurement | None:
        """Return the reference for a config that was just measured; ``None`` where there is none.

        It is measured anew where the two do not look of one time.
        """
        ratio = _throughput_ratio(self._latest, measurement)
        if ratio is not None and not SLOWEST_PLAUSIBLE <= ratio <= FASTEST_PLAUSIBLE and not self.takes_turns:
            self._age = self._interval
            self.measure_if_due()
        return self._latest

    def note(self, measurement: Measurement) -> None:
        """Take a measurement without recompute."""
        ratio = _throughput_ratio(self._latest, measurement)
        self._take(measurement)
        self._learn_noise([measurement])
        agrees = ratio is not None and abs(1 / ratio - 1) <= AGREEMENT
        self._interval = min(2 * self._interval, LONGEST_INTERVAL) if agrees else 1
        self._age = 0

    def _take(self, measurement: Measurement) -> None:
        self._latest = measurement
        self._can_run = measurement.outcome is not Outcome.OOM


def _seconds_of(measurement: Measurement | None) -> float:
    return 0.0 if measurement is None else measurement.warmup_seconds + sum(measurement.step_seconds)


def _throughput_ratio(reference: Measurement | None, measurement: Measurement) -> float | None:
    """Step time of the reference over that of a measurement; ``None`` where either has no steps."""
    if reference is None:
        return None
    reference_seconds, seconds = comparable_steps([reference, measurement])
    return reference_seconds / seconds if reference_seconds and seconds else None
