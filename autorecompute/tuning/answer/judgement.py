"""Decides on an answer: races the finalists, confirms the winner and compares it with its rival."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.figures import Figures
from autorecompute.result import Result
from autorecompute.tuning.answer.early import StandingAnswer
from autorecompute.tuning.answer.finalists import Finalist, fitting_finalists, is_faster
from autorecompute.tuning.answer.kept_race import keep_race, read_race
from autorecompute.tuning.answer.race import FINALISTS, RaceResult, race
from autorecompute.tuning.answer.rivals import (
    Rival,
    compare_with_rival_batch,
    judge_recompute,
    needs_rival_batch,
    recall_rival,
)
from autorecompute.tuning.budget import Task
from autorecompute.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.ranking import Ranking
    from autorecompute.result import Best
    from autorecompute.tuning.answer.confirmation import Confirmer, Rejections
    from autorecompute.tuning.context import TuningContext

CONFIRMATIONS = 5
"""So many finalists get the chance to confirm themselves before nothing is said to fit."""


RACE_SHARE = 0.5
"""Of the time that the search took, so much may be spent on being sure about the last few percent."""


class Judgement:
    """Finds the answer to a study whose search has ended.

    Args:
        context: What the tuning works with.
        rejections: Who cannot be the answer.
        confirmer: Has configs confirmed.
    """

    def __init__(self, context: TuningContext, rejections: Rejections, confirmer: Confirmer) -> None:
        self._context = context
        self._rejections, self._confirmer = rejections, confirmer
        self._earlier = context.folder.result()
        self._standing = StandingAnswer(confirmer, self._earlier)
        self.ran_out = False
        """Whether the last decision was made without time to confirm all that should have been."""
        self._ranked: tuple[Config, Ranking] | None = None
        self._raced: dict[str, float] = {}
        self._over_limit: tuple[Finalist, ...] = ()
        self._last_process: Config | None = None

    def decide(
        self, trials: Sequence[Trial], limit_bytes: int, *, steps: Mapping[int, float], search_seconds: float
    ) -> Result:
        """Return the answer, with everything in it measured.

        Args:
            trials: What the search measured, under the limit for trials.
            limit_bytes: That limit.
            steps: What their steps should really take, by number: who is raced depends on it.
            search_seconds: What the search took.
        """
        self.ran_out, self._last_process = False, None
        baseline = _baseline_of(trials)
        deadline_seconds = time.monotonic() + RACE_SHARE * search_seconds
        standings = fitting_finalists(self._rejections.remaining(trials), steps)
        # Where no recompute holds the limit nothing has to be recomputed, whatever looks as fast.
        is_needless = self._confirm([entry for entry in standings if entry.trial.config.is_none])
        if not is_needless:
            others = [entry for entry in standings if not entry.trial.config.is_none]
            self._confirm(self._rank(others, trials, deadline_seconds=deadline_seconds))
        best = self._standing.best
        is_just_confirmed = best is not None and best.config == self._last_process
        rival = self._compare_with_baseline(best, baseline, is_just_confirmed=is_just_confirmed)
        if not rival.is_complete:
            self._context.note("no time left for all comparisons in fresh processes")
        may_be_confirmed = best is None and self._may_be_confirmed(trials)
        compared = rival.is_complete and not self.ran_out and not may_be_confirmed
        return self.compose(best, rival, trials, limit_bytes, compared=compared)

    def compose(
        self, best: Best | None, rival: Rival, trials: Sequence[Trial], limit_bytes: int, *, compared: bool
    ) -> Result:
        """Return the answer that these make. What is over the limit in it is over the user's, not over that for trials.

        Args:
            best: The winner, if there is one.
            rival: The largest batch that fits without recompute, and how the winner compares with it.
            trials: What the search measured.
            limit_bytes: The limit for trials.
            compared: Whether all comparisons were made that there were to make.
        """
        trials = [trial.under(self._context.problem.limit_bytes) for trial in trials]
        by_hash = {trial.config.hash: trial for trial in trials}
        return Result(
            study=self._context.folder.name,
            problem=self._context.problem.digest,
            verdict=judge_recompute(best, rival),
            best=best,
            baseline=Figures.of(_baseline_of(trials)),
            presets={
                name: Figures.of(by_hash.get(config.hash))
                for name, config in self._context.detection.space.presets.items()
                if not config.is_none
            },
            rival=rival.figures,
            comparison=rival.comparison,
            compared=compared,
            raced=self._raced,
            raced_over_limit=tuple(entry.trial.config.hash for entry in self._over_limit),
            reserve_bytes=self._context.problem.limit_bytes - limit_bytes,
            short_of_reserve=self._short_of_reserve(best, trials, limit_bytes),
            rejected=self._rejections.outcomes,
            warnings=tuple(dict.fromkeys(text for trial in trials for text in trial.measurement.warnings)),
            unconfirmed=(*self._rejections.sentences, *self._confirmer.failures),
            trials=len(trials),
            device=self._context.detection.device,
            versions=self._context.detection.versions,
            command=self._context.command,
            script_at=self._context.job.script_at,
            command_gives_batch=self._context.settings.batch is None or self._context.job.takes_batch,
        )

    def _short_of_reserve(self, best: Best | None, trials: Sequence[Trial], limit_bytes: int) -> tuple[str, ...]:
        # A whole process says more than the reserve: of these it is known whether they hold the limit.
        known = {*self._rejections.configs, *self._confirmer.configs, *([best.config] if best is not None else [])}
        short = [trial.config for trial in trials if trial.fits and not trial.under(limit_bytes).fits]
        return tuple(dict.fromkeys(config.hash for config in short if config not in known))

    def compose_early(self, trials: Sequence[Trial], limit_bytes: int) -> Result:
        """Return the answer so far, compared with nothing."""
        best = self._standing.best
        compared = not needs_rival_batch(best, self._context.settings)
        return self.compose(best, Rival(), trials, limit_bytes, compared=compared)

    def _compare_with_baseline(self, best: Best | None, baseline: Trial | None, *, is_just_confirmed: bool) -> Rival:
        if best is None or not needs_rival_batch(best, self._context.settings):
            return Rival()
        rival = compare_with_rival_batch(self._context, best, baseline, is_just_confirmed=is_just_confirmed)
        rival = recall_rival(self._earlier, best, rival)
        if rival.is_complete and rival.figures is None:
            known = "fits" if rival.none_fits else "could be measured"
            self._context.note(f"no smaller batch without recompute {known}")
        return rival

    def _rank(self, standings: list[Finalist], trials: Sequence[Trial], *, deadline_seconds: float) -> list[Finalist]:
        front, baseline = standings[:FINALISTS], _baseline_of(trials)
        has_reference = baseline is not None and baseline.measurement.outcome.is_measured
        is_needless = len(front) == 1 and not has_reference
        if not front or is_needless:
            return standings
        earlier = self._earlier_race(front, trials)
        if earlier is not None and earlier.is_over:
            self._take(earlier, "in an earlier session ")
            return earlier.in_order(standings)
        winner_needs = max((self._confirmer.needs(entry.trial.config) for entry in front), key=len)
        rounds = [Task.ROUND] * (len(front) + has_reference)
        starts = [] if self._context.bench.is_live else [Task.START]
        if not self._context.budget.allows(*starts, *rounds, *winner_needs):
            self._context.note("no time left to race the finalists: they are ranked by their trials")
            return standings
        names = ", ".join(self._context.detection.space.describe(entry.trial.config) for entry in front)
        self._context.note(f"{_describe_race(front, earlier)}: {names}")
        end_seconds = self._context.budget.deadline_seconds - self._context.budget.expect(*winner_needs)

        def keep(raced: RaceResult) -> None:
            keep_race(self._context.folder, raced, len(trials))

        raced = race(
            self._context.bench,
            front,
            has_reference=has_reference,
            limit_bytes=self._context.problem.limit_bytes,
            # Where the first rounds leave time for more, the rival batch comes first.
            deadline_seconds=min(deadline_seconds, end_seconds - self._context.budget.expect(Task.CONFIRMATION)),
            end_seconds=end_seconds,
            earlier=earlier,
            after_round=keep,
        )
        keep(raced)
        self._take(raced)
        return raced.in_order(standings)

    def _earlier_race(self, front: Sequence[Finalist], trials: Sequence[Trial]) -> RaceResult | None:
        """Return that of the same finalists; some of them may have been rejected after it."""
        raced = read_race(self._context.folder, trials)
        if raced is None:
            return None
        left = {entry.trial.number for entry in raced.everybody if entry.trial.config not in self._rejections.configs}
        is_same = left and left <= {entry.trial.number for entry in front}
        return raced if is_same and (raced.is_over or len(left) == len(raced.everybody)) else None

    def _take(self, raced: RaceResult, when: str = "") -> None:
        self._over_limit = raced.over_limit
        self._confirmer.learn(raced.standings)
        for entry in raced.over_limit:
            self._context.note(f"{entry.trial.description}: within the limit in its trial, over it {when}in the race")
        measured = (*raced.standings, *raced.over_limit)
        speeds = {entry.trial.config.hash: entry.relative_throughput for entry in measured if entry.ratios}
        self._raced = {config: speed for config, speed in speeds.items() if speed is not None}
        if raced.ranking is not None:
            winner = raced.standings[0].trial
            self._ranked = (winner.config, raced.ranking)
            self._context.note(f"{winner.description}: {when}{raced.ranking.sentence}")

    def _confirm(self, standings: Sequence[Finalist]) -> bool:
        """Take the first of them that a process of its own confirms for the answer; tell whether there was one."""
        for finalist in standings[:CONFIRMATIONS]:
            config = finalist.trial.config
            if self._rejections.foretell(finalist.peak_bytes, self._context.problem.limit_bytes):
                continue
            if not self._context.budget.allows_late(*self._confirmer.needs(config)):
                self._context.note(f"no time left to confirm {self._context.detection.space.describe(config)}")
                self.ran_out = True
                continue
            self._context.progress.leads(finalist.trial, finalist.relative_throughput)
            best = self._confirm_one(finalist)
            if best is not None:
                self._standing.decide(replace(best, ranking=self._ranking_of(config)))
                self._confirm_faster(finalist, standings)
                return True
        return False

    def _confirm_one(self, finalist: Finalist) -> Best | None:
        if self._confirmer.needs(finalist.trial.config):
            self._last_process = finalist.trial.config
        return self._confirmer.confirm(finalist)

    def _confirm_faster(self, winner: Finalist, standings: Sequence[Finalist]) -> None:
        """Give those their own process that were over the limit in the race, and faster there than the winner.

        The first one that holds the limit as a whole process is the answer.
        """
        able = {entry.trial.number for entry in standings}
        for entry in self._over_limit:
            if entry.trial.number not in able or not is_faster(entry, winner):
                continue
            what = f"{entry.trial.description}: faster than the winner, and over the limit in the race"
            if not self._context.budget.allows(*self._confirmer.needs(entry.trial.config)):
                self._context.note(f"{what}; no time left for its own process")
                continue
            self._context.note(f"{what}; its own process decides")
            best = self._confirm_one(entry)
            if best is not None:
                self._context.note(f"{entry.trial.description}: within the limit in its own process, and taken")
                self._standing.decide(best)
                return

    def _may_be_confirmed(self, trials: Sequence[Trial]) -> bool:
        return bool(self._confirmer.failures) or any(trial.fits for trial in self._rejections.remaining(trials))

    def _ranking_of(self, config: Config) -> Ranking | None:
        # Who comes next where the winner is not confirmed was never compared with the rest at that confidence.
        winner, ranking = self._ranked or (None, None)
        return ranking if config == winner else None


def _baseline_of(trials: Sequence[Trial]) -> Trial | None:
    return next((trial for trial in reversed(trials) if trial.config.is_none), None)


def _describe_race(front: Sequence[Finalist], earlier: RaceResult | None) -> str:
    if earlier is not None:
        return f"racing on after {format_count(earlier.rounds, 'round')} of an earlier session"
    if len(front) > 1:
        return "racing in interleaved rounds what should be the fastest by all trials together"
    return "measuring once more, in rounds"
