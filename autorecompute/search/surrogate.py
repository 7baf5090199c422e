"""A model of peak and step time that begins with what was simulated, and learns from each trial what that got wrong."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.figures import comparable_steps
from autorecompute.search.regression import Beliefs, Regression
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.search.candidates import Candidates

USUAL_ERROR = 0.02
"""What follows about peaks is of models of memory that are off by this share in half of all cases. Beliefs in a better
one are as much firmer."""

PEAK_SLOPE = 0.05
"""How far measured peaks grow faster or slower than what is alive in them: the allocator cannot fill all gaps."""

PEAK_OFFSET, PEAK_OFFSET_OF_REST = 0.1, 0.02
"""How far off the memory may be that is not simulated: shares of the activations, and of all else."""

PEAK_PER_CHOICE, PEAK_OWN, PEAK_NOISE = 0.005, 0.01, 0.01
"""What is special about one choice, about one config, and about one measurement, as shares of the activations."""

LEAST_ACTIVATIONS = float(MIB)
"""Shares are of no less than this. Beside gigabytes of all else, a belief to the byte is lost in rounding, and the
regression has no solution on some processors."""

PEAK_SHARED, PEAK_REACH = 0.02, 2.0
"""What is special about a config and its like, as a share of the activations, and by how many switches they differ
where no more than 1/e of it is shared: what runs in another order with one config does so with those near it."""

PEAK_OF_NONE = 0.06
"""Without recompute operations may run in another order, and hold so much more or less."""

TIME_SLOPE, TIME_SLOPE_SPREAD = 0.8, 0.3
"""Of the kernels' time that recompute adds, as a share, so much is added to the step: it has more to do."""

TIME_OFFSET, TIME_OWN, TIME_NOISE = 0.05, 0.005, 0.05
"""What the other order of operations changes, what is special about one config, and about one measurement."""

TIME_PER_CHOICE_SHARE = 0.25
"""How far off the kernels' time of one switch may be, as a share of it, beyond what the simulation says of itself."""

TIME_OF_CALLS_SHARE = 0.25
"""How far off what a switch adds beyond its kernels may be, as a share of it."""

TIME_OF_ANOTHER = 0.03
"""How far the step times of another problem are from those of this one: each of them, and all of them together."""

TIME_OF_SWITCH_ELSEWHERE = 0.5
"""How far what a switch costs in another problem is from what it costs in this one, as a share of what is expected."""

TIME_OF_OPAQUE = 0.02
"""How far the step of an opaque preset is from that with all plans on: it recomputes about the same."""

UNKNOWN_OFFSET = 1.0
"""Without a reference times are relative to the fastest trial, whichever that was; those of another problem are not."""

FIRST_SWITCH = 3
"""The first of the features of peaks that is one for each switch."""

OVER = 0.01
"""A config that ran out of memory needs at least so much more than the limit, as a share of the activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a surrogate expects of candidates, an entry for each.

    Attributes:
        peak_bytes: Expected peak.
        peak_deviation: Its standard deviation, in bytes.
        step: Expected step time, relative to the reference or, without one, to the fastest trial.
        step_deviation: Its standard deviation.
        fits: Probability that the peak holds the limit.
        peak_noise: Standard deviation of one measurement of a peak beside the true one, in bytes; the same for all.
        step_noise: The same of a step time.
        is_relative: Whether step times are relative to the reference.
    """

    peak_bytes: np.ndarray
    peak_deviation: np.ndarray
    step: np.ndarray
    step_deviation: np.ndarray
    fits: np.ndarray
    peak_noise: float
    step_noise: float
    is_relative: bool


