"""The outer search: turns one knob after the other on the winner of a tuning, and keeps what makes it faster."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends import emission_of, knobs_of
from autorecompute.errors import ScriptError, SetupError, UsageError
from autorecompute.figures import KnobFigures
from autorecompute.knobs import Knob, KnobComparison, KnobStudy, Setup
from autorecompute.measurement import Outcome
from autorecompute.studies import KnobFolder
from autorecompute.trials.signals import deferring_interrupts
from autorecompute.tuning.budget import Task
from autorecompute.tuning.knobs.cheaper import find_cheaper
from autorecompute.tuning.knobs.remade import Candidate, check_gradients, find_candidates
from autorecompute.tuning.knobs.setups import Setups
from autorecompute.tuning.knobs.side_by_side import (
    SIDE_BY_SIDE,
    compare,
    gain_of,
    highest_peak,
    is_worth_it,
    run_guarded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.measurement import Detection, GradientCheck, Trial
    from autorecompute.result import Best, Result
    from autorecompute.studies import Problem
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import Workplace

CONFIRMATION = "confirmation"
"""What stands for a knob where all that were kept are compared with the winner once more."""

NOT_ALL = "not everything was tried with it yet"
NOTHING_RECOMPUTED = "the winner recomputes nothing"
IS_A_LEVEL = "the winner is a level of ORT's, which ends at the boundaries by itself"


class KnobSearch:
    """Turns the knobs of one study.

    Args:
        place: What it works with.
        budget: The time there is.
        detection: What the job is.
        problem: What has to be solved.
        trials: What the search measured.
    """

    def __init__(
        self, place: Workplace, budget: Budget, detection: Detection, problem: Problem, trials: Sequence[Trial]
    ) -> None:
        self._trials, self._budget, self._is_over = trials, budget, False
        self._bench, self._folder, self._progress = place.bench, place.folder, place.progress
        self._kept = KnobFolder(place.folder)
        self._setups = Setups(place, budget, detection)
        self._detection, self._limit_bytes = detection, problem.limit_bytes

    def so_far(self, result: Result) -> Result:
        """What :meth:`run` gives from what was compared until now: the answer that an interruption leaves."""
        self._is_over = True
        return self.run(result)

    def run(self, result: Result) -> Result:
        """The result with the knobs that were kept in its environment, and what each of them did.

        A knob that fails is told and left alone, one that there is no time for is left for the next session. What an
        earlier session compared is not measured again.

        Args:
            result: What the search found; it has a winner.

        Raises:
            SetupError: the study cannot be written.
        """
        self._study = self._take_up(result)
        winner = Setup(config=self._study.winner.config, description=self._study.winner.description)
        base, figures, last, gradients = winner, [], None, self._study.winner.gradients
        self._knobs = self._find_knobs(winner)
        for knob in self._knobs:
            best = max(self._turn(knob, base), key=_appeal, default=None)
            figures.append(_describe(knob, best, is_complete=(knob.name, base.key) in self._study.turned))
            self._progress.note(f"knob {knob.name}: {figures[-1].sentence}")
            if best is not None and is_worth_it(best):
                base, last, gradients = best.setup, best, best.gradients or gradients
        if last is not None:
            last = self._confirm(winner, last)
        return self._finish(replace(result, knobs=tuple(figures)), last, gradients)

    def _take_up(self, result: Result) -> KnobStudy:
        assert result.best is not None, "there is something to turn knobs on"
        known = self._kept.known() or KnobStudy(winner=result.best)
        # A result without knobs is that of a search, which may have found another winner than the last one.
        return known if result.knobs else replace(known, winner=result.best)

    def _find_knobs(self, winner: Setup) -> list[Knob]:
        backend = self._detection.versions["backend"]
        cleared = emission_of(backend).MEMORY_VARIABLES
        inherited = {name: text for name, text in os.environ.items() if name not in cleared}
        found = knobs_of(backend).knobs_for(self._detection, inherited)
        if winner.config.choices:
            return list(found)
        reason = NOTHING_RECOMPUTED if winner.config.is_none else IS_A_LEVEL
        return [replace(knob, why_not=knob.why_not or reason) if knob.looks_within_layers else knob for knob in found]

    def _turn(self, knob: Knob, base: Setup) -> Sequence[KnobComparison]:
        if knob.why_not:
            return []
        turning, detecting = (knob.name, base.key), (Task.START, Task.CHECK) if knob.remakes_plans else ()
        if turning in self._study.turned or not self._has_time(*detecting, *SIDE_BY_SIDE):
            return [item for item in self._study.comparisons if (item.knob, item.base) == turning]
        self._progress.note(f"trying {knob.name}: {knob.effect}")
        turned = replace(base, knobs={**base.knobs, **knob.environment})
        compare_all = self._compare_remade if knob.remakes_plans else self._compare_same_graph
        found = compare_all(knob, base, turned)
        comparisons = [comparison for comparison in found if comparison is not None]
        if len(comparisons) == len(found) and all(item.outcome is not Outcome.LOST for item in comparisons):
            self._write(replace(self._study, turned=(*self._study.turned, turning)))
        return comparisons

    def _compare_remade(self, knob: Knob, base: Setup, turned: Setup) -> list[KnobComparison | None]:
        try:
            with self._bench.under(turned.knobs, self._kept.logs(knob.name)) as bench:
                candidates = find_candidates(
                    bench,
                    turned,
                    self._detection,
                    within_layers=self._looks_within_layers(turned),
                    adds_all=knob.looks_within_layers,
                )
        except (ScriptError, SetupError, UsageError) as error:
            # The sentence is for a script that fails by itself; a fresh process tells the outcome.
            measurement = run_guarded(self._setups.run, turned)
            outcome = Outcome.SCRIPT_ERROR if measurement.outcome is Outcome.OK else measurement.outcome
            message = measurement.message or str(error)
            return [self._keep(_failed(knob, base, turned, outcome, message))]
        return [self._compare(knob.name, base, candidate) for candidate in candidates]

    def _compare_same_graph(self, knob: Knob, base: Setup, turned: Setup) -> list[KnobComparison | None]:
        first = self._compare(knob.name, base, Candidate(setup=turned))
        trial = find_cheaper(self._trials, base.config, first, self._limit_bytes) if first is not None else None
        return [first] if trial is None else [first, self._compare_cheaper(knob, base, turned, trial)]

    def _compare_cheaper(self, knob: Knob, base: Setup, turned: Setup, trial: Trial) -> KnobComparison | None:
        setup = replace(turned, config=trial.config, description=trial.description)
        known = self._known(knob.name, base, setup)
        if known is not None or not self._has_time(Task.START, Task.CHECK, *SIDE_BY_SIDE):
            return known
        self._progress.note(f"{trial.description} should fit with {knob.name}, and is faster")
        candidate = Candidate(setup=setup, message=f"with {trial.description}, which fits then")
        try:
            with self._bench.under(setup.knobs, self._kept.logs(knob.name)) as bench:
                candidate = replace(candidate, gradients=check_gradients(bench, trial.config))
        except (ScriptError, SetupError, UsageError) as error:
            return self._keep(_failed(knob, base, setup, Outcome.SCRIPT_ERROR, str(error)))
        return self._compare(knob.name, base, candidate)

    def _looks_within_layers(self, setup: Setup) -> bool:
        return any(knob.looks_within_layers and knob.environment.items() <= setup.knobs.items() for knob in self._knobs)

    def _known(self, knob: str, base: Setup, other: Setup) -> KnobComparison | None:
        wanted = (knob, base.key, other.key)
        items = (item for item in self._study.comparisons if (item.knob, item.base, item.setup.key) == wanted)
        return next(items, None)

    def _compare(self, knob: str, base: Setup, candidate: Candidate) -> KnobComparison | None:
        """Measured now where it is not known yet; ``None`` where there is no time for that."""
        known = self._known(knob, base, candidate.setup)
        if known is not None or not self._has_time(*SIDE_BY_SIDE):
            return known
        return self._keep(self._measure(knob, base, candidate))

    def _measure(self, knob: str, base: Setup, candidate: Candidate) -> KnobComparison:
        gradients = candidate.gradients
        if gradients is not None and not gradients.agrees:
            return KnobComparison(
                knob=knob,
                base=base.key,
                setup=candidate.setup,
                outcome=Outcome.WRONG_GRADIENT,
                message=gradients.message or f"{gradients.parameter} is off by {gradients.worst:.1e}",
                gradients=gradients,
            )
        compared = compare(
            self._setups.run,
            knob,
            base,
            candidate.setup,
            self._limit_bytes,
            has_time=lambda: self._has_time(*SIDE_BY_SIDE),
        )
        message = "; ".join(filter(None, [candidate.message, compared.message]))
        return replace(compared, message=message, gradients=gradients)

    def _has_time(self, *tasks: Task) -> bool:
        return not self._is_over and self._budget.allows(*tasks)

    def _confirm(self, winner: Setup, last: KnobComparison) -> KnobComparison:
        """All that were kept beside the winner; where there is no time for it, the comparison that kept the last."""
        known = self._known(CONFIRMATION, winner, last.setup)
        if known is None and self._has_time(*SIDE_BY_SIDE):
            self._progress.note("comparing all that was kept with the winner once more")
        return self._compare(CONFIRMATION, winner, Candidate(setup=last.setup)) or last

    def _keep(self, comparison: KnobComparison) -> KnobComparison:
        if comparison.outcome is not Outcome.LOST:
            self._write(replace(self._study, comparisons=(*self._study.comparisons, comparison)))
        return comparison

    def _write(self, study: KnobStudy) -> None:
        self._study = study
        self._kept.keep(study)

    def _finish(self, result: Result, last: KnobComparison | None, gradients: GradientCheck | None) -> Result:
        if last is not None and not is_worth_it(last):
            failure = f"not confirmed with all that were kept: {_figures(CONFIRMATION, {}, last).sentence}"
            self._progress.note(failure)
            result, last = replace(result, knobs=tuple(_drop(result.knobs, failure, last.outcome))), None
        best = self._study.winner
        setup = last.setup if last is not None else Setup(config=best.config, description=best.description)
        with deferring_interrupts():
            environment = self._setups.emit(setup, self._folder.plans_file)
            if last is not None:
                best = replace(_with_figures(best, last), environment=environment, gradients=gradients)
            result = replace(result, best=best)
            self._folder.finish(result)
        return result


def _failed(knob: Knob, base: Setup, setup: Setup, outcome: Outcome, message: str) -> KnobComparison:
    return KnobComparison(knob=knob.name, base=base.key, setup=setup, outcome=outcome, message=message)


def _describe(knob: Knob, comparison: KnobComparison | None, *, is_complete: bool) -> KnobFigures:
    if comparison is not None:
        figures = _figures(knob.name, knob.environment, comparison)
        message = figures.message if is_complete else "; ".join(filter(None, [figures.message, NOT_ALL]))
        return replace(figures, is_complete=is_complete, message=message)
    return KnobFigures(name=knob.name, environment=knob.environment, available=not knob.why_not, why_not=knob.why_not)


def _drop(knobs: Sequence[KnobFigures], failure: str, outcome: Outcome) -> Iterator[KnobFigures]:
    for knob in knobs:
        # What kept the machine from confirming may not keep it the next time.
        ended = outcome if outcome is Outcome.LOST else knob.outcome
        yield replace(knob, kept=False, message=failure, outcome=ended) if knob.kept else knob


def _appeal(comparison: KnobComparison) -> tuple[bool, float]:
    """What is faster for sure comes before what may be even faster."""
    ratio = gain_of(comparison.pairs).ratio if comparison.outcome is Outcome.OK else 0.0
    return is_worth_it(comparison), ratio


def _figures(name: str, environment: dict[str, str], comparison: KnobComparison) -> KnobFigures:
    bases, others = zip(*comparison.pairs, strict=True) if comparison.pairs else ((), ())
    gain = gain_of(comparison.pairs) if comparison.outcome is Outcome.OK else None
    return KnobFigures(
        name=name,
        environment=environment,
        available=True,
        outcome=comparison.outcome,
        message=comparison.message,
        throughput_ratio=gain.ratio if gain else None,
        low=gain.low if gain else None,
        high=gain.high if gain else None,
        peak_bytes=highest_peak(others),
        base_peak_bytes=highest_peak(bases),
        kept=is_worth_it(comparison),
    )


def _with_figures(best: Best, comparison: KnobComparison) -> Best:
    measured = [other for _, other in comparison.pairs]
    speeds = [speed for item in measured if (speed := item.samples_per_second) is not None]
    peak_bytes = highest_peak(measured)
    assert peak_bytes is not None, "what was kept was measured"
    return replace(
        best,
        config=comparison.setup.config,
        description=comparison.setup.description,
        samples_per_second=statistics.median(speeds),
        peak_bytes=peak_bytes,
        losses=measured[-1].losses,
    )
