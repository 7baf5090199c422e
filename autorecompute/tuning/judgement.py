"""From trials to an answer: races the finalists, confirms the winner in a fresh process, and weighs it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends import emission_of
from autorecompute.measurement import GradientCheck, Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH
from autorecompute.plans.worth import explain_worthless
from autorecompute.result import Best, Figures, Ranking, Rejection, Result, Verdict
from autorecompute.studies.folder import write_atomically
from autorecompute.tuning.race import FINALISTS, Raced, race
from autorecompute.tuning.rival import MARGIN, measure_rival
from autorecompute.tuning.standings import Standing, finalists
from autorecompute.units import MIB, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Detection
    from autorecompute.studies import Problem
    from autorecompute.tuning.rejections import Rejections
    from autorecompute.tuning.settings import Workplace

CONFIRMATIONS = 5
"""So many finalists get the chance to confirm themselves before nothing is said to fit."""


WHOLE_PROCESS_SHARE = 0.05
"""What a whole process, its start and export included, needs beyond its timed steps, as a rule."""


class Judgement:
    """Finds the answer to a study whose search has ended.

    Args:
        place: What it works with.
        rejections: Who cannot be the answer; those that are found out here are added.
    """

    def __init__(self, place: Workplace, rejections: Rejections) -> None:
        self._job, self._bench, self._folder = place.job, place.bench, place.folder
        self._settings, self._progress = place.settings, place.progress
        self._rejections = rejections
        self._ranked: tuple[Config, Ranking] | None = None
        self._raced: dict[str, float] = {}

    def decide(
        self, trials: Sequence[Trial], detection: Detection, problem: Problem, *, deadline_seconds: float = math.inf
    ) -> Result:
        """The answer, with everything in it measured.

        Args:
            trials: What the search measured.
            detection: What the job is.
            problem: What has to be solved.
            deadline_seconds: Time on the monotonic clock at which the race between the finalists has to end.
        """
        by_hash = {trial.config.hash: trial for trial in trials}
        baseline = by_hash.get(Config().hash)
        remaining = self._rejections.remaining(trials)
        best = self._confirm(self._rank(remaining, baseline, detection, deadline_seconds), detection, problem)
        rival = self._measure_rival(best, baseline, detection, problem)
        return Result(
            study=self._folder.name,
            problem=problem.digest,
            verdict=judge_recompute(best, rival),
            best=best,
            baseline=Figures.of(baseline),
            presets={
                name: Figures.of(by_hash.get(config.hash))
                for name, config in detection.space.presets().items()
                if not config.is_none
            },
            rival=_figures_of(rival),
            raced=self._raced,
            warnings=tuple(dict.fromkeys(text for trial in trials for text in trial.measurement.warnings)),
            unconfirmed=self._rejections.sentences,
            trials=len(trials),
            device=detection.device,
            versions=detection.versions,
            command=self._job.plain_command(self._settings.batch),
            command_gives_batch=self._settings.batch is None or self._job.takes_batch,
            wrap=self._job.wrap,
        )

    def _rank(
        self, trials: Sequence[Trial], baseline: Trial | None, detection: Detection, deadline_seconds: float
    ) -> list[Standing]:
        standings = finalists(trials)
        front = standings[:FINALISTS]
        has_reference = baseline is not None and baseline.measurement.outcome.is_measured
        is_needless = len(front) == 1 and not has_reference
        if not front or is_needless or front[0].trial.config.is_none:
            return standings
        names = ", ".join(detection.space.describe(entry.trial.config) for entry in front)
        racing = "racing the finalists in interleaved rounds" if len(front) > 1 else "measuring once more, in rounds"
        self._progress.note(f"{racing}: {names}")
        raced = race(self._bench, front, has_reference=has_reference, deadline_seconds=deadline_seconds)
        self._keep(raced)
        return [*raced.standings, *standings[FINALISTS:]]

    def _keep(self, raced: Raced) -> None:
        self._folder.write("race.json", raced.as_plain())
        speeds = {entry.trial.config.hash: entry.relative_throughput for entry in raced.standings if entry.ratios}
        self._raced = {config: speed for config, speed in speeds.items() if speed is not None}
        if raced.ranking is not None:
            winner = raced.standings[0].trial
            self._ranked = (winner.config, raced.ranking)
            self._progress.note(f"{winner.description}: {raced.ranking.sentence}")

    def _confirm(self, standings: Sequence[Standing], detection: Detection, problem: Problem) -> Best | None:
        emission = emission_of(detection.versions["backend"])
        for standing in standings[:CONFIRMATIONS]:
            config = standing.trial.config
            description = detection.space.describe(config)
            gradients = self._check_gradients(config, detection)
            if gradients is not None and not gradients.agrees:
                continue
            self._progress.note(f"confirming in a fresh process: {description}")
            environment = emission.environment_for(
                config, ort_version=detection.versions["onnxruntime"], plans_file=self._folder.plans_file
            )
            write_atomically(self._folder.plans_file, emission.plans_file_text(config))
            measurement = self._bench.watch(environment, self._settings.effort, self._settings.batch)
            failure = _why_unconfirmed(measurement, problem.limit_bytes)
            if failure is None:
                best = _best(standing, description, environment, measurement, problem)
                return replace(best, gradients=gradients, ranking=self._ranking_of(config))
            self._progress.note(f"not confirmed: {description}: {failure}")
            self._reject_for_memory(standing, measurement, f"{description}: {failure}")
        return None

    def _ranking_of(self, config: Config) -> Ranking | None:
        # Who comes next where the winner is not confirmed was never compared with the rest at that confidence.
        winner, ranking = self._ranked or (None, None)
        return ranking if config == winner else None

    def _reject_for_memory(self, standing: Standing, measurement: Measurement, reason: str) -> None:
        peak_bytes = measurement.peak_bytes
        outcome = Outcome.OVER_LIMIT if measurement.outcome is Outcome.OK else measurement.outcome
        # Whatever else ended the process may not end the next one.
        if outcome.is_about_memory:
            excess_bytes = None if peak_bytes is None else peak_bytes - standing.peak_bytes
            config = standing.trial.config
            self._rejections.add(Rejection(config=config, outcome=outcome, reason=reason, excess_bytes=excess_bytes))

    def _check_gradients(self, config: Config, detection: Detection) -> GradientCheck | None:
        if config.is_none:
            return None
        check, description = self._compare(config), detection.space.describe(config)
        if not check.steps:
            # What kept the worker from comparing may not keep the next one.
            self._progress.note(f"not confirmed: {description}: its gradients were not compared, {check.message}")
        elif not check.agrees:
            wrong = [
                plan.name for plan in detection.space.plans_of(config) if not self._compare(Config.of([plan])).agrees
            ]
            culprits = f", by {' and '.join(wrong)}" if wrong else ", by its plans together"
            reason = f"{description} has wrong gradients{culprits}: {check.message.rstrip('.')}"
            self._progress.note(f"{Outcome.WRONG_GRADIENT}: {reason}")
            self._rejections.add(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason))
        return check

    def _compare(self, config: Config) -> GradientCheck:
        check = self._bench.check(config)
        if isinstance(check, Measurement):
            return GradientCheck(agrees=False, worst=math.nan, steps=0, message=f"{check.outcome}: {check.message}")
        if not check.agrees and not check.message:
            return replace(check, message=f"{check.parameter} is off by {check.worst:.1e} of its largest gradient")
        return check

    def _measure_rival(
        self, best: Best | None, baseline: Trial | None, detection: Detection, problem: Problem
    ) -> Measurement | None:
        if best is None or best.config.is_none or self._settings.batch is None:
            return None
        self._progress.note("measuring the largest batch that fits without recompute")
        return measure_rival(
            self._bench,
            self._settings.effort,
            problem,
            resting_bytes=detection.resting_bytes,
            peak_bytes=baseline.measurement.peak_bytes if baseline else None,
        )


def judge_recompute(best: Best | None, rival: Measurement | None) -> Verdict:
    """What the winner and its rival say about recompute."""
    if best is None:
        return Verdict.NO_FIT
    if best.config.is_none:
        return Verdict.NOT_NEEDED
    rival_speed = rival.samples_per_second if rival else None
    if rival_speed is not None and rival_speed > best.samples_per_second * (1 + MARGIN):
        return Verdict.DOES_NOT_PAY
    return Verdict.RECOMPUTE_PAYS


def explain_no_fit(
    trials: Sequence[Trial], detection: Detection, limit_bytes: int, unconfirmed: Sequence[str] = ()
) -> str:
    """A sentence on the least peak seen, and what it would take to fit.

    Args:
        trials: All that was measured.
        detection: What the job is.
        limit_bytes: What no config holds.
        unconfirmed: What else than memory kept configs that fit from being confirmed, in words.
    """
    if not trials:
        return "The time was over before the first trial. Give it more with --timeout."
    peaks = {trial.measurement.peak_bytes: trial for trial in trials if trial.measurement.peak_bytes is not None}
    if not peaks:
        way_out = f"Train with a smaller batch: --target-batch {detection.batch // 2}"
        return (
            f"No config holds {format_bytes(limit_bytes)}, and none ran to its end. "
            f"{way_out if detection.batch > 1 else 'Train a smaller model.'}{_explain_detected(detection)}"
        )
    least = min(peaks)
    if least <= limit_bytes and unconfirmed:
        return f"No config was confirmed. {unconfirmed[0]}. Train without recompute at a smaller batch."
    if least <= limit_bytes:
        return (
            f"{peaks[least].description} held {format_bytes(limit_bytes)} while it trained, with "
            f"{format_bytes(least)}, but its whole process did not. "
            f"Try --memory-limit {-(-limit_bytes * 11 // 10 // MIB)}MiB."
        )
    enough = round(least * (1 + WHOLE_PROCESS_SHARE))
    share = (limit_bytes - detection.resting_bytes) / max(enough - detection.resting_bytes, 1)
    batch = int(detection.batch * share)
    smaller = f", or --target-batch {batch}" if 0 < batch < detection.batch else ""
    return (
        f"No config holds {format_bytes(limit_bytes)} in {format_count(len(trials), 'trial')}. The least peak was "
        f"{format_bytes(least)} with {peaks[least].description}. Try --memory-limit {-(-enough // MIB)}MiB{smaller}."
        f"{_explain_detected(detection)}"
    )


def _explain_detected(detection: Detection) -> str:
    reason = explain_worthless(detection.plans, {**detection.dims, BATCH: detection.batch})
    return f" {reason}" if reason else ""


def _why_unconfirmed(measurement: Measurement, limit_bytes: int) -> str | None:
    if measurement.outcome is not Outcome.OK or measurement.peak_bytes is None:
        return f"{measurement.outcome}: {measurement.message}"
    if measurement.peak_bytes > limit_bytes:
        return f"its whole process reaches {format_bytes(measurement.peak_bytes)}"
    return None


def _best(
    standing: Standing, description: str, environment: dict[str, str], measurement: Measurement, problem: Problem
) -> Best:
    assert measurement.peak_bytes is not None, "a confirmed run has a peak"
    assert measurement.samples_per_second is not None, "a confirmed run has steps"
    low, high = standing.spread or (None, None)
    return Best(
        config=standing.trial.config,
        description=description,
        environment=environment,
        batch=problem.batch,
        samples_per_second=measurement.samples_per_second,
        relative_throughput=standing.relative_throughput,
        relative_low=low,
        relative_high=high,
        peak_bytes=measurement.peak_bytes,
        limit_bytes=problem.limit_bytes,
        losses=measurement.losses,
        confirmed=True,
    )


def _figures_of(rival: Measurement | None) -> Figures | None:
    if rival is None:
        return None
    return Figures(
        outcome=rival.outcome,
        samples_per_second=rival.samples_per_second,
        peak_bytes=rival.peak_bytes,
        batch=rival.batch,
    )
