"""Runs the finalists in interleaved rounds with the reference until they are ranked."""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.figures import RaceEnd, Ranking, comparable_steps
from autorecompute.measurement import Outcome, Trial
from autorecompute.plans import Config
from autorecompute.studies.records import RACE_FILE, RaceRecord, RoundRecord, StandingRecord
from autorecompute.trials.bench import drifts, measure_in_turns, takes_turns
from autorecompute.trials.job import Effort
from autorecompute.tuning.intervals import Interval, centre, interval

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autorecompute.measurement import Measurement
    from autorecompute.studies import StudyFolder
    from autorecompute.trials import Bench


TIE = 0.02
"""Throughputs closer than this share are a tie, which the lower peak wins."""

LOG_TIE = -math.log1p(-TIE)
"""The same, between the logarithms of two step times."""

SPREAD_CONFIDENCE = 0.95
"""Confidence of the spread that is printed with a relative throughput."""

LEAST_TELLING = 2
"""Fewer undisturbed rounds than this are not enough for an estimate of their own, nor for a spread."""

UNKNOWN = Interval(-math.inf, 0.0, math.inf)
"""Interval of a difference where every round was disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A finalist.

    Attributes:
        trial: Its trial in the study.
        rounds: One for each round it ran in, from the first round on without a gap.
    """

    trial: Trial
    rounds: tuple[RoundRecord, ...] = ()

    @property
    def ratios(self) -> list[float]:
        """Step time of the reference over its own, one for each telling round with a reference."""
        clean = [run for run in self.rounds if not run.is_disturbed]
        # An estimate is needed all the same where too few were undisturbed.
        telling = clean if len(clean) >= LEAST_TELLING else self.rounds
        return [run.ratio for run in telling if run.ratio is not None]

    @property
    def relative_throughput(self) -> float | None:
        """Median over the rounds; the trial's own figure where no round had a reference."""
        return statistics.median(self.ratios) if self.ratios else self.trial.relative_throughput

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return the interval of the relative throughput at ``SPREAD_CONFIDENCE``.

        ``None`` before two rounds with a reference that nothing disturbed.
        """
        ratios = [run.ratio for run in self.rounds if run.ratio is not None and not run.is_disturbed]
        if len(ratios) < LEAST_TELLING:
            return None
        found = interval([math.log(ratio) for ratio in ratios], (1 - SPREAD_CONFIDENCE) / 2)
        return math.exp(found.low), math.exp(found.high)

    @property
    def peak_bytes(self) -> int:
        """Peak of its trial."""
        assert self.trial.measurement.peak_bytes is not None, "a finalist was measured"
        return self.trial.measurement.peak_bytes


def fitting_finalists(trials: Sequence[Trial], steps: Mapping[int, float] | None = None) -> list[Finalist]:
    """Return the configs that fit, fastest first.

    Args:
        trials: What was measured.
        steps: What their steps should really take, by number; without it, what was measured counts, relative to their
            reference where all of them have one.
    """
    fitting = [trial for trial in trials if trial.fits]
    has_all = all(trial.relative_throughput is not None for trial in fitting)
    medians = comparable_steps([trial.measurement for trial in fitting])
    seconds = {trial.number: median for trial, median in zip(fitting, medians, strict=True) if median}

    def slowness(trial: Trial) -> float:
        if steps is not None:
            return steps[trial.number]
        return -(trial.relative_throughput or 0.0) if has_all else seconds[trial.number]

    return [Finalist(trial=trial) for trial in sorted(fitting, key=slowness)]


def gap(first: Finalist, second: Finalist, miss: float) -> Interval:
    """Return the logarithm of the first's step time over the second's, from the undisturbed rounds that both ran in.

    Args:
        first: A finalist with at least one run.
        second: Another one.
        miss: Chance of a wrong end, for each end.
    """
    evidence = [both for both in _shared_rounds(first, second) if not any(run.is_disturbed for run in both)]
    return interval([_difference(*both) for both in evidence], miss) if evidence else UNKNOWN


def rank(entries: Sequence[Finalist]) -> list[Finalist]:
    """Return them by the estimates alone, fastest first; the lower peak first where they are equal.

    No estimate is taken for a tie: a config that looks as fast in noise may be any share slower.
    """
    lags = {entry.trial.number: sum(lag(entry, other) for other in entries) for entry in entries}
    return sorted(entries, key=lambda entry: (lags[entry.trial.number], entry.peak_bytes))


def lag(entry: Finalist, other: Finalist) -> float:
    """Return the estimate alone of how much longer a step of the first takes, as a logarithm."""
    shared = _shared_rounds(entry, other)
    clean = [both for both in shared if not any(run.is_disturbed for run in both)]
    return centre([_difference(*both) for both in (clean if len(clean) >= LEAST_TELLING else shared)])


def is_faster(entry: Finalist, other: Finalist) -> bool:
    """Tell whether the first is faster by more than a tie, by the rounds that both ran in or beside the reference."""
    if entry.rounds and other.rounds:
        return lag(entry, other) < -LOG_TIE
    own, others = entry.relative_throughput, other.relative_throughput
    return own is not None and others is not None and math.log(own / others) > LOG_TIE


def _shared_rounds(first: Finalist, second: Finalist) -> list[tuple[RoundRecord, RoundRecord]]:
    # Only what two finalists did in the same round is compared: what slows a whole round cancels.
    return list(zip(first.rounds, second.rounds, strict=False))


def _difference(own: RoundRecord, others: RoundRecord) -> float:
    return math.log(own.seconds / others.seconds)


FINALISTS = 4
CONFIDENCE = 0.99
"""Confidence in a race's end, where it came to one."""

