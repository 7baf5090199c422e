"""The answer so far: confirmed during the search, and kept, so that an interrupted tuning has one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.result import SearchEnd
from autorecompute.tuning.answer.finalists import TIE
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.result import Best, Result
    from autorecompute.tuning.answer.confirmation import Confirmer
    from autorecompute.tuning.answer.finalists import Finalist
    from autorecompute.tuning.context import TuningContext

PATIENCE, PATIENCE_TO_LEARN = 4.0, 1.0
"""The search has to have taken so many times what a confirmation costs before the first one: a fifth of the time at
most goes into answers that may be overtaken. Where a whole process tells what all others need, waiting costs more than
the process: trials that are held against a wrong guess are wasted."""

SHORTEST_SEARCH_SECONDS = 20.0
"""A search that is stopped before has lost little."""

GROWTH = 3.0
"""Each further one waits for so many times as long."""


class StandingAnswer:
    """The answer so far, which stays until something better is confirmed after it.

    A decision knows more than the figures of single processes: it has a race behind it, and a tie goes to the lower
    peak. So a config that was confirmed before the decision does not replace its winner, however fast it looks.

    Args:
        confirmer: Has configs confirmed.
        earlier: What an earlier session decided; ``None`` where there is no answer.
    """

    def __init__(self, confirmer: Confirmer, earlier: Result | None) -> None:
        self._confirmer = confirmer
        self._known = confirmer.configs
        best = earlier.best if earlier is not None else None
        # What has knobs is the answer with them alone, and what a training found may be none.
        is_answer = best is not None and best.confirmed and not best.knobs and best.config in self._known
        self._decided = best if is_answer else None

    def decide(self, best: Best) -> None:
        """Take the winner of a decision."""
        self._decided, self._known = best, self._confirmer.configs

    @property
    def best(self) -> Best | None:
        """Return the last decision, or the fastest where that was confirmed later.

        ``None`` where nothing was confirmed.
        """
        fastest = self._confirmer.best
        is_new = fastest is not None and fastest.config not in self._known
        return fastest if is_new or self._decided is None else self._decided


class EarlyAnswer:
    """The answer that an interruption leaves.

    A confirmation ends the script and starts it twice: by itself, and for the trials after it. So it has to be due.

    Args:
        context: What the tuning works with.
        confirmer: Who confirms.
        compose: Makes the answer of what was confirmed so far.
    """

    def __init__(self, context: TuningContext, confirmer: Confirmer, compose: Callable[[], Result]) -> None:
        self._context, self._confirmer, self._compose = context, confirmer, compose
        self._earlier = context.folder.result()
        self._began_seconds = time.monotonic()
        self._count = 0

    def confirm_if_due(self, finalist: Finalist, reserve_seconds: float, *, teaches: bool = False) -> Result | None:
        """Confirm the best so far where it is new and time enough was spent; the answer where it was.

        Args:
            finalist: The best so far.
            reserve_seconds: What has to be left of the time after it.
            teaches: Whether the whole process of this config tells the limit of all trials. Then it may be no better
                than what was confirmed before.
        """
        if not self._confirmer.needs(finalist.trial.config) or not (teaches or self._is_news(finalist)):
            return None
        if not self._is_due(finalist, reserve_seconds, PATIENCE_TO_LEARN if teaches else PATIENCE):
            return None
        best = self._confirmer.confirm(finalist)
        # What was run to learn from is overtaken soon, and the next one is due as if it had not been.
        self._count += best is None or not teaches
        return self.keep(SearchEnd.INTERRUPTED) if best is not None else None

    def keep(self, search_end: SearchEnd) -> Result:
        """Write down the answer so far; nothing where the user stopped it and nothing was confirmed.

        Raises:
            SetupError: the study cannot be written.
        """
        result = self._compose().ending(search_end)
        if self._earlier is not None and _says_more(self._earlier, result):
            result = _brought_up_to_date(self._earlier, result)
        if result.best is not None or search_end is SearchEnd.TIME:
            self.write(result)
        return result

    def write(self, result: Result) -> None:
        """Write an answer down, unless it takes away one that a training found and that may yet be confirmed.

        Raises:
            SetupError: the study cannot be written.
        """
        if not (result.search_end.is_early and result.best is None and _is_to_be_confirmed(self._earlier, result)):
            self._context.folder.finish(result)

    def _is_news(self, finalist: Finalist) -> bool:
        best = self._confirmer.best
        if best is None:
            return True
        known, found = best.relative_throughput, finalist.relative_throughput
        if known is None or found is None:
            # Where the batch does not run without recompute, nothing but the figures themselves can be compared.
            known, found = best.samples_per_second, finalist.trial.measurement.samples_per_second or 0.0
        return found > known * (1 + TIE)

    def _is_due(self, finalist: Finalist, reserve_seconds: float, patience: float) -> bool:
        price = (*self._confirmer.needs(finalist.trial.config), Task.START)
        patience_seconds = (
            max(patience * self._context.budget.expect(*price), SHORTEST_SEARCH_SECONDS) * GROWTH**self._count
        )
        is_patient = time.monotonic() - self._began_seconds >= patience_seconds
        return is_patient and self._context.budget.allows(*price, Task.TRIAL, reserve_seconds=reserve_seconds)


def _says_more(earlier: Result, result: Result) -> bool:
    """Tell whether an earlier session came further with the same winner: it was compared, or has knobs."""
    if earlier.best is None or result.best is None:
        return False
    # Knobs that were kept may have brought another config than the one that won.
    is_same = earlier.best.config == result.best.config or bool(earlier.best.knobs)
    return is_same and earlier.compared and earlier.best.confirmed


def _brought_up_to_date(earlier: Result, result: Result) -> Result:
    """Return an earlier answer with what the trials since then tell."""
    return replace(
        earlier,
        search_end=result.search_end,
        baseline=result.baseline,
        presets=result.presets,
        expected={name: one for name, one in earlier.expected.items() if result.presets[name].outcome is None},
        reserve_bytes=result.reserve_bytes,
        short_of_reserve=result.short_of_reserve,
        rejected=result.rejected,
        warnings=result.warnings,
        trials=result.trials,
        wall_seconds=result.wall_seconds,
    )


def _is_to_be_confirmed(earlier: Result | None, result: Result) -> bool:
    """Tell whether the earlier answer has not been confirmed yet, and nothing that is known now speaks against it."""
    best = earlier.best if earlier is not None else None
    return best is not None and not best.confirmed and best.config.hash not in result.rejected
