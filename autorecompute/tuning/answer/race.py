"""Decides between finalists by interleaved rounds, as many as it takes to be sure.

Every round measures the reference and each finalist that is still in question, in random order; the next round runs in
the opposite order, so that a steady drift cancels. After the rounds of ``LOOKS`` the finalists are compared in pairs:

* out is who is slower than another for sure: by more than a tie, or at all where the other's peak is no higher;
* the race ends once the lowest peak of the rest is for sure no slower than any of the rest by more than a tie.

A round in which other processes took more of the processors than ``NEGLIGIBLE_SHARE`` is no evidence: it counts neither
as a round of a look nor in an interval, and the race goes on longer for it, up to ``MOST_ROUNDS``.

A wrong end needs a wrong interval between the truly fastest and another finalist. The chance of that,
1 - ``CONFIDENCE`` for the whole race, is divided among these pairs and the looks.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.ranking import RaceEnd, Ranking
from autorecompute.trials.effort import Effort
from autorecompute.trials.interleaving import measure_in_turns, takes_turns
from autorecompute.tuning.answer.finalists import LOG_TIE, Finalist, Round, gap, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import Measurement
    from autorecompute.trials import Bench


FINALISTS = 4
CONFIDENCE = 0.99
"""How surely the end of a race is right, where it came to an end."""

LOOKS = (3, 5, 8, 12, 18, 28)
"""Undisturbed rounds after which the race may end."""

MOST_ROUNDS = 2 * LOOKS[-1]
"""Rounds after which it ends, however many of them were disturbed."""

ROUND_EFFORT = Effort(warmup=1, steps=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """What a race came to.

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
        """Return how many were run."""
        return max((len(entry.rounds) for entry in self.standings), default=0)

    @property
    def disturbed(self) -> int:
        """Return how many of them other processes disturbed."""
        longest = max(self.standings, key=lambda entry: len(entry.rounds), default=None)
        return sum(run.is_disturbed for run in longest.rounds) if longest is not None else 0

    @property
    def everybody(self) -> tuple[Finalist, ...]:
        """Return all that began."""
        return (*self.standings, *self.over_limit, *self.failed)

    def in_order(self, standings: Sequence[Finalist]) -> list[Finalist]:
        """Return the finalists in the order in which they get a process of their own: as raced, and then who was not.

        Args:
            standings: All that may still be the answer.
        """
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
    found = _Race(bench, standings, limit_bytes, has_reference=has_reference)
    if earlier is not None:
        found.take_over(earlier)
    return found.run(deadline_seconds, end_seconds, after_round)


class _Race:
    def __init__(self, bench: Bench, standings: Sequence[Finalist], limit_bytes: float, *, has_reference: bool) -> None:
        self._bench, self._limit_bytes, self._has_reference = bench, limit_bytes, has_reference
        self._over_limit: list[Finalist] = []
        self._failed: list[Finalist] = []
        self._running: dict[Config, Finalist] = {entry.trial.config: entry for entry in standings}
        self._beaten: list[Finalist] = []
        self._miss = (1 - CONFIDENCE) / (len(LOOKS) * max(len(standings) - 1, 1))
        self._order = list(self._running)
        self._disturbed = 0
        # The order is no secret, and a race should be the same race when it is repeated.
        self._chance = random.Random(0)  # noqa: S311
        self._rounds = 0

    def take_over(self, earlier: RaceResult) -> None:
        self._rounds = earlier.rounds
        self._disturbed = earlier.disturbed
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
        due = [config for config in dict.fromkeys(order) if self._runs(config)]
        measured = self._measure(due)
        reference = measured.get(Config()) if self._has_reference else None
        self._has_reference = reference is not None and reference.outcome.is_measured
        is_disturbed = any(measurement.is_disturbed for measurement in measured.values())
        self._disturbed += is_disturbed
        for config, entry in list(self._running.items()):
            measurement = measured[config].under(self._limit_bytes)
            if not measurement.outcome.is_measured:
                self._failed.append(self._running.pop(config))
                continue
            run = _round_of(measurement, reference, is_disturbed=is_disturbed)
            self._running[config] = replace(entry, rounds=(*entry.rounds, run))
            if measurement.outcome is Outcome.OVER_LIMIT:
                self._over_limit.append(self._running.pop(config))

    def _measure(self, configs: Sequence[Config]) -> dict[Config, Measurement]:
        if takes_turns(self._bench):
            return measure_in_turns(self._bench, configs, ROUND_EFFORT.steps)
        return {config: self._bench.measure(config, ROUND_EFFORT) for config in configs}

    def _runs(self, config: Config) -> bool:
        return config in self._running or (config.is_none and self._has_reference)

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
        ranking = Ranking(
            end=self._describe_end(winner, others),
            rounds=self._rounds,
            disturbed=self._disturbed,
            confidence=CONFIDENCE,
            rivals=tuple(entry.trial.description for entry in others),
        )
        return self._raced([first, *others, *rank(self._beaten)], ranking)

    def _describe_end(self, winner: Finalist | None, others: Sequence[Finalist]) -> RaceEnd:
        if winner is None:
            return RaceEnd.UNDECIDED
        if others:
            return RaceEnd.TIE
        return RaceEnd.RANKED if self._beaten else RaceEnd.ALONE

    def _raced(self, standings: Sequence[Finalist], ranking: Ranking | None = None) -> RaceResult:
        return RaceResult(
            standings=tuple(standings),
            ranking=ranking,
            over_limit=tuple(self._over_limit),
            failed=tuple(self._failed),
        )


def _round_of(measurement: Measurement, reference: Measurement | None, *, is_disturbed: bool) -> Round:
    return Round(
        step_seconds=measurement.step_seconds,
        cpu_seconds=measurement.cpu_seconds,
        reference_seconds=reference.step_seconds if reference is not None else (),
        reference_cpu_seconds=reference.cpu_seconds if reference is not None else (),
        is_disturbed=is_disturbed,
        marks=measurement.marks,
    )
