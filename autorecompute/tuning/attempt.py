"""One search, and the decision after it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import LeftToOthers
from autorecompute.figures import Figures
from autorecompute.plans import Config
from autorecompute.result import Result, SearchEnd
from autorecompute.tuning.budget import Task
from autorecompute.tuning.confirmation import TELLING, Confirmer, EarlyAnswer, TrialLimit
from autorecompute.tuning.explanations import advise_on_glibc
from autorecompute.tuning.race import (
    FINALISTS,
    Finalist,
    RaceResult,
    fitting_finalists,
    is_faster,
    keep_race,
    race,
    read_race,
)
from autorecompute.tuning.rivals import (
    Rival,
    compare_in_place,
    compare_with_rival_batch,
    confirm_rival,
    judge_recompute,
    needs_rival_batch,
    recall_rival,
)
from autorecompute.tuning.searcher_factory import StudySearcher
from autorecompute.units import format_bytes, format_count
from autorecompute.waiting import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autorecompute.figures import Ranking
    from autorecompute.measurement import Prediction, Trial
    from autorecompute.result import Best, Transfer
    from autorecompute.search import Prior
    from autorecompute.search.searcher import Searcher
    from autorecompute.tuning.context import TuningContext
    from autorecompute.tuning.ledger import Ledger
    from autorecompute.tuning.trial_runner import TrialRunner


CONFIRMATIONS = 5
"""So many finalists get the chance to confirm themselves before nothing is said to fit."""


RACE_SHARE = 0.5
"""Of the time that the search took, so much may be spent on being sure about the last few percent; and as long as a
start takes, which every process that confirms one costs, too."""


class Decision:
    """Finds the answer to a study whose search has ended.

    The answer stays until something better is confirmed after it. A decision knows more than the figures of single
    processes: it has a race behind it, and a tie goes to the lower peak. So a config that was confirmed before the
    decision does not replace its winner, however fast it looks.
    """

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self.confirmer = Confirmer(context)
        """Has configs confirmed, and knows those that cannot be the answer."""
        self._rejections = self.confirmer.rejections
        self._earlier = context.folder.result()
        self._known = self.confirmer.configs
        best = self._earlier.best if self._earlier is not None else None
        # What has knobs is the answer with them alone, and what a training found may be none.
        is_answer = best is not None and best.confirmed and not best.knobs and best.config in self._known
        self._decided = best if is_answer else None
        self.ran_out = False
        """Tells whether the last decision lacked the time to confirm all that it should have."""
        self._ranked: tuple[Config, Ranking] | None = None
        self._raced: dict[str, float] = {}
        self._over_limit: tuple[Finalist, ...] = ()
        self._last_process: Config | None = None

    @property
    def _best(self) -> Best | None:
        """Return the last decision, or the fastest where that was confirmed later."""
        fastest = self.confirmer.best
        is_new = fastest is not None and fastest.config not in self._known
        return fastest if is_new or self._decided is None else self._decided

    def _settle(self, best: Best) -> None:
        self._decided, self._known = best, self.confirmer.configs

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
        start_seconds = self._context.budget.expect(Task.START)
        deadline_seconds = time.monotonic() + max(RACE_SHARE * search_seconds, start_seconds)
        standings = fitting_finalists(self._rejections.remaining(trials), steps)
        # Where no recompute holds the limit nothing has to be recomputed, whatever looks as fast.
        is_needless = self._confirm([entry for entry in standings if entry.trial.config.is_none])
        beside: tuple[Config, Rival] | None = None
        if not is_needless:
            others = [entry for entry in standings if not entry.trial.config.is_none]
            ranked = self._rank(others, trials, deadline_seconds=deadline_seconds)
            # Before the fresh processes, which end the one that lives.
            beside = self._compare_in_place(ranked, baseline, limit_bytes)
            self._confirm(ranked)
        rival = self._compare_with_baseline(self._best, baseline, beside)
        if not rival.is_complete:
            self._context.note("no time left for all comparisons in fresh processes")
        best, remaining = self._best, self._rejections.remaining(trials)
        may_be_confirmed = best is None and (self.confirmer.failures or any(trial.fits for trial in remaining))
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
            unconfirmed=(*self._rejections.sentences, *self.confirmer.failures),
            trials=len(trials),
            device=self._context.detection.device,
            versions=self._context.detection.versions,
            command=self._context.command,
            script_at=self._context.job.script_at,
            command_gives_batch=self._context.settings.batch is None or self._context.job.takes_batch,
        )

    def _short_of_reserve(self, best: Best | None, trials: Sequence[Trial], limit_bytes: int) -> tuple[str, ...]:
        # A whole process says more than the reserve: of these it is known whether they hold the limit.
        known = {*self._rejections.configs, *self.confirmer.configs, *([best.config] if best is not None else [])}
        short = [trial.config for trial in trials if trial.fits and not trial.under(limit_bytes).fits]
        return tuple(dict.fromkeys(config.hash for config in short if config not in known))

    def compose_early(self, trials: Sequence[Trial], limit_bytes: int) -> Result:
        """Return the answer so far, compared with nothing."""
        compared = not needs_rival_batch(self._best, self._context.settings)
        return self.compose(self._best, Rival(), trials, limit_bytes, compared=compared)

    def _compare_in_place(
        self, ranked: Sequence[Finalist], baseline: Trial | None, limit_bytes: int
    ) -> tuple[Config, Rival] | None:
        """Compare the first of them with a smaller batch in one process; ``None`` where that cannot be."""
        settings = self._context.settings
        if not ranked or settings.batch is None or settings.rival_batch is not None:
            return None
        rival = compare_in_place(self._context, ranked[0], baseline, limit_bytes)
        return None if rival is None else (ranked[0].trial.config, rival)

    def _compare_with_baseline(
        self, best: Best | None, baseline: Trial | None, beside: tuple[Config, Rival] | None
    ) -> Rival:
        if best is None or not needs_rival_batch(best, self._context.settings):
            return Rival()
        is_known = beside is not None and beside[0] == best.config
        rival = confirm_rival(self._context, beside[1]) if beside is not None and is_known else None
        if rival is None:
            is_just_confirmed = best.config == self._last_process
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
        winner_needs = max((self.confirmer.needs(entry.trial.config) for entry in front), key=len)
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
        self.confirmer.learn(raced.standings)
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
            if not self._context.budget.allows_late(*self.confirmer.needs(config)):
                self._context.note(f"no time left to confirm {self._context.detection.space.describe(config)}")
                self.ran_out = True
                continue
            self._context.progress.leads(finalist.trial, finalist.relative_throughput)
            best = self._confirm_one(finalist)
            if best is not None:
                # Who comes next where the winner is not confirmed was never compared with the rest at that confidence.
                winner, ranking = self._ranked or (None, None)
                self._settle(replace(best, ranking=ranking if config == winner else None))
                self._confirm_faster(finalist, standings)
                return True
        return False

    def _confirm_one(self, finalist: Finalist) -> Best | None:
        if self.confirmer.needs(finalist.trial.config):
            self._last_process = finalist.trial.config
        return self.confirmer.confirm(finalist)

    def _confirm_faster(self, winner: Finalist, standings: Sequence[Finalist]) -> None:
        """Give those their own process that were over the limit in the race, and faster there than the winner.

        The first one that holds the limit as a whole process is the answer.
        """
        able = {entry.trial.number for entry in standings}
        for entry in self._over_limit:
            if entry.trial.number not in able or not is_faster(entry, winner):
                continue
            what = f"{entry.trial.description}: faster than the winner, and over the limit in the race"
            if not self._context.budget.allows(*self.confirmer.needs(entry.trial.config)):
                self._context.note(f"{what}; no time left for its own process")
                continue
            self._context.note(f"{what}; its own process decides")
            best = self._confirm_one(entry)
            if best is not None:
                self._context.note(f"{entry.trial.description}: within the limit in its own process, and taken")
                self._settle(best)
                return


def _baseline_of(trials: Sequence[Trial]) -> Trial | None:
    return next((trial for trial in reversed(trials) if trial.config.is_none), None)


def _describe_race(front: Sequence[Finalist], earlier: RaceResult | None) -> str:
    if earlier is not None:
        return f"racing on after {format_count(earlier.rounds, 'round')} of an earlier session"
    if len(front) > 1:
        return "racing in interleaved rounds what should be the fastest by all trials together"
    return "measuring once more, in rounds"


SEARCHES = 2
"""A second search follows where everything that fits in its steps does not fit as a whole process."""


class Attempt:
    """Searches until nothing is left to gain, then decides.

    Args:
        context: What the tuning works with.
        ledger: Where trials are kept.
        runner: Measures them.
        prior: What a stored study knows; ``None`` where there is none.
        transfer: What the answer says of the study that this one started from.
        set_answer: Is given each answer that an interruption would leave; ``None`` takes the last one back.
    """

    def __init__(  # noqa: PLR0913  (the parts of one tuning)
        self,
        context: TuningContext,
        ledger: Ledger,
        runner: TrialRunner,
        *,
        prior: Prior | None,
        transfer: Transfer | None,
        set_answer: Callable[[Result | None], None],
    ) -> None:
        self._context, self._ledger, self._runner = context, ledger, runner
        self._transfer, self._set_answer = transfer, set_answer
        for known in context.folder.rejections():
            context.note(f"{known.outcome} in an earlier session: {known.reason}")
        self._decision = Decision(context)
        self._confirmer, self._rejections = self._decision.confirmer, self._decision.confirmer.rejections
        self._limit = TrialLimit(context, self._confirmer)
        self._searcher = StudySearcher(context, prior, self._limit)
        self._early = EarlyAnswer(context, self._confirmer, self._compose_so_far)

    def run(self) -> Result:
        """Return the answer; where the time is over, that so far.

        Raises:
            KeyboardInterrupt: the user stopped it; the answer so far was kept.
            LeftToOthers: the time is over, there is no answer yet, and other workers go on.
            ScriptError: the script fails by itself.
            SetupError: the study cannot be written.
        """
        try:
            return self._search_and_decide()
        except OutOfTime:
            result = self._give_late()
            self._set_answer(_with_best(result))
            return result
        except KeyboardInterrupt:
            self._set_answer(_with_best(self._early.keep(SearchEnd.INTERRUPTED)))
            raise

    def _search_and_decide(self) -> Result:
        for search in range(SEARCHES):
            searcher = self._searcher.begin()
            search_end = self._runner.search(searcher, self._limit, self._confirm_early)
            if (published := self._ledger.published_answer()) is not None:
                return published
            is_last = search == SEARCHES - 1
            if not is_last and self._has_confirmed_leanest():
                self._limit.stop_guessing()
                continue
            limit_bytes = self._limit(self._ledger.trials)
            trials = [trial.under(limit_bytes) for trial in self._ledger.trials]
            steps = searcher.expect_steps(trials)
            result = self._decision.decide(trials, limit_bytes, steps=steps, search_seconds=self._ledger.seconds)
            if is_last or not self._goes_on(result, limit_bytes):
                break
        return self._give(replace(result, expected=self._expected(result, searcher, trials)), search_end)

    def _has_confirmed_leanest(self) -> bool:
        """Tell whether the guess left no room for anything, and a whole process within the limit told what is needed.

        It is the likeliest to hold it, so it has its process where there is time for no other one.
        """
        earlier: set[Config] = set()
        for _ in range(TELLING):
            leanest = self._limit.leanest_beyond(self._ledger.trials)
            if leanest is None or leanest.config in earlier:
                return False
            if not self._context.budget.allows_late(*self._confirmer.needs(leanest.config)):
                return False
            if self._confirmer.confirm(Finalist(trial=leanest)) is not None:
                return True
            earlier.add(leanest.config)
        return False

    def _goes_on(self, result: Result, limit_bytes: int) -> bool:
        """Tell whether another search may find what this one left out, by what whole processes were seen to need."""
        best, trials = result.best, self._ledger.trials
        if best is not None:
            # No recompute may fit after all, by what a whole process was seen to need.
            fits = any(trial.config.is_none and trial.under(self._limit(trials)).fits for trial in trials)
            self._limit.learn()
            return fits and not best.config.is_none and Config() not in self._rejections.configs
        excess_bytes = self._limit.learn()
        if excess_bytes:
            needed = f"whole processes need {format_bytes(excess_bytes)} more: searching below that"
            advice = advise_on_glibc(self._context.detection.device.kind)
            self._context.note(f"{needed}. {advice}".rstrip(". "))
        return bool(excess_bytes) or limit_bytes < self._context.problem.limit_bytes

    def _expected(self, result: Result, searcher: Searcher, trials: list[Trial]) -> dict[str, Prediction]:
        """Return the search's predictions of the presets that it did not measure."""
        presets = self._context.detection.space.presets
        unmeasured = [name for name, figures in result.presets.items() if figures.outcome is None]
        expected = {name: searcher.predict(presets[name], trials) for name in unmeasured}
        return {name: prediction for name, prediction in expected.items() if prediction is not None}

    def _confirm_early(self, trials: list[Trial]) -> None:
        # Of several workers each would confirm the same early, and any of them can be stopped without loss.
        if self._ledger.store is None:
            return
        reserve_seconds = self._context.reserve_seconds(trials)
        remaining = self._rejections.remaining(trials)
        leanest = self._limit.leanest_beyond(trials)
        finalist = Finalist(trial=leanest) if leanest is not None else next(iter(fitting_finalists(remaining)), None)
        if finalist is None:
            return
        # A preset may be far from the limit, and its process may hold more or less than those that come near it.
        presets = self._context.detection.space.presets.values()
        is_telling = leanest is not None or finalist.trial.config not in presets
        teaches = is_telling and self._limit.is_guess(trials)
        result = self._early.confirm_if_due(finalist, reserve_seconds, teaches=teaches)
        if result is not None:
            self._set_answer(result)

    def _give(self, result: Result, search_end: SearchEnd) -> Result:
        # What there was no time for is made up for by the next session, be the search at its end or not.
        result = self._sign(result.ending(search_end if result.compared else SearchEnd.TIME))
        # What others can do no better, though the next session may, is the answer for all.
        is_for_all = result.best is not None or not (search_end is SearchEnd.TIME or self._decision.ran_out)
        if not is_for_all and (published := self._leave_to_others(result)) is not None:
            return published
        self._early.write(result)
        return self._ledger.publish(result) if is_for_all else result

    def _give_late(self) -> Result:
        """Return the answer of a worker whose time is over. The one whose turn it is to give an answer gives it to all.

        Raises:
            LeftToOthers: it has none, and others go on.
        """
        so_far = self._compose_so_far()
        is_for_all = so_far.best is not None and self._ledger.is_confirming
        if not is_for_all and (published := self._leave_to_others(so_far)) is not None:
            return published
        result = self._early.keep(SearchEnd.TIME)
        return self._ledger.publish(result) if is_for_all else result

    def _leave_to_others(self, so_far: Result) -> Result | None:
        """End here where others go on; give the answer that they may have come to at this moment.

        Raises:
            LeftToOthers: they do.
        """
        self._ledger.refresh()
        if (published := self._ledger.published_answer()) is not None:
            return published
        if self._ledger.others:
            self._set_answer(so_far.ending(SearchEnd.TIME))
            raise LeftToOthers(
                f"The time is over: {format_count(self._ledger.others, 'other worker')} "
                f"{'goes' if self._ledger.others == 1 else 'go'} on with study '{self._context.folder.name}', and the "
                "last one confirms. The same command gives its answer then."
            )
        return None

    def _compose_so_far(self) -> Result:
        trials = self._ledger.trials
        return self._sign(self._decision.compose_early(trials, self._limit(trials)))

    def _sign(self, result: Result) -> Result:
        return replace(result, wall_seconds=self._ledger.seconds, transferred_from=self._transfer)


def _with_best(result: Result) -> Result | None:
    return result if result.best is not None else None
