"""Runs the finalists in interleaved rounds with the reference until they are ranked."""

from __future__ import annotations

import itertools
import math
import random
import statistics
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
from autorecompute.waiting import clock

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
    """A finalist, with one record for each round it ran in, from the first round on without a gap."""

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

    Their expected steps count, by number. Without those it is what was measured, relative to the reference where all of
    them have one.
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

    Each end is wrong with the chance ``miss``.
    """
    _, evidence = _differences(first, second)
    return interval(evidence, miss) if evidence else UNKNOWN


def rank(entries: Sequence[Finalist]) -> list[Finalist]:
    """Return them by the estimates alone, fastest first; the lower peak first where they are equal.

    No estimate is taken for a tie: a config that looks as fast in noise may be any share slower.
    """
    lags = {entry.trial.number: sum(lag(entry, other) for other in entries) for entry in entries}
    return sorted(entries, key=lambda entry: (lags[entry.trial.number], entry.peak_bytes))


def lag(entry: Finalist, other: Finalist) -> float:
    """Return the estimate alone of how much longer a step of the first takes, as a logarithm."""
    shared, undisturbed = _differences(entry, other)
    return centre(undisturbed if len(undisturbed) >= LEAST_TELLING else shared)


def is_faster(entry: Finalist, other: Finalist) -> bool:
    """Tell whether the first is faster by more than a tie, by the rounds that both ran in or beside the reference."""
    if entry.rounds and other.rounds:
        return lag(entry, other) < -LOG_TIE
    own, others = entry.relative_throughput, other.relative_throughput
    return own is not None and others is not None and math.log(own / others) > LOG_TIE


def _differences(first: Finalist, second: Finalist) -> tuple[list[float], list[float]]:
    """Return the logarithms for all rounds that both ran in, and for the undisturbed ones of them."""
    # Only what two finalists did in the same round is compared: what slows a whole round cancels.
    shared = list(zip(first.rounds, second.rounds, strict=False))
    logs = [_difference(own, others) for own, others in shared]
    calm = [not own.is_disturbed and not others.is_disturbed for own, others in shared]
    return logs, list(itertools.compress(logs, calm))


def _difference(own: RoundRecord, others: RoundRecord) -> float:
    # In a first round each had a reference beside it; in the others they have the same one, which cancels.
    if own.ratio is not None and others.ratio is not None:
        return math.log(others.ratio / own.ratio)
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


DOUBT = 0.007
"""Deviation of the difference of two finalists before a race, as a share: what all trials together say is off by."""

DOUBT_SHARE = 1 / 3
"""Of the noise of one round, such a difference is off by no less than this share: trials had the same noise."""

NOISE, LEAST_NOISE = 0.02, 0.005
"""Deviation of such a difference in one round: as a rule, and at the least."""


def round_steps(bench: Bench) -> int:
    """Return the timed steps of a config in a round: one where turns cancel what a machine does, for more rounds."""
    return 1 if drifts(bench) and takes_turns(bench) else ROUND_EFFORT.steps


def expected_gain(lead: float, rounds: int, *, known: int = 0, noise: float = NOISE) -> float:
    """Return the share of a step that rounds should gain: they may show that the slower of two is the faster.

    Args:
        lead: How much longer a step of the slower one takes by all that is known, as a logarithm, at least 0.
        rounds: Number of further rounds.
        known: Number of rounds so far.
        noise: Standard deviation of the difference in one round.
    """
    # By so much the belief in the difference should move (Raiffa and Schlaifer, Applied Statistical Decision Theory).
    before, after = (1 / (1 / _doubt(noise) ** 2 + count / noise**2) for count in (known, known + rounds))
    spread = math.sqrt(before - after)
    normal, units = statistics.NormalDist(), lead / spread
    return spread * (normal.pdf(units) - units * normal.cdf(-units))


def _doubt(noise: float) -> float:
    return max(DOUBT, DOUBT_SHARE * noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A race, as far as it has come.

    Attributes:
        standings: The finalists that run or were beaten, the first one first.
        ranking: Its end; ``None`` where it did not end, or no finalist is left.
        over_limit: The finalists that held the limit in their trial and not in their last round.
        failed: The finalists that were not measured in a round, for whatever reason.
    """

    standings: tuple[Finalist, ...]
    ranking: Ranking | None = None
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
    def evidence(self) -> int:
        """Return the number of rounds that nothing disturbed."""
        return self.rounds - self.disturbed

    @property
    def is_at_its_end(self) -> bool:
        """Tell whether no further round is allowed."""
        return self.evidence >= LOOKS[-1] or self.rounds >= MOST_ROUNDS

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
    earlier: Race | None = None,
    pays: Callable[[float, float], bool] = lambda _gain, _seconds: True,
    after_round: Callable[[Race], None] = lambda _: None,
) -> Race:
    """Measure the finalists in rounds until they are ranked, tied, not worth more rounds, or the time is over.

    Their trials are the first round, where each was timed beside the reference, or the device keeps its pace.

    A finalist that fails in a round or is over the limit there is out, and not ranked. A reference that fails is not
    measured again.

    After ``deadline_seconds`` of :func:`autorecompute.waiting.clock` no round begins, but those before the first look.
    At ``end_seconds`` the race should be over, be it before the first look; the first round is always run. The rounds
    of an ``earlier`` race of the same finalists count. ``pays`` tells whether a share of a step that may be gained is
    worth so many seconds of measuring. ``after_round`` gets the race so far after each round but the last possible one.
    """
    raced = Race(standings=_with_trials(bench, standings)) if earlier is None else replace(earlier, ranking=None)
    has_reference &= all(run.reference_seconds for entry in raced.standings for run in entry.rounds[-1:])
    miss = (1 - CONFIDENCE) / (len(LOOKS) * max(len(standings) - 1, 1))
    numbers = [entry.trial.number for entry in standings]
    # The order is no secret, and a race should be the same race when it is repeated.
    order, chance = [entry.trial.config for entry in standings], random.Random(0)  # noqa: S311
    while not raced.is_at_its_end:
        began, evidence, is_odd = clock(), raced.evidence, raced.rounds % 2 == 0
        # Who was beaten was not in the last round.
        running = [entry for entry in raced.standings if len(entry.rounds) == raced.rounds]
        running.sort(key=lambda entry: numbers.index(entry.trial.number))
        if evidence in LOOKS:
            running = _unbeaten(running, miss)
        if is_odd:
            chance.shuffle(order)
        else:
            order.reverse()
        # The reference begins one round and ends the next; the finalists stay side by side.
        able = {*(entry.trial.config for entry in running), *([Config()] if has_reference else [])}
        turns = dict.fromkeys([Config(), *order] if is_odd else [*order, Config()])
        measured = _measure(bench, [config for config in turns if config in able])
        reference = measured.get(Config()) if has_reference else None
        has_reference = reference is not None and reference.outcome.is_measured
        raced, left = _with_round(raced, running, measured, reference, limit_bytes)
        if not left:
            return raced
        if not raced.is_at_its_end:
            after_round(raced)
        now = clock()
        is_late = (raced.rounds >= LOOKS[0] and now >= deadline_seconds) or now + (now - began) > end_seconds
        rounds = next((look for look in LOOKS if look > raced.evidence), MOST_ROUNDS) - raced.evidence
        is_worth = raced.evidence < LEAST_TELLING or pays(_gain_among(left, rounds), rounds * (now - began))
        is_last = is_late or raced.is_at_its_end or not is_worth
        if is_last or (raced.evidence != evidence and raced.evidence in LOOKS):
            left = _unbeaten(left, miss)
            winner = _winner(left, miss)
            if winner is not None or is_last:
                is_enough = not (is_worth or is_late or raced.is_at_its_end)
                return _ended(raced, left, winner, RaceEnd.ENOUGH if is_enough else RaceEnd.UNDECIDED)
    return raced


