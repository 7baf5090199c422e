"""One attempt at an answer: a search, a decision, and what there is of an answer where the time runs out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import LeftToOthers
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.tuning.answer.confirmation import TELLING, Confirmer, Rejections
from autorecompute.tuning.answer.early import EarlyAnswer
from autorecompute.tuning.answer.finalists import Finalist, fitting_finalists
from autorecompute.tuning.answer.judgement import Judgement
from autorecompute.tuning.explanations import advise_on_glibc
from autorecompute.tuning.searcher_factory import SearcherFactory
from autorecompute.tuning.trial_limit import TrialLimit
from autorecompute.units import format_bytes, format_count
from autorecompute.waiting import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import Trial
    from autorecompute.prediction import Prediction
    from autorecompute.result import Best, Result, Transfer
    from autorecompute.search import Prior
    from autorecompute.search.searcher import Searcher
    from autorecompute.tuning.context import TuningContext
    from autorecompute.tuning.ledger import Ledger
    from autorecompute.tuning.trial_runner import TrialRunner

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
        self._searchers = SearcherFactory(context, prior)
        self._rejections = Rejections(context.folder)
        for rejection in self._rejections.describe():
            context.note(rejection)
        self._confirmer = Confirmer(context, self._rejections)
        self._judgement = Judgement(context, self._rejections, self._confirmer)
        self._limit = TrialLimit(context, self._confirmer, self._rejections)
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
            searcher = self._searchers.begin(self._limit)
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
            result = self._judgement.decide(trials, limit_bytes, steps=steps, search_seconds=self._ledger.seconds)
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
        if result.best is not None:
            is_needless = self._is_needless(result.best)
            self._limit.learn()
            return is_needless
        excess_bytes = self._limit.learn()
        if excess_bytes:
            needed = f"whole processes need {format_bytes(excess_bytes)} more: searching below that"
            advice = advise_on_glibc(self._context.detection.device.kind)
            self._context.note(f"{needed}. {advice}".rstrip(". "))
        return bool(excess_bytes) or limit_bytes < self._context.problem.limit_bytes

    def _is_needless(self, best: Best) -> bool:
        """Tell whether no recompute should fit after all, by what a whole process was seen to need."""
        trials = self._ledger.trials
        fits = any(trial.config.is_none and trial.under(self._limit(trials)).fits for trial in trials)
        return fits and not best.config.is_none and Config() not in self._rejections.configs

    def _expected(self, result: Result, searcher: Searcher, trials: list[Trial]) -> dict[str, Prediction]:
        """Return what the search expects of the presets that it did not measure."""
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
        is_for_all = result.best is not None or not (search_end is SearchEnd.TIME or self._judgement.ran_out)
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
        return self._sign(self._judgement.compose_early(trials, self._limit(trials)))

    def _sign(self, result: Result) -> Result:
        return replace(result, wall_seconds=self._ledger.seconds, transferred_from=self._transfer)


def _with_best(result: Result) -> Result | None:
    return result if result.best is not None else None
