"""One search, and the decision after it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import LeftToOthers
from autorecompute.figures import Figures, RaceEnd
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Result, SearchEnd
from autorecompute.tuning import race as racing
from autorecompute.tuning import rivals
from autorecompute.tuning.budget import Task
from autorecompute.tuning.confirmation import TELLING, Confirmer
from autorecompute.tuning.explanations import OVER_BATCH, advise_on_glibc, explain_unsplittable
from autorecompute.tuning.race import (
    FINALISTS,
    LOOKS,
    TIE,
    Finalist,
    Race,
    expected_gain,
    fitting_finalists,
    gap,
    is_faster,
)
from autorecompute.tuning.rivals import Rival
from autorecompute.tuning.searcher_factory import StudySearcher
from autorecompute.tuning.usual import Usual, compare_with_usual, recall_usual
from autorecompute.units import format_bytes, format_count
from autorecompute.waiting import OutOfTime, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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

SEARCHES = 2
"""A second search follows where everything that fits in its steps does not fit as a whole process, or all that is
faster than what was confirmed."""

UNSURE = 0.2
"""Chance that a confirmed config is slower by less than the gain for which it is replaced."""

NO_RACE = Race(standings=())


class Attempt:
    """Searches until nothing is left to gain, then decides.

    The answer stays until something better is confirmed after it. A decision knows more than the figures of single
    processes: it has a race behind it, and a tie goes to the lower peak. So a config that was confirmed before the
    decision does not replace its winner, however fast it looks.

    ``set_answer`` is given each answer that an interruption would leave; ``None`` takes the last one back.
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
        self._confirmer = Confirmer(context)
        for known in self._confirmer.rejections:
            context.note(f"{known.outcome} in an earlier session: {known.reason}")
        self._searcher = StudySearcher(context, prior, self._confirmer.limit)
        self._earlier, self._known = context.folder.result(), frozenset(self._confirmer.confirmed)
        best = self._earlier.best if self._earlier is not None else None
        # What has knobs is the answer with them alone, and what a training found may be none.
        is_answer = best is not None and best.confirmed and not best.knobs and best.config in self._known
        self._decided = best if is_answer else None
        self._race, self._ran_out = NO_RACE, False
        self._usual: dict[Config, Usual] = {}  # beside which gradient checkpointing was measured
        self._told: Config | None = None  # the last answer of which it was said that it may be used

    def run(self) -> Result:
        """Return the answer; where the time is over, that so far.

        Raises:
            KeyboardInterrupt: the user stopped it; the answer so far was kept.
            LeftToOthers: the time is over, there is no answer yet, and other workers go on.
        """
        try:
            return self._search_and_decide()
        except OutOfTime:
            result = self._give_late()
            self._set_answer(_with_best(result))
            return result
        except KeyboardInterrupt:
            self._set_answer(_with_best(self._keep(SearchEnd.INTERRUPTED)))
            raise

    def _search_and_decide(self) -> Result:
        trials: list[Trial] = []
        beside: dict[Config, Rival] = {}
        limit_bytes = 0
        for search in range(SEARCHES):
            searcher = self._searcher.begin()
            search_end = self._runner.search(searcher, self._confirmer.hold, self._confirm_early)
            if (published := self._ledger.published_answer()) is not None:
                return published
            is_last = search == SEARCHES - 1
            if not is_last and self._has_confirmed_leanest():
                self._confirmer.stop_guessing()
                continue
            lowered_from, limit_bytes = limit_bytes, self._confirmer.limit(self._ledger.trials)
            has_new = len(trials) < len(self._ledger.trials)
            if self._best is not None and limit_bytes < lowered_from and not has_new:
                break  # nothing else fits below: the decision stands
            trials = self._under(limit_bytes)
            beside = self._decide(trials, limit_bytes, searcher.expect_steps(trials))
            if is_last or not self._goes_on(limit_bytes):
                break
        result = self._compare(trials, limit_bytes, beside)
        return self._give(replace(result, expected=self._expected(result, searcher, trials)), search_end)

    def _has_confirmed_leanest(self) -> bool:
        """Tell whether the guess left no room for anything, and a whole process within the limit told what is needed.

        It is the likeliest to hold it, so it has its process where there is time for no other one.
        """
        earlier: set[Config] = set()
        for _ in range(TELLING):
            leanest = self._confirmer.leanest_beyond(self._ledger.trials)
            if leanest is None or leanest.config in earlier:
                return False
            if not self._context.budget.allows_late(*self._confirmer.needs(leanest.config)):
                return False
            if self._confirmer.confirm(Finalist(trial=leanest)) is not None:
                return True
            earlier.add(leanest.config)
        return False

    def _goes_on(self, limit_bytes: int) -> bool:
        """Tell whether another search may find what this one left out, by what whole processes were seen to need."""
        best, trials = self._best, self._ledger.trials
        # No recompute may fit after all, by what a whole process was seen to need.
        fits = any(trial.config.is_none and trial.under(self._confirmer.limit(trials)).fits for trial in trials)
        excess_bytes = self._confirmer.stop_guessing(learns=True)
        if best is not None:
            if fits and not best.config.is_none and Config() not in self._confirmer.rejected:
                return True
            if self._confirmer.limit(trials) >= limit_bytes or not self._is_outrun(best):
                return False
        elif not excess_bytes:
            return limit_bytes < self._context.problem.limit_bytes
        needed = f"whole processes need {format_bytes(excess_bytes)} more: searching below that"
        advice = advise_on_glibc(self._context.detection)
        self._context.note(f"{needed}. {advice}".rstrip(". "))
        return True

    def _is_outrun(self, best: Best) -> bool:
        """Tell whether a config was faster than the answer and needed too much as a whole process."""
        seen = {trial.config: trial.relative_throughput for trial in self._ledger.trials}
        seen |= {entry.trial.config: entry.relative_throughput for entry in self._race.everybody if entry.rounds}
        speeds = (seen.get(known.config) for known in self._confirmer.rejections if known.excess_bytes)
        own = seen.get(best.config)
        return own is not None and any(speed is not None and speed > own * (1 + TIE) for speed in speeds)

    def _under(self, limit_bytes: int) -> list[Trial]:
        """Return the trials under the limit for trials; a confirmed config holds the user's, whatever others need."""
        limits = dict.fromkeys(self._confirmer.confirmed, self._context.problem.limit_bytes)
        return [trial.under(limits.get(trial.config, limit_bytes)) for trial in self._ledger.trials]

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
        context, reserve_seconds = self._context, self._context.reserve_seconds(trials)
        remaining = self._confirmer.remaining(trials)
        leanest = self._confirmer.leanest_beyond(trials)
        steps = self._searcher.expect_steps(trials)
        finalist = (
            Finalist(trial=leanest) if leanest is not None else next(iter(fitting_finalists(remaining, steps)), None)
        )
        if finalist is None:
            return
        # A preset may be far from the limit, and its process may hold more or less than those that come near it.
        presets = context.detection.space.presets.values()
        is_telling = leanest is not None or finalist.trial.config not in presets
        teaches = is_telling and self._confirmer.is_guess(trials)
        if self._confirmer.confirm_if_due(finalist, reserve_seconds, teaches=teaches):
            self._set_answer(self._keep(SearchEnd.INTERRUPTED))
            if self._best is not None and self._best.config != self._told:
                self._told = self._best.config
                context.progress.may_be_used(self._best)

    def _give(self, result: Result, search_end: SearchEnd) -> Result:
        # What there was no time for is made up for by the next session, be the search at its end or not.
        result = result.ending(search_end if result.compared else SearchEnd.TIME)
        # What others can do no better, though the next session may, is the answer for all.
        is_for_all = result.best is not None or not (search_end is SearchEnd.TIME or self._ran_out)
        if not is_for_all and (published := self._leave_to_others(result)) is not None:
            return published
        self._write(result)
        return self._ledger.publish(result) if is_for_all else result

    def _give_late(self) -> Result:
        """Return the answer of a worker whose time is over. Who is to give an answer gives it to all."""
        so_far = self._compose_so_far()
        is_for_all = so_far.best is not None and self._ledger.is_confirming
        if not is_for_all and (published := self._leave_to_others(so_far)) is not None:
            return published
        result = self._keep(SearchEnd.TIME)
        return self._ledger.publish(result) if is_for_all else result

    def _leave_to_others(self, so_far: Result) -> Result | None:
        """End here where others go on; give the answer that they may have come to at this moment."""
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

    def _keep(self, search_end: SearchEnd) -> Result:
        """Write down the answer so far; nothing where the user stopped it and nothing was confirmed."""
        result, earlier = self._compose_so_far().ending(search_end), self._earlier
        if earlier is not None and _says_more(earlier, result):
            result = _brought_up_to_date(earlier, result)
        if result.best is not None or search_end is SearchEnd.TIME:
            self._write(result)
        return result

    def _write(self, result: Result) -> None:
        """Write an answer down, unless it takes away one that a training found and that may yet be confirmed."""
        known = self._earlier.best if self._earlier is not None else None
        may_be_confirmed = known is not None and not known.confirmed and known.config.hash not in result.rejected
        if not (result.search_end.is_early and result.best is None and may_be_confirmed):
            self._context.folder.finish(result)

    @property
    def _best(self) -> Best | None:
        """Return the last decision, or the fastest where that was confirmed later."""
        fastest = self._confirmer.best
        is_new = fastest is not None and fastest.config not in self._known
        return fastest if is_new or self._decided is None else self._decided

    def _settle(self, best: Best) -> None:
        self._decided, self._known = best, frozenset(self._confirmer.confirmed)

    def _compose(self, rival: Rival, trials: Sequence[Trial], limit_bytes: int, *, compared: bool) -> Result:
        seen = (self._context, self._confirmer, self._best, rival, trials, limit_bytes)
        best = self._best
        usual = None if best is None else self._usual.get(best.config) or recall_usual(self._earlier, best.config)
        result = compose(*seen, compared=compared, raced=self._race, usual=usual)
        return replace(result, wall_seconds=self._ledger.seconds, transferred_from=self._transfer)

    def _compose_so_far(self) -> Result:
        """Return the answer so far, compared with nothing."""
        needs_rival = rivals.needs_rival_batch(self._best, self._context.settings) and not self._is_over_batch
        trials, compared = self._ledger.trials, not needs_rival
        return self._compose(Rival(), trials, self._confirmer.limit(trials), compared=compared)

    def _decide(self, trials: Sequence[Trial], limit_bytes: int, steps: Mapping[int, float]) -> dict[Config, Rival]:
        """Race and confirm; return what the process that lives told of a smaller batch beside the winner.

        The trials are under the limit for trials. Who is raced depends on their expected steps.
        """
        context, confirmer = self._context, self._confirmer
        self._ran_out, confirmer.last_process = False, None
        baseline = _baseline_of(trials)
        race_seconds = max(RACE_SHARE * self._ledger.seconds, context.budget.expect(Task.START))
        deadline_seconds = clock() + race_seconds
        standings = fitting_finalists(confirmer.remaining(trials), steps)
        # Where no recompute holds the limit nothing has to be recomputed, whatever looks as fast.
        beside: dict[Config, Rival] = {}
        plain = [entry for entry in standings if entry.trial.config.is_none]
        self._look_at_usual(plain, limit_bytes)
        if not self._confirm(plain):
            others = [entry for entry in standings if not entry.trial.config.is_none]
            ranked = self._rank(others, trials, steps, deadline_seconds=deadline_seconds)
            ranked = self._with_confirmed_first(ranked, steps)
            # Before the fresh processes, which end the one that lives.
            self._look_at_usual(ranked, limit_bytes)
            compares = context.settings.batch is not None and not self._is_over_batch
            if ranked and compares and context.settings.rival_batch is None:
                in_place = rivals.compare_in_place(context, ranked[0], baseline, limit_bytes)
                beside = {ranked[0].trial.config: in_place} if in_place is not None else {}
            self._confirm(ranked)
        return beside

    def _look_at_usual(self, ranked: Sequence[Finalist], limit_bytes: int) -> None:
        """Measure gradient checkpointing beside the first one, unless it was compared with that before."""
        config = ranked[0].trial.config if ranked else None
        if config is None or config in self._usual or recall_usual(self._earlier, config) is not None:
            return
        found = compare_with_usual(self._context, config, limit_bytes)
        if found is not None:
            self._usual[config] = found

    def _compare(self, trials: Sequence[Trial], limit_bytes: int, beside: Mapping[Config, Rival]) -> Result:
        """Return the answer, compared with a smaller batch."""
        context, confirmer = self._context, self._confirmer
        rival = self._compare_with_baseline(_baseline_of(trials), beside)
        if not rival.is_complete:
            context.note("no time left for all comparisons in fresh processes")
        is_any_left = bool(confirmer.failures) or any(trial.fits for trial in confirmer.remaining(trials))
        may_be_confirmed = self._best is None and is_any_left
        compared = rival.is_complete and not self._ran_out and not may_be_confirmed
        return self._compose(rival, trials, limit_bytes, compared=compared)

    def _compare_with_baseline(self, baseline: Trial | None, beside: Mapping[Config, Rival]) -> Rival:
        best = self._best
        if best is None or not rivals.needs_rival_batch(best, self._context.settings):
            return Rival()
        if self._is_over_batch:
            self._context.note(f"{OVER_BATCH}: no smaller batch is compared")
            return Rival(none_fits=True)
        known = beside.get(best.config)
        rival = rivals.confirm_rival(self._context, known) if known is not None else None
        if rival is None:
            is_just_confirmed = best.config == self._confirmer.last_process
            rival = rivals.compare_with_rival_batch(self._context, best, baseline, is_just_confirmed=is_just_confirmed)
        rival = rivals.recall_rival(self._earlier, best, rival)
        if rival.is_complete and rival.figures is None:
            known_of_it = "fits" if rival.none_fits else "could be measured"
            self._context.note(f"no smaller batch without recompute {known_of_it}")
        return rival

    @property
    def _is_over_batch(self) -> bool:
        return any(trial.measurement.is_over_batch for trial in self._ledger.trials)

    def _with_confirmed_first(self, ranked: list[Finalist], steps: Mapping[int, float]) -> list[Finalist]:
        """Return them with what is confirmed at the top, where a process more for another one does not pay."""
        known = next((entry for entry in ranked if entry.trial.config in self._confirmer.confirmed), None)
        ranking, winner = self._race.ranking, ranked[0] if ranked else None
        is_decided = ranking is not None and ranking.end not in {RaceEnd.UNDECIDED, RaceEnd.ENOUGH}
        if known is None or winner is None or is_decided:
            return ranked
        own, others = steps[known.trial.number], steps[winner.trial.number]
        is_raced = known.rounds and winner.rounds
        gain = -math.expm1(-gap(known, winner, UNSURE).low) if is_raced else 1 - others / own
        if self._context.pays(gain, self._context.expect(*self._confirmer.needs(winner.trial.config))):
            return ranked
        if known is not winner:
            names = known.trial.description, winner.trial.description
            self._context.note(f"{names[0]} stays: a process to confirm {names[1]} would not pay")
        return [known, *(entry for entry in ranked if entry is not known)]

    def _worth_ranking(self, standings: Sequence[Finalist], steps: Mapping[int, float]) -> list[Finalist]:
        """Return the first one and those that may be faster, as far as it pays for the training to know.

        What is confirmed is among them wherever there is a race: it is to be replaced by nothing slower.
        """
        if not standings:
            return []
        first, *others = standings[:FINALISTS]
        seconds = self._context.expect(*[Task.ROUND] * (LOOKS[0] * (len(others) + 2)))
        leads = [max(math.log(steps[other.trial.number] / steps[first.trial.number]), 0.0) for other in others]
        near = [
            other
            for other, lead in zip(others, leads, strict=True)
            if self._context.pays(expected_gain(lead, LOOKS[0]), seconds)
        ]
        known = [entry for entry in standings[1:] if entry.trial.config in self._confirmer.confirmed]
        return [first, *near, *(entry for entry in known if near and entry not in near)]

    def _rank(
        self, standings: list[Finalist], trials: Sequence[Trial], steps: Mapping[int, float], *, deadline_seconds: float
    ) -> list[Finalist]:
        front, baseline = self._worth_ranking(standings, steps), _baseline_of(trials)
        has_reference = baseline is not None and baseline.measurement.outcome.is_measured
        if len(front) < 2:  # noqa: PLR2004  (one alone has nobody to be ranked with)
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
        what = "racing in interleaved rounds what should be the fastest by all trials together"
        if earlier is not None:
            what = f"racing on after {format_count(earlier.rounds, 'round')} of an earlier session"
        names = ", ".join(self._context.detection.space.describe(entry.trial.config) for entry in front)
        self._context.note(f"{what}: {names}")
        end_seconds = self._context.budget.deadline_seconds - self._context.budget.expect(*winner_needs)

        def keep(raced: Race) -> None:
            racing.keep_race(self._context.folder, raced, len(trials))

        raced = racing.race(
            self._context.bench,
            front,
            has_reference=has_reference,
            limit_bytes=self._context.problem.limit_bytes,
            # Where the first rounds leave time for more, the rival batch comes first.
            deadline_seconds=min(deadline_seconds, end_seconds - self._context.budget.expect(Task.CONFIRMATION)),
            end_seconds=end_seconds,
            earlier=earlier,
            pays=self._context.pays,
            after_round=keep,
        )
        keep(raced)
        self._take(raced)
        return raced.in_order(standings)

    def _earlier_race(self, front: Sequence[Finalist], trials: Sequence[Trial]) -> Race | None:
        """Return that of the same finalists; some of them may have been rejected after it."""
        raced = racing.read_race(self._context.folder, trials)
        if raced is None:
            return None
        left = {entry.trial.number for entry in raced.everybody if entry.trial.config not in self._confirmer.rejected}
        is_same = left and left <= {entry.trial.number for entry in front}
        return raced if is_same and (raced.is_over or len(left) == len(raced.everybody)) else None

    def _take(self, raced: Race, when: str = "") -> None:
        self._race = raced
        self._confirmer.learn(raced.standings)
        for entry in raced.over_limit:
            self._context.note(f"{entry.trial.description}: within the limit in its trial, over it {when}in the race")
        if raced.ranking is not None:
            self._context.note(f"{raced.standings[0].trial.description}: {when}{raced.ranking.sentence}")

    def _confirm(self, standings: Sequence[Finalist]) -> bool:
        """Take the first of them that a process of its own confirms for the answer; tell whether there was one."""
        for finalist in standings[:CONFIRMATIONS]:
            config = finalist.trial.config
            if self._confirmer.foretells_excess(finalist):
                continue
            if not self._context.budget.allows_late(*self._confirmer.needs(config)):
                self._context.note(f"no time left to confirm {self._context.detection.space.describe(config)}")
                self._ran_out = True
                continue
            self._context.progress.leads(finalist.trial, finalist.relative_throughput)
            best = self._confirmer.confirm(finalist)
            if best is not None:
                # Who comes next where the winner is not confirmed was never compared with the rest at that confidence.
                is_winner = [config] == [entry.trial.config for entry in self._race.standings[:1]]
                self._settle(replace(best, ranking=self._race.ranking if is_winner else None))
                self._confirm_faster(finalist, standings)
                return True
        return False

    def _confirm_faster(self, winner: Finalist, standings: Sequence[Finalist]) -> None:
        """Give those their own process that were over the limit in the race, and faster there than the winner.

        The first one that holds the limit as a whole process is the answer.
        """
        able = {entry.trial.number for entry in standings}
        for entry in self._race.over_limit:
            if entry.trial.number not in able or not is_faster(entry, winner):
                continue
            what = f"{entry.trial.description}: faster than the winner, and over the limit in the race"
            if not self._context.budget.allows(*self._confirmer.needs(entry.trial.config)):
                self._context.note(f"{what}; no time left for its own process")
                continue
            self._context.note(f"{what}; its own process decides")
            best = self._confirmer.confirm(entry)
            if best is not None:
                self._context.note(f"{entry.trial.description}: within the limit in its own process, and taken")
                self._settle(best)
                return


