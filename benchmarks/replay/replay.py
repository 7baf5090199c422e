"""Plays a bench from a table: what a trial of a config measured, one recording drawn by chance.

In tables of plain PyTorch most configs were recorded once, so that every seed would play the same. There a trial takes
what the config truly takes, off by as much as a recording of any config that is drawn by chance.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cached_property

from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.search.candidates import choices_of, covered
from sums import fit_sums
from tables import Table
from truth import Truth, peak_noise_bytes, truths_of

SHARES = (0.10, 0.25, 0.40, 0.55, 0.70, 0.85)
"""Limits, as shares of the way from the least true peak to the peak without recompute."""


@dataclass(frozen=True)
class Replay:
    """A table as a bench.

    Attributes:
        table: What was recorded.
    """

    table: Table

    @cached_property
    def truths(self):
        """The truth about each config that could be measured."""
        return truths_of(self.table)

    @cached_property
    def _sums(self):
        return fit_sums(self.table)

    def truth_of(self, config):
        """The truth about a config; of one that was not recorded by its parts, where those add up, else ``None``."""
        known, table = self.truths.get(config), self.table
        if known is not None or not table.is_torch or not table.space.is_mix(config):
            return known
        switches = table.simulator.matrix([Config(), config])
        shares = switches - covered(switches, table.space, choices_of(table.space))
        # What is simulated are tensors alone. A recorded peak has what the process held between two steps as well.
        none_bytes, peak_bytes = map(float, table.simulator.simulate(switches).peak_bytes)
        return Truth(self.truths[Config()].peak_bytes - none_bytes + peak_bytes, self._sums.ratio(shares[1]))

    @cached_property
    def peak_noise_bytes(self):
        """How far a recorded peak is from the true one, as a rule."""
        return peak_noise_bytes(self.table)

    def limit_bytes(self, share):
        """The limit at this share of the way from the least true peak to the one without recompute."""
        least = min(truth.peak_bytes for truth in self.truths.values())
        return round(least + share * (self.truths[Config()].peak_bytes - least))

    def best_ratio(self, limit_bytes):
        """The least true step time of any config that truly fits."""
        return min(truth.ratio for truth in self.truths.values() if truth.peak_bytes <= limit_bytes)

    def truly_fits(self, config, limit_bytes):
        """Whether a recorded config is known to hold the limit."""
        truth = self.truths.get(config)
        return truth is not None and truth.peak_bytes <= limit_bytes

    def exceeds(self, config, limit_bytes):
        """Whether a known config truly needs more; what is over by less than a recording is off may as well fit."""
        return self.truth_of(config).peak_bytes > limit_bytes + self.peak_noise_bytes

    @cached_property
    def _errors(self):
        """How many times as long as they truly take the configs took, in each recording."""
        found = ((config, each) for config, recordings in self.table.recordings.items() for each in recordings)
        return [
            statistics.mean(each.seconds) / each.reference_seconds / self.truths[config].ratio
            for config, each in found
            if each.seconds
        ]

    def _seconds(self, config, recording, chance):
        """The steps of a trial."""
        if not (self.table.is_torch and recording.seconds):
            return recording.seconds
        return (recording.reference_seconds * self.truths[config].ratio * chance.choice(self._errors),)

    def measure(self, config, chance, *, limit_bytes, number=0, reason=""):
        """The trial of a recorded config, with the peak of one of its recordings."""
        recording = chance.choice(self.table.recordings[config])
        measurement = Measurement(
            outcome=Outcome(recording.outcome),
            peak_bytes=recording.peak_bytes,
            step_seconds=self._seconds(config, recording, chance),
            samples=self.table.plain["batch"],
            batch=self.table.plain["batch"],
        )
        return Trial(
            number=number,
            config=config,
            description=self.table.space.describe(config),
            reason=reason,
            measurement=measurement.under(limit_bytes),
            reference_seconds=recording.reference_seconds,
        )

    def nearest(self, config, tried):
        """The config itself where it was recorded; else the untried recorded one that differs in the fewest plans.

        Only a table of a sample lacks configs; its searchers learn which one was measured instead. ``None`` when all
        were tried.
        """
        if config in self.table.recordings:
            return config
        untried = [other for other in self._chosen if other not in tried]
        return min(untried, key=lambda other: self._distance(other, config), default=None)

    def _distance(self, one, other):
        plans = self.table.space.plans
        return sum(abs(one.share_of(plan) - other.share_of(plan)) for plan in plans)

    @cached_property
    def _chosen(self):
        configs = (config for config in self.table.recordings if self.table.space.is_mix(config))
        return sorted(configs, key=lambda config: config.hash)