class Surrogate:
    """Peaks and step times as sums: of what was simulated, and of what each switch adds to it.

    Args:
        candidates: The configs it is asked about.
        base_bytes: Memory that the simulation leaves out: the process, weights, optimizer, workspaces.
        limit_bytes: The memory limit.
        peak_error: By which share half of the simulated peaks are off.
        trials: What was measured.
        prior: Trials of another problem whose step times tell something of this one's.
    """

    def __init__(  # noqa: PLR0913  (what is believed of memory, and what was measured)
        self,
        candidates: Candidates,
        *,
        base_bytes: float,
        limit_bytes: int,
        peak_error: float,
        trials: Sequence[Trial],
        prior: Sequence[Trial] = (),
    ) -> None:
        self._candidates, self._limit_bytes = candidates, limit_bytes
        self._firmness = peak_error / USUAL_ERROR
        self._activations = max(float(candidates.simulated.peak_bytes.max()), LEAST_ACTIVATIONS)
        known = [trial for trial in trials if _is_known(trial.config, candidates)]
        timed = [trial for trial in trials if trial.measurement.step_seconds]
        steps = comparable_steps([trial.measurement for trial in timed])
        self._steps = {trial.number: seconds for trial, seconds in zip(timed, steps, strict=True) if seconds}
        self._fastest = min(self._steps.values(), default=1.0)
        self.has_reference = all(trial.reference_seconds for trial in timed)
        self._peaks = self._learn_peaks(known, base_bytes)
        self._times = self._learn_times(known, [t for t in prior if _is_known(t.config, candidates)])

    def outlook(self) -> Outlook:
        """Return what to expect of every candidate."""
        peaks, peak_deviations = self._peaks.predict(self._peak_features(slice(None)))
        steps, step_deviations = self._times.predict(self._time_features(slice(None)))
        fits = normal((self._limit_bytes - peaks) / peak_deviations)
        return Outlook(
            peak_bytes=peaks,
            peak_deviation=peak_deviations,
            step=steps,
            step_deviation=step_deviations,
            fits=fits,
            peak_noise=self._peaks.noise,
            step_noise=self._times.noise,
            is_relative=self.has_reference,
        )

    def settled_step(self, trial: Trial) -> float:
        """Step time of a trial without the luck of its measurement."""
        if trial.config not in self._candidates.places and any(on.count is not None for on in trial.config.choices):
            return self._relative(trial)  # nothing is known of a count between those that are looked at
        place = self._candidates.places.get(trial.config, self._candidates.full)
        own = 0.0 if trial.config in self._candidates.places else TIME_OF_OPAQUE
        return self._times.settle(self._time_features([place])[0], self._relative(trial), own)

    def _learn_peaks(self, trials: Sequence[Trial], base_bytes: float) -> Regression:
        activations, off = self._activations, self._activations * self._firmness
        choices = self._candidates.switches.shape[1]
        offset = PEAK_OFFSET * activations + PEAK_OFFSET_OF_REST * base_bytes
        beliefs = Beliefs(
            means=np.array([base_bytes, 1.0, 0.0, *np.zeros(choices)]),
            deviations=np.array(
                [offset, PEAK_SLOPE * self._firmness, PEAK_OF_NONE * off, *np.full(choices, PEAK_PER_CHOICE * off)]
            ),
            own=PEAK_OWN * off,
            noise=PEAK_NOISE * off,
            shared=PEAK_SHARED * off,
            reach=PEAK_REACH,
            alike_from=FIRST_SWITCH,
        )
        seen = {self._place(t): float(t.measurement.peak_bytes) for t in trials if t.measurement.peak_bytes is not None}
        model = self._regress_peaks(beliefs, seen)
        lost = [self._place(t) for t in trials if t.measurement.peak_bytes is None and _lacked_memory(t)]
        if not lost:
            return model
        # Out of memory is above the limit; how far above, the model tells.
        expected, _ = model.predict(self._peak_features(lost))
        least = self._limit_bytes + OVER * activations
        return self._regress_peaks(beliefs, seen | dict(zip(lost, np.maximum(expected, least), strict=True)))

    def _regress_peaks(self, beliefs: Beliefs, peaks: dict[int, float]) -> Regression:
        return Regression(beliefs, self._peak_features(list(peaks)), np.array(list(peaks.values())))

    def _learn_times(self, trials: Sequence[Trial], prior: Sequence[Trial]) -> Regression:
        calls = self._candidates.call_seconds / self._reference_seconds(trials)
        beliefs = Beliefs(
            means=np.array([1.0, TIME_SLOPE, *calls]),
            deviations=np.array(
                [
                    TIME_OFFSET if self.has_reference else UNKNOWN_OFFSET,
                    TIME_SLOPE_SPREAD,
                    *(
                        self._candidates.step_error
                        + TIME_PER_CHOICE_SHARE * self._candidates.choice_shares
                        + TIME_OF_CALLS_SHARE * calls
                    ),
                ]
            ),
            own=TIME_OWN,
            noise=TIME_NOISE,
        )
        timed = [t for t in trials if t.measurement.step_seconds and not t.config.is_none]
        told = [t for t in prior if t.relative_throughput and not t.config.is_none]
        values = [self._relative(t) for t in timed] + [1 / t.relative_throughput for t in told if t.relative_throughput]
        extra = np.array([0.0] * len(timed) + [TIME_OF_ANOTHER] * len(told))
        features = self._time_features([self._place(t) for t in (*timed, *told)])
        apart = np.zeros((len(values), len(values)))
        apart[len(timed) :, len(timed) :] = self._covariance_elsewhere([self._place(t) for t in told], calls)
        return Regression(beliefs, features, np.array(values), extra, apart)

    def _covariance_elsewhere(self, places: list[int], calls: np.ndarray) -> np.ndarray:
        """Return how step times of another problem vary from those of this one, all together and by their switches."""
        costs = TIME_SLOPE * self._candidates.choice_shares + calls
        offset = TIME_OF_ANOTHER if self.has_reference else UNKNOWN_OFFSET
        shares = self._candidates.shares[places]
        found: np.ndarray = offset**2 + (shares * np.square(TIME_OF_SWITCH_ELSEWHERE * costs)) @ shares.T
        return found

    def _reference_seconds(self, trials: Sequence[Trial]) -> float:
        """Return the step that all times are relative to; endless where none is known yet."""
        if not self.has_reference:
            return self._fastest
        references = [trial.reference_seconds for trial in trials if trial.reference_seconds]
        return statistics.median(references) if references else math.inf

    def _place(self, trial: Trial) -> int:
        return self._candidates.places[trial.config]

    def _relative(self, trial: Trial) -> float:
        if self.has_reference and trial.relative_throughput:
            return 1 / trial.relative_throughput
        return self._steps[trial.number] / self._fastest

    def _peak_features(self, places: slice | list[int]) -> np.ndarray:
        switches = self._candidates.shares[places]
        simulated = self._candidates.simulated.peak_bytes[places].astype(float)
        return np.column_stack([np.ones(len(switches)), simulated, switches.sum(axis=1) == 0, switches])

    def _time_features(self, places: slice | list[int]) -> np.ndarray:
        switches = self._candidates.shares[places]
        again = self._candidates.simulated.recompute_share[places]
        return np.column_stack([np.ones(len(switches)), again, switches])


def _is_known(config: Config, candidates: Candidates) -> bool:
    return config in candidates.places


def _lacked_memory(trial: Trial) -> bool:
    return trial.measurement.outcome.is_about_memory


_erf = np.vectorize(math.erf, otypes=[float])


def normal(values: np.ndarray) -> np.ndarray:
    """Return the standard normal distribution function."""
    share: np.ndarray = 0.5 * (1 + _erf(values / math.sqrt(2)))
    return share