LOOKS = (3, 5, 8, 12, 18, 28)
"""Undisturbed rounds after which the race may end."""

MOST_ROUNDS = 2 * LOOKS[-1]
"""Rounds after which it ends, however many of them were disturbed."""

ROUND_EFFORT = Effort(warmup=1, steps=3)
CARD_ROUND_EFFORT = replace(ROUND_EFFORT, warmup=2)
"""A card's cached blocks are handed back after the first step of warm-up, and the second one pays for new ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """Result of a race.

    Attributes:
        standings: The finalists that ran to the end or were beaten, the winner first.
        ranking: How sure that is; ``None`` where no finalist is left.
        over_limit: The finalists that held the limit in their trial and not in their last round.
        failed: The finalists that were not measured in a round, for whatever reason.
    """

    standings: tuple[Finalist, ...]
    ranking: Ranking | None
    over_limit: tuple[Finalist, ...] = ()
    failed: tuple[Finalist, ...] = ()

    @property
    def is_over(self) -> bool:
        """Tell whether further rounds need not be run: it came to an end, or saw the rounds of a look."""
        ranking = self.ranking
        return ranking is not None and (ranking.end is not RaceEnd.UNDECIDED or ranking.rounds >= LOOKS[0])

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return max((len(entry.rounds) for entry in self.standings), default=0)

    @property
    def disturbed(self) -> int:
        """Return the number of rounds that other processes disturbed."""
        longest = max(self.standings, key=lambda entry: len(entry.rounds), default=None)
        return sum(run.is_disturbed for run in longest.rounds) if longest is not None else 0

    @property
    def everybody(self) -> tuple[Finalist, ...]:
        """Return all that began."""
        return (*self.standings, *self.over_limit, *self.failed)

    def in_order(self, standings: Sequence[Finalist]) -> list[Finalist]:
        """Return them in the order in which they get a process of their own: as raced, and then who was not."""
        numbers = {entry.trial.number for entry in self.everybody}
        others = [entry for entry in standings if entry.trial.number not in numbers]
        able = {entry.trial.number for entry in standings}
        # Who was over the limit in a round, or failed there, comes last: the whole process decides.
        order = [*self.standings, *others, *self.over_limit, *self.failed]
        return [entry for entry in order if entry.trial.number in able]


def race(  # noqa: PLR0913  (what bounds a race)
    bench: Bench,
    standings: Sequence[Finalist],
    *,
    has_reference: bool,
    limit_bytes: float = math.inf,
    deadline_seconds: float = math.inf,
    end_seconds: float = math.inf,
    earlier: RaceResult | None = None,
    after_round: Callable[[RaceResult], None] = lambda _: None,
) -> RaceResult:
    """Measure the finalists in rounds until they are ranked, tied, or the time is over.

    A finalist that fails in a round or is over the limit there is out, and not ranked. A reference that fails is not
    measured again.

    Args:
        bench: Where they are measured.
        standings: The finalists.
        has_reference: Whether the batch runs without recompute.
        limit_bytes: What the peak may reach.
        deadline_seconds: Time on the monotonic clock after which no round begins, but those before the first look.
        end_seconds: Time at which the race should be over, be it before the first look; the first round is always run.
        earlier: A race of the same finalists that was not over, whose rounds count.
        after_round: Called with the race so far after each round but the last possible one.
    """
    found = _Race(bench, standings, limit_bytes, has_reference=has_reference, earlier=earlier)
    return found.run(deadline_seconds, end_seconds, after_round)


class _Race:
    def __init__(
        self,
        bench: Bench,
        standings: Sequence[Finalist],
        limit_bytes: float,
        *,
        has_reference: bool,
        earlier: RaceResult | None,
    ) -> None:
        self._bench, self._limit_bytes, self._has_reference = bench, limit_bytes, has_reference
        self._over_limit: list[Finalist] = []
        self._failed: list[Finalist] = []
        self._running: dict[Config, Finalist] = {entry.trial.config: entry for entry in standings}
        self._beaten: list[Finalist] = []
        self._miss = (1 - CONFIDENCE) / (len(LOOKS) * max(len(standings) - 1, 1))
        self._order = list(self._running)
        self._rounds = self._disturbed = 0
        # The order is no secret, and a race should be the same race when it is repeated.
        self._chance = random.Random(0)  # noqa: S311
        if earlier is not None:
            self._take_over(earlier)

    def _take_over(self, earlier: RaceResult) -> None:
        self._rounds, self._disturbed = earlier.rounds, earlier.disturbed
        # A finalist that was not in the last round was beaten before.
        last = [entry for entry in earlier.standings if len(entry.rounds) == self._rounds]
        self._running = {entry.trial.config: entry for entry in last}
        self._beaten = [entry for entry in earlier.standings if entry not in last]
        self._over_limit, self._failed = list(earlier.over_limit), list(earlier.failed)
        self._has_reference &= all(entry.rounds[-1].reference_seconds for entry in last)
        if self._evidence in LOOKS:
            self._drop_beaten()

    @property
    def _evidence(self) -> int:
        return self._rounds - self._disturbed

    def run(self, deadline_seconds: float, end_seconds: float, after_round: Callable[[RaceResult], None]) -> RaceResult:
        while not self._is_last:
            began, evidence = time.monotonic(), self._evidence
            self._run_round()
            if not self._running:
                break
            if not self._is_last:
                after_round(self._raced([*rank(list(self._running.values())), *rank(self._beaten)]))
            now = time.monotonic()
            is_late = (self._rounds >= LOOKS[0] and now >= deadline_seconds) or now + (now - began) > end_seconds
            is_last = is_late or self._is_last
            if not is_last and (self._evidence == evidence or self._evidence not in LOOKS):
                continue
            self._drop_beaten()
            winner = self._settled()
            if winner is not None or is_last:
                return self._end(winner)
        return self._raced(rank(self._beaten))

    @property
    def _is_last(self) -> bool:
        return self._evidence >= LOOKS[-1] or self._rounds >= MOST_ROUNDS

    def _run_round(self) -> None:
        self._rounds = number = self._rounds + 1
        if number % 2 == 1:
            self._chance.shuffle(self._order)
        else:
            self._order.reverse()
        # The reference begins one round and ends the next; the finalists stay side by side.
        order = [Config(), *self._order] if number % 2 == 1 else [*self._order, Config()]
        runs = {*self._running, *([Config()] if self._has_reference else [])}
        measured = self._measure([config for config in dict.fromkeys(order) if config in runs])
        reference = measured.get(Config()) if self._has_reference else None
        self._has_reference = reference is not None and reference.outcome.is_measured
        is_disturbed = any(measurement.is_disturbed for measurement in measured.values())
        self._disturbed += is_disturbed
        for config, entry in list(self._running.items()):
            measurement = measured[config].under(self._limit_bytes)
            if not measurement.outcome.is_measured:
                self._failed.append(self._running.pop(config))
                continue
            run = RoundRecord(
                step_seconds=measurement.step_seconds,
                cpu_seconds=measurement.cpu_seconds,
                reference_seconds=reference.step_seconds if reference is not None else (),
                reference_cpu_seconds=reference.cpu_seconds if reference is not None else (),
                is_disturbed=is_disturbed,
                marks=measurement.marks,
            )
            self._running[config] = replace(entry, rounds=(*entry.rounds, run))
            if measurement.outcome is Outcome.OVER_LIMIT:
                self._over_limit.append(self._running.pop(config))

    def _measure(self, configs: Sequence[Config]) -> dict[Config, Measurement]:
        if takes_turns(self._bench):
            return measure_in_turns(self._bench, configs, ROUND_EFFORT.steps)
        effort = ROUND_EFFORT if drifts(self._bench) else CARD_ROUND_EFFORT
        return {config: self._bench.measure(config, effort) for config in configs}

    def _drop_beaten(self) -> None:
        # All are compared before any is dropped: who is beaten may have beaten another.
        entries = list(self._running.values())
        for entry in entries:
            if len(self._running) > 1 and any(self._beats(other, entry) for other in entries if other is not entry):
                self._beaten.append(self._running.pop(entry.trial.config))

    def _beats(self, other: Finalist, entry: Finalist) -> bool:
        margin = 0.0 if other.peak_bytes <= entry.peak_bytes else LOG_TIE
        return gap(entry, other, self._miss).low > margin

    def _settled(self) -> Finalist | None:
        entries = list(self._running.values())
        for entry in entries:
            others = [other for other in entries if other is not entry]
            is_leanest = all(entry.peak_bytes <= other.peak_bytes for other in others)
            if is_leanest and all(gap(entry, other, self._miss).high <= LOG_TIE for other in others):
                return entry
        return None

    def _end(self, winner: Finalist | None) -> RaceResult:
        entries = rank(list(self._running.values()))
        first = winner or entries[0]
        others = [entry for entry in entries if entry is not first]
        end = RaceEnd.UNDECIDED if winner is None else RaceEnd.TIE if others else None
        ranking = Ranking(
            end=end or (RaceEnd.RANKED if self._beaten else RaceEnd.ALONE),
            rounds=self._rounds,
            disturbed=self._disturbed,
            confidence=CONFIDENCE,
            rivals=tuple(entry.trial.description for entry in others),
        )
        return self._raced([first, *others, *rank(self._beaten)], ranking)

    def _raced(self, standings: Sequence[Finalist], ranking: Ranking | None = None) -> RaceResult:
        return RaceResult(
            standings=tuple(standings),
            ranking=ranking,
            over_limit=tuple(self._over_limit),
            failed=tuple(self._failed),
        )


def keep_race(folder: StudyFolder, raced: RaceResult, trials: int) -> None:
    """Write down how far a race has come.

    Raises:
        SetupError: the folder cannot be written.
    """

    def write(entries: Sequence[Finalist]) -> tuple[StandingRecord, ...]:
        return tuple(
            StandingRecord(
                trial=entry.trial.number,
                description=entry.trial.description,
                peak_bytes=entry.peak_bytes,
                rounds=entry.rounds,
            )
            for entry in entries
        )

    record = RaceRecord(
        ranking=raced.ranking,
        standings=write(raced.standings),
        over_limit=write(raced.over_limit),
        failed=tuple(entry.trial.number for entry in raced.failed),
        trials=trials,
    )
    folder.write(RACE_FILE, codec.to_plain(record))


def read_race(folder: StudyFolder, trials: Sequence[Trial]) -> RaceResult | None:
    """Return the race that was held among these trials; ``None`` where none was.

    Raises:
        SetupError: the file cannot be read.
    """
    record = folder.read(RACE_FILE, RaceRecord)
    if record is None or record.trials != len(trials):
        return None
    fitting = {trial.number: trial for trial in trials if trial.fits}
    numbers = {runner.trial for runner in (*record.standings, *record.over_limit)}
    if not record.standings or not fitting.keys() >= {*numbers, *record.failed}:
        return None

    def read(runners: Sequence[StandingRecord]) -> tuple[Finalist, ...]:
        return tuple(Finalist(trial=fitting[runner.trial], rounds=runner.rounds) for runner in runners)

    return RaceResult(
        standings=read(record.standings),
        ranking=record.ranking,
        over_limit=read(record.over_limit),
        failed=tuple(Finalist(trial=fitting[number]) for number in record.failed),
    )


def race_winner(folder: StudyFolder, trials: Sequence[Trial], rejected: Collection[Config]) -> Trial | None:
    """Return who came first in it, of those that may be the answer; ``None`` where there is no race, or it is not over.

    Raises:
        SetupError: the file cannot be read.
    """
    raced = read_race(folder, trials)
    if raced is None or not raced.is_over:
        return None
    return next((entry.trial for entry in raced.standings if entry.trial.config not in rejected), None)