def _with_trials(bench: Bench, standings: Sequence[Finalist]) -> tuple[Finalist, ...]:
    """Return the finalists with their trials as their first round, where these can be compared."""
    trials = [entry.trial for entry in standings]
    has_references = all(trial.reference_seconds for trial in trials)
    is_mixed = not has_references and any(trial.reference_seconds for trial in trials)
    if is_mixed or (drifts(bench) and not (has_references and takes_turns(bench))):
        return tuple(standings)
    is_disturbed = any(trial.measurement.is_disturbed or trial.is_reference_disturbed for trial in trials)

    def begin(trial: Trial) -> RoundRecord:
        own, references, cpu_references = trial.measurement, trial.reference_seconds, trial.reference_cpu_seconds
        return RoundRecord(
            step_seconds=own.step_seconds,
            cpu_seconds=own.cpu_seconds,
            reference_seconds=(references,) if has_references and references else (),
            reference_cpu_seconds=(cpu_references,) if has_references and cpu_references else (),
            is_disturbed=is_disturbed,
            marks=own.marks,
        )

    return tuple(replace(entry, rounds=(begin(entry.trial),)) for entry in standings)


def _gain_among(entries: Sequence[Finalist], rounds: int) -> float:
    """Return the share of a step that further rounds should gain: the first one may not be the fastest."""
    first, *others = rank(entries)
    gains = [0.0]
    for other in others:
        shared, undisturbed = _differences(other, first)
        logs = undisturbed if len(undisturbed) >= LEAST_TELLING else shared
        noise = max(statistics.stdev(logs) if len(logs) > 1 else NOISE, LEAST_NOISE)
        believed = centre(logs) / (1 + (noise / _doubt(noise)) ** 2 / len(logs))
        gains.append(expected_gain(max(believed, 0.0), rounds, known=len(logs), noise=noise))
    return max(gains)