def compose(  # noqa: PLR0913, PLR0917  (all that an answer is made of)
    context: TuningContext,
    confirmer: Confirmer,
    best: Best | None,
    rival: Rival,
    trials: Sequence[Trial],
    limit_bytes: int,
    *,
    compared: bool,
    raced: Race = NO_RACE,
    usual: Usual | None = None,
) -> Result:
    """Return the answer that these make. What is over the limit in it is over the user's, not over that for trials.

    ``limit_bytes`` is the limit for trials, and ``compared`` true if all comparisons were made that there are to make.
    """
    detection, rejections = context.detection, confirmer.rejections
    trials = [trial.under(context.problem.limit_bytes) for trial in trials]
    by_hash = {trial.config.hash: trial for trial in trials}
    # A whole process says more than the reserve: of these it is known whether they hold the limit.
    known = {*confirmer.rejected, *confirmer.confirmed, *([best.config] if best is not None else [])}
    short = [trial.config for trial in trials if trial.fits and not trial.under(limit_bytes).fits]
    runners = [entry for entry in (*raced.standings, *raced.over_limit) if entry.ratios]
    speeds = {entry.trial.config.hash: entry.relative_throughput for entry in runners}
    wrong = [entry.reason for entry in rejections if entry.outcome is Outcome.WRONG_GRADIENT]
    presets = {name: by_hash.get(one.hash) for name, one in detection.space.presets.items() if not one.is_none}
    figures = {name: Figures.of(trial) for name, trial in presets.items()}
    unsplittable = explain_unsplittable(detection, [trial.measurement for trial in trials])
    warnings = [text for trial in trials for text in trial.measurement.warnings]
    if unsplittable and rival.figures is not None:
        warnings.append(f"{unsplittable}: a smaller batch trains to other weights, whatever its speed")
    if usual is not None and presets.get(usual_name := backend_of(detection.versions).USUAL_PRESET) is None:
        figures[usual_name] = usual.figures  # it had no trial, and was measured beside the answer
    return Result(
        study=context.folder.name,
        problem=context.problem.digest,
        verdict=rivals.judge_recompute(best, rival),
        best=best,
        baseline=Figures.of(_baseline_of(trials)),
        presets=figures,
        rival=rival.figures,
        comparison=rival.comparison,
        checkpointing=usual.figures if usual is not None else None,
        beside_checkpointing=usual.comparison if usual is not None else None,
        compared=compared,
        raced={config: speed for config, speed in speeds.items() if speed is not None},
        raced_over_limit=tuple(entry.trial.config.hash for entry in raced.over_limit),
        reserve_bytes=context.problem.limit_bytes - limit_bytes,
        short_of_reserve=tuple(dict.fromkeys(config.hash for config in short if config not in known)),
        rejected={entry.config.hash: entry.outcome for entry in rejections},
        is_over_batch=any(trial.measurement.is_over_batch for trial in trials),
        warnings=tuple(dict.fromkeys(warnings)),
        unconfirmed=(*wrong, *confirmer.failures.values()),
        trials=len(trials),
        device=detection.device,
        versions=detection.versions,
        command=context.command,
        script_at=context.job.script_at,
        command_gives_batch=context.settings.batch is None or context.job.takes_batch,
    )


def _baseline_of(trials: Sequence[Trial]) -> Trial | None:
    return next((trial for trial in reversed(trials) if trial.config.is_none), None)


def _with_best(result: Result) -> Result | None:
    return result if result.best is not None else None


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
