"""From trials to an answer: races the finalists, confirms the winner in a fresh process, and weighs it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.figures import Figures
from autorecompute.result import Ranking, Result
from autorecompute.tuning.answer.race import FINALISTS, Raced, race
from autorecompute.tuning.answer.race_record import keep_race, known_race
from autorecompute.tuning.answer.standings import Standing, finalists
from autorecompute.tuning.answer.weighing import Scales, Weighed, judge_recompute, needs_rival
from autorecompute.tuning.budget import Task
from autorecompute.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Detection, Trial
    from autorecompute.plans import Config
    from autorecompute.result import Best
    from autorecompute.studies import Problem
    from autorecompute.tuning.answer.confirmation import Confirmer
    from autorecompute.tuning.answer.rejections import Rejections
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import Workplace

CONFIRMATIONS = 5
"""So many finalists get the chance to confirm themselves before nothing is said to fit."""


RACE_SHARE = 0.5
"""Of the time that the search took, so much may be spent on being sure about the last few percent."""


class Judgement:
    """Finds the answer to a study whose search has ended.

    Args:
        place: What it works with.
        rejections: Who cannot be the answer.
        confirmer: Has configs confirmed.
        budget: The time there is.
    """

    def __init__(self, place: Workplace, rejections: Rejections, confirmer: Confirmer, budget: Budget) -> None:
        self._place = place
        self._job, self._bench, self._folder = place.job, place.bench, place.folder
        self._settings, self._progress = place.settings, place.progress
        self._rejections, self._confirmer, self._budget = rejections, confirmer, budget
        self.ran_out = False
        """Whether the last decision was made without time to confirm all that should have been."""
        self._ranked: tuple[Config, Ranking] | None = None
        self._raced: dict[str, float] = {}

    def decide(
        self,
        trials: Sequence[Trial],
        detection: Detection,
        problem: Problem,
        *,
        steps: Mapping[int, float],
        search_seconds: float,
    ) -> Result:
        """The answer, with everything in it measured.

        Args:
            trials: What the search measured.
            steps: What their steps should really take, by number: who is raced depends on it.
            detection: What the job is.
            problem: What has to be solved.
            search_seconds: What the search took.
        """
        self.ran_out = False
        baseline = _baseline_of(trials)
        deadline_seconds = time.monotonic() + RACE_SHARE * search_seconds
        standings = self._rank(
            finalists(self._rejections.remaining(trials), steps),
            trials,
            detection,
            limit_bytes=problem.limit_bytes,
            deadline_seconds=deadline_seconds,
        )
        was_confirmed = self._confirmer.configs
        best = self._confirm(standings, detection)
        weighed, compared = Weighed(), True
        if best is not None and needs_rival(best, self._settings):
            scales = Scales(self._place, self._budget, detection, problem)
            weighed = scales.weigh(best, baseline, is_just_confirmed=best.config not in was_confirmed)
            compared = weighed.rival is not None or self._budget.allows(Task.CONFIRMATION)
            if compared and weighed.rival is None:
                self._progress.note("no smaller batch without recompute could be measured")
        if not compared:
            self._progress.note("no time left to compare with a smaller batch without recompute")
        compared = compared and not self.ran_out and not (best is None and self._may_be_confirmed(trials))
        return self.compose(best, weighed, trials, detection, problem, compared=compared)

    def compose(  # noqa: PLR0913  (what an answer is made of)
        self,
        best: Best | None,
        weighed: Weighed,
        trials: Sequence[Trial],
        detection: Detection,
        problem: Problem,
        *,
        compared: bool,
    ) -> Result:
        """The answer that these make.

        Args:
            best: The winner, if there is one.
            weighed: How it compares with the largest batch that fits without recompute.
            trials: What the search measured.
            detection: What the job is.
            problem: What had to be solved.
            compared: Whether a rival was looked for, or need not be.
        """
        by_hash = {trial.config.hash: trial for trial in trials}
        return Result(
            study=self._folder.name,
            problem=problem.digest,
            verdict=judge_recompute(best, weighed.comparison),
            best=best,
            baseline=Figures.of(_baseline_of(trials)),
            presets={
                name: Figures.of(by_hash.get(config.hash))
                for name, config in detection.space.presets.items()
                if not config.is_none
            },
            rival=weighed.rival,
            comparison=weighed.comparison,
            compared=compared,
            raced=self._raced,
            warnings=tuple(dict.fromkeys(text for trial in trials for text in trial.measurement.warnings)),
            unconfirmed=(*self._rejections.sentences, *self._confirmer.failures),
            trials=len(trials),
            device=detection.device,
            versions=detection.versions,
            command=self._job.plain_command(self._settings.batch),
            command_gives_batch=self._settings.batch is None or self._job.takes_batch,
            wrap=self._job.wrap,
        )

    def compose_early(self, trials: Sequence[Trial], detection: Detection, problem: Problem) -> Result:
        """The answer so far: the fastest that was confirmed, compared with nothing."""
        best = self._confirmer.best
        if best is not None:
            best = replace(best, ranking=self._ranking_of(best.config))
        compared = not needs_rival(best, self._settings)
        return self.compose(best, Weighed(), trials, detection, problem, compared=compared)

    def _rank(
        self,
        standings: list[Standing],
        trials: Sequence[Trial],
        detection: Detection,
        *,
        limit_bytes: int,
        deadline_seconds: float,
    ) -> list[Standing]:
        front, baseline = standings[:FINALISTS], _baseline_of(trials)
        has_reference = baseline is not None and baseline.measurement.outcome.is_measured
        is_needless = len(front) == 1 and not has_reference
        if not front or is_needless or front[0].trial.config.is_none:
            return standings
        earlier = self._earlier_race(front, trials)
        if earlier is not None and earlier.is_over:
            self._take(earlier, "in an earlier session ")
            return _in_order(earlier, standings)
        winner_needs = max((self._confirmer.needs(entry.trial.config) for entry in front), key=len)
        heats = [Task.HEAT] * (len(front) + has_reference)
        starts = [] if self._bench.is_live else [Task.START]
        if not self._budget.allows(*starts, *heats, *winner_needs):
            self._progress.note("no time left to race the finalists: they are ranked by their trials")
            return standings
        names = ", ".join(detection.space.describe(entry.trial.config) for entry in front)
        self._progress.note(f"{_describe_race(front, earlier)}: {names}")
        end_seconds = self._budget.deadline_seconds - self._budget.expect(*winner_needs)

        def keep(raced: Raced) -> None:
            keep_race(self._folder, raced, len(trials))

        raced = race(
            self._bench,
            front,
            has_reference=has_reference,
            limit_bytes=limit_bytes,
            # Where the first rounds leave time for more, the winner's rival comes first.
            deadline_seconds=min(deadline_seconds, end_seconds - self._budget.expect(Task.CONFIRMATION)),
            end_seconds=end_seconds,
            earlier=earlier,
            after_round=keep,
        )
        keep(raced)
        self._take(raced)
        return _in_order(raced, standings)

    def _earlier_race(self, front: Sequence[Standing], trials: Sequence[Trial]) -> Raced | None:
        """That of the same finalists; some of them may have been rejected after it."""
        raced = known_race(self._folder, trials)
        if raced is None:
            return None
        left = {entry.trial.number for entry in raced.everybody if entry.trial.config not in self._rejections.configs}
        is_same = left and left <= {entry.trial.number for entry in front}
        return raced if is_same and (raced.is_over or len(left) == len(raced.everybody)) else None

    def _take(self, raced: Raced, when: str = "") -> None:
        speeds = {entry.trial.config.hash: entry.relative_throughput for entry in raced.standings if entry.ratios}
        self._raced = {config: speed for config, speed in speeds.items() if speed is not None}
        if raced.ranking is not None:
            winner = raced.standings[0].trial
            self._ranked = (winner.config, raced.ranking)
            self._progress.note(f"{winner.description}: {when}{raced.ranking.sentence}")

    def _confirm(self, standings: Sequence[Standing], detection: Detection) -> Best | None:
        for standing in standings[:CONFIRMATIONS]:
            config = standing.trial.config
            if not self._budget.allows_late(*self._confirmer.needs(config)):
                self._progress.note(f"no time left to confirm {detection.space.describe(config)}")
                self.ran_out = True
                continue
            self._progress.leads(standing.trial, standing.relative_throughput)
            best = self._confirmer.confirm(standing)
            if best is not None:
                return replace(best, ranking=self._ranking_of(config))
        return self._confirmer.best

    def _may_be_confirmed(self, trials: Sequence[Trial]) -> bool:
        return bool(self._confirmer.failures) or any(trial.fits for trial in self._rejections.remaining(trials))

    def _ranking_of(self, config: Config) -> Ranking | None:
        # Who comes next where the winner is not confirmed was never compared with the rest at that confidence.
        winner, ranking = self._ranked or (None, None)
        return ranking if config == winner else None


def _baseline_of(trials: Sequence[Trial]) -> Trial | None:
    return next((trial for trial in reversed(trials) if trial.config.is_none), None)


def _in_order(raced: Raced, standings: Sequence[Standing]) -> list[Standing]:
    numbers = {entry.trial.number for entry in raced.everybody}
    others = [entry for entry in standings if entry.trial.number not in numbers]
    able = {entry.trial.number for entry in standings}
    # Who was over the limit in a round, or failed there, comes last: the whole process decides.
    order = [*raced.standings, *others, *raced.over_limit, *raced.failed]
    return [entry for entry in order if entry.trial.number in able]


def _describe_race(front: Sequence[Standing], earlier: Raced | None) -> str:
    if earlier is not None:
        return f"racing on after {format_count(earlier.rounds, 'round')} of an earlier session"
    if len(front) > 1:
        return "racing in interleaved rounds what should be the fastest by all trials together"
    return "measuring once more, in rounds"