def _measure(bench: Bench, configs: Sequence[Config]) -> dict[Config, Measurement]:
    if takes_turns(bench):
        return measure_in_turns(bench, configs, round_steps(bench))
    effort = ROUND_EFFORT if drifts(bench) else CARD_ROUND_EFFORT
    return {config: bench.measure(config, effort) for config in configs}


def _with_round(
    raced: Race,
    running: Sequence[Finalist],
    measured: Mapping[Config, Measurement],
    reference: Measurement | None,
    limit_bytes: float,
) -> tuple[Race, list[Finalist]]:
    """Return the race after a round, and who is left to run in the next one."""
    is_disturbed = any(measurement.is_disturbed for measurement in measured.values())
    left: list[Finalist] = []
    over_limit, failed = list(raced.over_limit), list(raced.failed)
    for entry in running:
        measurement = measured[entry.trial.config].under(limit_bytes)
        if not measurement.outcome.is_measured:
            failed.append(entry)
            continue
        run = RoundRecord(
            step_seconds=measurement.step_seconds,
            cpu_seconds=measurement.cpu_seconds,
            reference_seconds=reference.step_seconds if reference is not None else (),
            reference_cpu_seconds=reference.cpu_seconds if reference is not None else (),
            is_disturbed=is_disturbed,
            marks=measurement.marks,
        )
        place = over_limit if measurement.outcome is Outcome.OVER_LIMIT else left
        place.append(replace(entry, rounds=(*entry.rounds, run)))
    beaten = [entry for entry in raced.standings if entry not in running]
    standings = (*rank(left), *rank(beaten))
    return Race(standings=standings, over_limit=tuple(over_limit), failed=tuple(failed)), left


def _unbeaten(entries: Sequence[Finalist], miss: float) -> list[Finalist]:
    left = list(entries)
    # All are compared before any is dropped: who is beaten may have beaten another.
    for entry in entries:
        if len(left) > 1 and any(_beats(other, entry, miss) for other in entries if other is not entry):
            left.remove(entry)
    return left


def _beats(other: Finalist, entry: Finalist, miss: float) -> bool:
    margin = 0.0 if other.peak_bytes <= entry.peak_bytes else LOG_TIE
    return gap(entry, other, miss).low > margin


def _winner(entries: Sequence[Finalist], miss: float) -> Finalist | None:
    for entry in entries:
        others = [other for other in entries if other is not entry]
        is_leanest = all(entry.peak_bytes <= other.peak_bytes for other in others)
        if is_leanest and all(gap(entry, other, miss).high <= LOG_TIE for other in others):
            return entry
    return None


def _ended(raced: Race, left: Sequence[Finalist], winner: Finalist | None, without_winner: RaceEnd) -> Race:
    entries = rank(left)
    first = winner or entries[0]
    others = [entry for entry in entries if entry is not first]
    beaten = [entry for entry in raced.standings if entry not in left]
    end = without_winner if winner is None and others else RaceEnd.TIE if others else None
    ranking = Ranking(
        end=end or (RaceEnd.RANKED if beaten else RaceEnd.ALONE),
        rounds=raced.rounds,
        disturbed=raced.disturbed,
        confidence=CONFIDENCE,
        rivals=tuple(entry.trial.description for entry in others),
    )
    return replace(raced, standings=(first, *others, *rank(beaten)), ranking=ranking)


def keep_race(folder: StudyFolder, raced: Race, trials: int) -> None:
    """Write down how far a race has come."""

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


def read_race(folder: StudyFolder, trials: Sequence[Trial]) -> Race | None:
    """Return the race that was held among these trials; ``None`` where none was."""
    record = folder.read(RACE_FILE, RaceRecord)
    if record is None or record.trials != len(trials):
        return None
    fitting = {trial.number: trial for trial in trials if trial.fits}
    numbers = {runner.trial for runner in (*record.standings, *record.over_limit)}
    if not record.standings or not fitting.keys() >= {*numbers, *record.failed}:
        return None

    def read(runners: Sequence[StandingRecord]) -> tuple[Finalist, ...]:
        return tuple(Finalist(trial=fitting[runner.trial], rounds=runner.rounds) for runner in runners)

    return Race(
        standings=read(record.standings),
        ranking=record.ranking,
        over_limit=read(record.over_limit),
        failed=tuple(Finalist(trial=fitting[number]) for number in record.failed),
    )


def race_winner(folder: StudyFolder, trials: Sequence[Trial], rejected: Collection[Config]) -> Trial | None:
    """Return who came first in it and may be the answer; ``None`` where there is no race, or it is not over."""
    raced = read_race(folder, trials)
    if raced is None or not raced.is_over:
        return None
    return next((entry.trial for entry in raced.standings if entry.trial.config not in rejected), None)
