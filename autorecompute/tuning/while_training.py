"""Tunes a training while it trains: its own steps are the trials, and the best config stays on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import AutorecomputeError, SetupError
from autorecompute.result import Best, SearchEnd
from autorecompute.search import GuidedSearcher, ModelSearcher, needs_in
from autorecompute.search.searcher import MOST_TOO_LARGE
from autorecompute.studies.folder import require_plain, using
from autorecompute.trials.bench import takes_turns
from autorecompute.trials.beside import TrainingEndedError
from autorecompute.trials.job import Effort
from autorecompute.tuning.attempt import compose
from autorecompute.tuning.confirmation import Confirmer
from autorecompute.tuning.context import TuningContext
from autorecompute.tuning.explanations import describe, name_of, step_seconds, summarize_search
from autorecompute.tuning.ledger import Ledger, settled
from autorecompute.tuning.lengths import LengthTuner
from autorecompute.tuning.race import (
    LOOKS,
    ROUND_EFFORT,
    Finalist,
    Race,
    fitting_finalists,
    keep_race,
    race,
    round_steps,
)
from autorecompute.tuning.rivals import Rival
from autorecompute.tuning.searcher_factory import analyse, planned_config
from autorecompute.tuning.trial_runner import TrialRunner
from autorecompute.waiting import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.result import Bucket
    from autorecompute.studies import StudyFolder
    from autorecompute.trials.beside import TrainingBench
    from autorecompute.trials.job import Job
    from autorecompute.tuning.context import TuningSettings

SURE = 0.999
"""A config that is less likely to fit is not tried: a step that runs out of memory cannot be taken back."""

EFFORT = Effort(warmup=1, steps=2)
"""Effort of one trial; on a CPU it takes one step more."""

FINALISTS = 3
RACE_STEPS = FINALISTS * LOOKS[0] * (ROUND_EFFORT.warmup + ROUND_EFFORT.steps)
"""Steps of a race up to its first look, where configs are not timed in turns."""

RACE_SHARE = 0.4
"""Of the steps there are, no more than this share is kept back for the race."""

SHARE_OF_SHORTER = 0.4
"""Of the steps there are, this share is left for shorter batches, where the longest was told."""

NEXT_START = "The steps that may be spent on trials are used up; the next start tries more"

NO_FORECAST = "no peak is known before a step. Measure with 'autorecompute tune SCRIPT'"

MEASURED = (
    "The model cannot be run on fake tensors, so real steps told the peaks, from the config on that recomputes most"
)


GAVE_UP = (
    f"The search ended early: whole steps of {MOST_TOO_LARGE} configs needed more than was forecast, and than "
    "the limit. 'autorecompute tune SCRIPT' measures the others"
)


def tune_training(job: Job, folder: StudyFolder, settings: TuningSettings, bench: TrainingBench) -> None:
    """Tune a training to the end of the search, or of the training. Whatever fails is told to the training."""
    context = TuningContext(job=job, bench=bench, folder=folder, settings=settings, progress=_Silence())
    tuning = _Tuning(context, bench)
    try:
        require_plain(folder)
        folder.prepare()
        with using(folder):
            tuning.run()
    except TrainingEndedError:
        pass
    except AutorecomputeError as error:
        tuning.give_up(str(error))
    except Exception as error:
        tuning.give_up(f"the search has failed, {type(error).__name__}: {error}")
        raise
    finally:
        bench.hang_up()


class _Tuning:
    """A search among what is sure to fit, a race, and what stays on."""

    def __init__(self, context: TuningContext, bench: TrainingBench) -> None:
        self._context, self._bench = context, bench
        self._ledger = Ledger(context)
        self._raced: Race | None = None
        self._is_measured = False
        self._why_not: list[str] = []

    def run(self) -> None:
        """Search, decide, and leave what was chosen on.

        Raises:
            AutorecomputeError: it cannot be done.
            TrainingEndedError: the training has ended first; what is known is kept.
        """
        self._context.detect()
        self._ledger.begin()
        known = self._ledger.known_answer()
        goes_on = known is not None and known.search_end in {SearchEnd.INTERRUPTED, SearchEnd.TRAINING}
        if known is not None and known.best is not None and not goes_on:
            study, check = f"as study {self._context.folder.name} has it", self._bench.check(known.best.config)
            if check.agrees:
                answer = replace(known.best, buckets=self._agreeing(known.best.buckets))
                text = "; ".join([describe(answer), *(bucket.sentence for bucket in answer.buckets)])
                self._bench.keep_config(answer.config, f"{text}, {study}", answer.lengths)
            else:
                self._bench.keep_config(None, f"{name_of(known.best)}, {study}, is not used: {check.message}")
            return
        searcher = self._make_searcher()
        runner = TrialRunner(self._context, self._ledger, has_reference=False)
        for trial in self._ledger.start():
            runner.keep(trial)
        has_run_out = True
        self._bench.set_aside = 0.0 if self._context.job.longest is None else SHARE_OF_SHORTER
        try:
            in_turns = FINALISTS * LOOKS[0] * round_steps(self._bench)
            self._bench.keep_back(in_turns if takes_turns(self._bench) else RACE_STEPS, RACE_SHARE, EFFORT)
            with suppress(OutOfTime):
                end = runner.search(searcher, self._hold, lambda _: None)
                has_run_out = end is SearchEnd.TIME
            self._bench.release()
            best = self._with_shorter(self._decide(searcher))
        except TrainingEndedError:
            self._keep(self._choose(searcher), SearchEnd.TRAINING)
            raise
        # What was used up are steps. Where they did not last to compare two configs, the next start has more of them.
        goes_on = has_run_out and self._raced is None
        ends = SearchEnd.TRAINING if goes_on else SearchEnd.TRIALS if has_run_out else SearchEnd.NOTHING_LEFT
        self._keep(best, ends)
        notes = [NEXT_START] * goes_on + [MEASURED] * self._is_measured
        notes += [GAVE_UP] * (searcher.gave_up and not goes_on)
        notes += dict.fromkeys(
            f"{warning[0].upper()}{warning[1:]}" for trial in self._trials for warning in trial.measurement.warnings
        )
        if best is None:
            self._bench.keep_config(None, self._summarize(best, notes))
        else:
            shorter = [*self._why_not, *(bucket.sentence for bucket in best.buckets)]
            notes += [text[0].upper() + text[1:] for text in shorter]
            self._bench.keep_config(best.config, self._summarize(best, notes), best.lengths)

    def give_up(self, reason: str) -> None:
        """Leave the training as it is."""
        with suppress(TrainingEndedError):
            self._bench.give_up(reason)

    @property
    def _trials(self) -> list[Trial]:
        return self._hold(settled(self._ledger.trials))

    def _hold(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial.under(self._context.problem.limit_bytes) for trial in trials]

    def _make_searcher(self) -> GuidedSearcher:
        detection = self._context.detection
        rough = backend_of(detection.versions).rough_memory_of(detection)
        memory = analyse(self._context)
        self._is_measured = memory is None
        if memory is None and (memory := rough) is None:
            raise SetupError(NO_FORECAST)
        dims, limit_bytes = self._context.dims, self._context.problem.limit_bytes
        searcher = ModelSearcher(detection.space, limit_bytes=limit_bytes, memory=memory, dims=dims, least_fit=SURE)
        return GuidedSearcher(
            searcher,
            limit_bytes,
            planned=planned_config(self._context),
            least_fit=SURE,
            needs_of=needs_in(memory, dims, self._bench.whole_step),
            may_fail=False,
        )

    def _decide(self, searcher: GuidedSearcher) -> Best | None:
        """Return the fastest that fits, by rounds in turns as far as there are steps for them."""
        finalists = self._finalists(searcher)
        if len(finalists) > 1:
            with suppress(OutOfTime):  # the rounds so far count
                limit_bytes, keep = self._context.problem.limit_bytes, self._keep_race
                keep(
                    race(
                        self._bench,
                        finalists,
                        has_reference=False,
                        limit_bytes=limit_bytes,
                        pays=self._context.pays,
                        after_round=keep,
                    )
                )
        best = self._choose(searcher)
        # What an earlier run of the script measured has not been compared in this one.
        while best is not None and not self._bench.check(best.config).agrees:
            best = self._choose(searcher)
        return best

    def _with_shorter(self, best: Best | None) -> Best | None:
        """Return the answer with configs for shorter batches, where the longest was told."""
        if best is None or self._context.job.longest is None:
            return best
        self._bench.set_aside = 0.0
        tuner = LengthTuner(self._context, self._trials, best)
        best = replace(best, buckets=tuner.measure(), longest=tuner.longest)
        self._why_not = tuner.why_not
        return best

    def _agreeing(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
        """Return those whose configs have the gradients of none."""
        return tuple(bucket for bucket in buckets if self._bench.check(bucket.config).agrees)

    def _keep_race(self, raced: Race) -> None:
        self._raced = raced
        keep_race(self._context.folder, raced, len(self._trials))

    def _finalists(self, searcher: GuidedSearcher) -> list[Finalist]:
        """Return those that should be the fastest, and what the training began with, to be compared with them."""
        trials, first = self._trials, self._first
        if first is None:
            return []
        fitting = fitting_finalists(trials, searcher.expect_steps(trials))
        fitting = [entry for entry in fitting if entry.trial.config not in self._refused]
        return [entry for n, entry in enumerate(fitting) if n < FINALISTS - 1 or entry.trial == first][:FINALISTS]

    @property
    def _first(self) -> Trial | None:
        """Return the trial of what the training began with, or an earlier one."""
        return next((trial for trial in self._trials if trial.fits and trial.config not in self._refused), None)

    @property
    def _refused(self) -> dict[Config, str]:
        """Return why configs are not used, in words."""
        return {config: check.message for config, check in self._bench.checks.items() if not check.agrees}

    def _choose(self, searcher: GuidedSearcher) -> Best | None:
        raced = self._raced.standings if self._raced is not None else self._finalists(searcher)
        standings = [entry for entry in raced if entry.trial.config not in self._refused]
        if not standings:
            return None
        winner, measurement = standings[0], standings[0].trial.measurement
        assert measurement.samples, "a finalist was measured"
        return Best(
            config=winner.trial.config,
            description=winner.trial.description,
            batch=self._context.problem.batch,
            samples_per_second=measurement.samples / step_seconds(winner),
            relative_throughput=1.0 if winner.trial.config.is_none else None,
            ranking=self._raced.ranking if self._raced is not None else None,
            peak_bytes=winner.peak_bytes,
            limit_bytes=self._context.problem.limit_bytes,
            losses=measurement.losses,
            gradients=self._bench.checks.get(winner.trial.config),
            confirmed=False,
        )

    def _keep(self, best: Best | None, search_end: SearchEnd) -> None:
        context, limit_bytes = self._context, self._context.problem.limit_bytes
        # Only what is sure to fit was tried: that none of it can be used is no proof that nothing fits.
        ends = search_end if best is not None else SearchEnd.TRAINING
        result = compose(context, Confirmer(context), best, Rival(), self._trials, limit_bytes, compared=False)
        context.folder.finish(replace(result.ending(ends), wall_seconds=self._ledger.seconds))

    def _summarize(self, best: Best | None, notes: Sequence[str]) -> str:
        describe_config = self._context.detection.space.describe
        return summarize_search(
            best,
            self._context.problem.limit_bytes,
            trials=self._trials,
            first=self._first,
            standings=self._raced.standings if self._raced is not None else (),
            refused=[f"{describe_config(config)}, {reason}" for config, reason in self._refused.items()],
            spent_steps=self._bench.spent_steps,
            spent_seconds=self._bench.spent_seconds,
            notes=notes,
        )


class _Silence:
    """Watches a search whose user reads what the training prints."""

    def note(self, *_: object, **__: object) -> None:
        """Nothing."""

    detected = trial_begins = trial_ended = leads = may_be_used = note
