"""Learns from the trials what the model of memory got wrong, and what trials cost."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.search.searcher import steps_by_number
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.search.candidates import Candidates

    Needs = Callable[[Config], frozenset[str]]
    """The names of what a config has to have made ready; what one config has had made is ready for all others."""


def needs_nothing(_config: Config) -> frozenset[str]:
    """Return those of a training system whose configs are all as quickly switched to."""
    return frozenset()


def relative_costs(trials: Sequence[Trial], needs: Needs) -> Callable[[Config], float] | None:
    """Learn from trials how long one of a config takes, over one that finds everything ready: 1 or more.

    ``None`` where making configs ready was not seen to take any time.
    """
    ready: frozenset[str] = frozenset()
    made: list[float] = []
    measured = [trial for trial in trials if trial.measurement.outcome.is_measured]
    for trial in measured:
        new = needs(trial.config) - ready
        ready |= new
        if new:
            made.append(trial.measurement.compile_seconds / len(new))
    # The first one also starts whatever makes it.
    usual = statistics.median(made[1:] or made or [0.0])
    taken = [(one.measurement, one.overhead_seconds or 0.0) for one in measured]
    spent = [m.warmup_seconds + sum(m.step_seconds) + overhead - m.compile_seconds for m, overhead in taken]
    measuring = statistics.median([max(seconds, 0.0) for seconds in spent] or [0.0])
    share = usual / measuring if measuring else 0.0
    return (lambda config: 1 + len(needs(config) - ready) * share) if share else None


PRIOR_WEIGHT = 4.0  # number of measurements for which the assumed noise counts
FREEDOM = 3.0  # degrees of freedom of Student's noise: the fewer, the farther off one may lie and tell nothing
FIRST_TRUST = 0.01  # trust in every measurement in the first fit, which so shows what lies far off the beliefs

KEPT = 0.76
"""Share of the square of normal noise that this trust leaves, on average: without it the scale would come out too
small. The mean of ``(FREEDOM + 1) * z**2 / (FREEDOM + z**2)``."""

ROUNDS = 6  # fits, each with less trust in what was far off the one before


@dataclass(slots=True, kw_only=True)
class Regression:
    """The posterior of ``value = features @ effects + shared + own + noise``.

    It is a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and
    2.7). A measurement that lies far from all others is believed less, as under Student's noise: a shared machine slows
    down by a factor now and then. How far everything else may be off is scaled by how far the measurements are off (a
    normal-inverse-gamma prior), so that beliefs in too little noise do not stay sure of themselves. Formulas: Gelman
    et al., Bayesian Data Analysis, chapters 14 and 17. All prior beliefs are normal and independent.

    Attributes:
        means: Expected effect of each feature.
        deviations: Standard deviation of each effect.
        own: Standard deviation of what is special about one case, and comes again when it is measured again.
        noise: Standard deviation of one measurement beside the true value.
        shared: Standard deviation of what is special about a case and about those that are like it.
        reach: Square of the distance between two cases, in the features from ``alike_from`` on, at which they have 1/e
            of it in common.
        alike_from: The first of the features by which cases are like each other.
    """

    means: np.ndarray
    deviations: np.ndarray
    own: float
    noise: float
    shared: float = 0.0
    reach: float = 1.0
    alike_from: int = 0
    _features: np.ndarray = field(init=False)
    _precision: np.ndarray = field(init=False)
    _weights: np.ndarray = field(init=False)
    _scale: float = field(init=False, default=1.0)

    def covariance(self, cases: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the prior covariance of cases (lines) and others (columns), but for what is their own."""
        found: np.ndarray = (cases * np.square(self.deviations)) @ others.T
        if self.shared:
            left, right = cases[:, self.alike_from :], others[:, self.alike_from :]
            squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1) - 2 * left @ right.T
            found += self.shared**2 * np.exp(-squares / self.reach)
        return found

    def fit(
        self,
        features: np.ndarray,
        values: np.ndarray,
        extra_noise: np.ndarray | float = 0.0,
        apart: np.ndarray | float = 0.0,
    ) -> None:
        """Learn from measurements, from these alone.

        Args:
            features: One line for each measurement.
            values: The measurements.
            extra_noise: Standard deviation of each measurement beyond the common noise.
            apart: Covariance of what measurements have in common with each other and with no case that is asked about.
        """
        variance = self.own**2 + self.noise**2 + np.square(extra_noise) * np.ones(len(values))
        common = self.covariance(features, features) + apart
        misfit = values - features @ self.means
        self._features = features
        # Little trust at first: what was believed shows which of a few measurements is the one that lies far off.
        trust = np.full(len(values), FIRST_TRUST)
        for _ in range(ROUNDS):
            self._precision = np.linalg.inv(common + np.diag(variance / trust))
            self._weights = self._precision @ misfit
            total = float(misfit @ self._weights) / KEPT
            self._scale = math.sqrt((PRIOR_WEIGHT + max(total, 0.0)) / (PRIOR_WEIGHT + len(values)))
            surprise = np.square(misfit - common @ self._weights) / (variance * self._scale**2)
            trust = (FREEDOM + 1) / (FREEDOM + surprise)

    @property
    def measured_noise(self) -> float:
        """Return the standard deviation of one measurement beside the true value, as the measurements tell it."""
        return self._scale * self.noise

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of unmeasured cases, without the noise of a measurement."""
        seen = self.covariance(features, self._features)
        believed = np.square(features) @ np.square(self.deviations) + self.shared**2
        spread = believed - np.einsum("ij,ij->i", seen @ self._precision, seen)
        deviations = self._scale * np.sqrt(np.maximum(spread, 0) + self.own**2)
        return features @ self.means + seen @ self._weights, deviations

    def deviation_apart(self, features: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the standard deviation of the difference between unmeasured cases and another one.

        What is believed of both alike makes no difference between them.
        """
        cases = np.vstack([features, other])
        seen = self.covariance(cases, self._features)
        believed = np.square(cases) @ np.square(self.deviations) + self.shared**2
        spread = believed - np.einsum("ij,ij->i", seen @ self._precision, seen)
        common = self.covariance(features, other[None])[:, 0] - seen[:-1] @ self._precision @ seen[-1]
        found: np.ndarray = np.sqrt(np.maximum(spread[:-1] + spread[-1] - 2 * common, 0) + 2 * self.own**2)
        return self._scale * found

    def settle(self, features: np.ndarray, value: float, own: float = 0.0) -> float:
        """Return a measured case's expected value: a measurement that stands out was partly luck.

        ``own`` is the standard deviation of what is special about the case, beyond what is believed of all.
        """
        mean = float(self.predict(features[None])[0][0])
        special, noise = self.own**2 + own**2, self.noise**2
        surprise = (value - mean) ** 2 / (special + noise)
        trust = min((FREEDOM + 1) / (FREEDOM + surprise), 1.0)
        return mean + (value - mean) * special / (special + noise / trust)


USUAL_ERROR = 0.02  # median error of models of memory to which beliefs about peaks apply: in a better one, firmer
PEAK_SLOPE = 0.05  # spread of the slope between measured peaks and their live bytes: the allocator cannot fill all gaps
PEAK_OFFSET, PEAK_OFFSET_OF_REST = 0.1, 0.02  # error of what is not simulated: shares of activations, and of all else
PEAK_PER_CHOICE, PEAK_OWN, PEAK_NOISE = 0.005, 0.01, 0.01  # of a choice, a config, a measurement; of the activations
LEAST_ACTIVATIONS = float(MIB)
"""Shares are of no less than this. Beside gigabytes of all else, a belief to the byte is lost in rounding, and the
regression has no solution on some processors."""

PEAK_SHARED, PEAK_REACH = 0.02, 2.0
"""Deviation of a config and its like, as a share of the activations; and the number of switches that leaves 1/e of it
shared. An order of operations in one config is that of those near it, too."""

PEAK_OF_NONE = 0.06  # without recompute operations may run in another order, and hold so much more or less
TIME_SLOPE, TIME_SLOPE_SPREAD = 0.8, 0.3  # of the kernels' time that recompute adds: the step has more to do
TIME_OFFSET, TIME_OWN, TIME_NOISE = 0.05, 0.005, 0.05  # another order of operations, one config, one measurement
TIME_PER_CHOICE_SHARE = 0.25  # error of the kernels' time of one switch, as a share of it, beyond the simulation's own
TIME_OF_CALLS_SHARE = 0.25  # error of the time that a switch adds beyond its kernels, as a share of it
TIME_OF_ANOTHER = 0.03  # deviation of another problem's step times from this one's: of each, and of all together
TIME_OF_SWITCH_ELSEWHERE = 0.5  # deviation of a switch's cost in another problem, as a share of the expected one
TIME_OF_OPAQUE = 0.02  # deviation of an opaque preset's step from that with all plans on: it recomputes about the same
UNKNOWN_OFFSET = 1.0  # without a reference times are relative to the fastest trial; another problem's are not
FIRST_SWITCH = 3  # the first of the features of peaks that is one for each switch
OVER = 0.01  # a config that ran out of memory needs at least so much more than the limit, as a share of the activations


class Surrogate:
    """Peaks and step times as sums: of what was simulated, and of what each switch adds to it.

    Args:
        candidates: The configs it is asked about.
        base_bytes: Memory that the simulation leaves out: the process, weights, optimizer, workspaces.
        limit_bytes: The memory limit.
        peak_error: Share by which half of the simulated peaks are off.
        trials: All trials so far.
        noted: Peaks in bytes that are known from elsewhere.
        prior: Trials of another problem whose step times tell something of this one's.

    Attributes:
        has_reference: True if step times are relative to the reference, False if to the fastest trial.
        peak_bytes: Expected peak of each candidate.
        peak_deviation: Its standard deviation, in bytes.
        peak_noise: Standard deviation of one measurement of a peak, in bytes.
        fits: Probability that the peak of each candidate holds the limit.
        step: Expected relative step time of each candidate.
        step_deviation: Its standard deviation.
        step_noise: Standard deviation of one measurement of a step time.
    """

    def __init__(  # noqa: PLR0913  (what is believed of memory, and what was measured)
        self,
        candidates: Candidates,
        *,
        base_bytes: float,
        limit_bytes: int,
        peak_error: float,
        trials: Sequence[Trial],
        noted: Mapping[Config, int] = MappingProxyType({}),
        prior: Sequence[Trial] = (),
    ) -> None:
        self._candidates, self._limit_bytes = candidates, limit_bytes
        self._firmness = peak_error / USUAL_ERROR
        self._activations = max(float(candidates.simulated.peak_bytes.max()), LEAST_ACTIVATIONS)
        known = [trial for trial in trials if trial.config in candidates.places]
        self.has_reference = all(trial.relative_throughput for trial in trials if trial.measurement.step_seconds)
        steps = steps_by_number(trials)
        self._fastest = min(steps.values(), default=1.0)
        self._steps = steps if self.has_reference else {number: step / self._fastest for number, step in steps.items()}
        places = {candidates.places[config]: peak for config, peak in noted.items() if config in candidates.places}
        peaks = self._learn_peaks(known, places, base_bytes)
        self.peak_bytes, self.peak_deviation = peaks.predict(self._peak_features(slice(None)))
        self.fits = normal((limit_bytes - self.peak_bytes) / self.peak_deviation)
        self._times = self._learn_times(known, [trial for trial in prior if trial.config in candidates.places])
        self.step, self.step_deviation = self._times.predict(self._time_features(slice(None)))
        self.peak_noise, self.step_noise = peaks.measured_noise, self._times.measured_noise

    def settled_step(self, trial: Trial) -> float:
        """Return the relative step time of a trial without the luck of its measurement."""
        if trial.config not in self._candidates.places and any(on.count is not None for on in trial.config.choices):
            return self._steps[trial.number]  # nothing is known of a count between those that are looked at
        place = self._candidates.places.get(trial.config, self._candidates.full)
        own = 0.0 if trial.config in self._candidates.places else TIME_OF_OPAQUE
        return self._times.settle(self._time_features([place])[0], self._steps[trial.number], own)

    def step_deviation_from(self, trial: Trial, place: int) -> float:
        """Return the standard deviation of how much the step of a candidate differs from that of a trial."""
        known = self._candidates.places.get(trial.config)
        if known is None:
            return float(self.step_deviation[place])
        features = self._time_features([place, known])
        return float(self._times.deviation_apart(features[:1], features[1])[0])

    def _learn_peaks(self, trials: Sequence[Trial], noted: Mapping[int, int], base_bytes: float) -> Regression:
        activations, off = self._activations, self._activations * self._firmness
        choices = self._candidates.switches.shape[1]
        offset = PEAK_OFFSET * activations + PEAK_OFFSET_OF_REST * base_bytes
        spreads = [offset, PEAK_SLOPE * self._firmness, PEAK_OF_NONE * off, *[PEAK_PER_CHOICE * off] * choices]
        model = Regression(
            means=np.array([base_bytes, 1.0, 0.0, *[0.0] * choices]),
            deviations=np.array(spreads),
            own=PEAK_OWN * off,
            noise=PEAK_NOISE * off,
            shared=PEAK_SHARED * off,
            reach=PEAK_REACH,
            alike_from=FIRST_SWITCH,
        )
        peaks = [(place, trial.measurement) for place, trial in zip(self._places(trials), trials, strict=True)]
        measured = {place: float(one.peak_bytes) for place, one in peaks if one.peak_bytes is not None}
        seen = {place: float(peak) for place, peak in noted.items()} | measured
        model.fit(self._peak_features(list(seen)), np.array(list(seen.values())))
        lost = [place for place, one in peaks if one.peak_bytes is None and one.outcome.is_about_memory]
        if lost:
            # Out of memory is above the limit; how far above, the model tells.
            expected, _ = model.predict(self._peak_features(lost))
            seen |= dict(zip(lost, np.maximum(expected, self._limit_bytes + OVER * activations), strict=True))
            model.fit(self._peak_features(list(seen)), np.array(list(seen.values())))
        return model

    def _learn_times(self, trials: Sequence[Trial], prior: Sequence[Trial]) -> Regression:
        references = [trial.reference_seconds for trial in trials if trial.reference_seconds] or [math.inf]
        # Times are relative to this step; where none is known yet, calls take no time.
        unit_seconds = statistics.median(references) if self.has_reference else self._fastest
        calls, shares = self._candidates.call_seconds / unit_seconds, self._candidates.choice_shares
        offset = TIME_OFFSET if self.has_reference else UNKNOWN_OFFSET
        spreads = self._candidates.step_error + TIME_PER_CHOICE_SHARE * shares + TIME_OF_CALLS_SHARE * calls
        model = Regression(
            means=np.array([1.0, TIME_SLOPE, *calls]),
            deviations=np.array([offset, TIME_SLOPE_SPREAD, *spreads]),
            own=TIME_OWN,
            noise=TIME_NOISE,
        )
        timed = [t for t in trials if t.measurement.step_seconds and not t.config.is_none]
        told = [t for t in prior if t.relative_throughput and not t.config.is_none]
        values = [self._steps[t.number] for t in timed]
        values += [1 / t.relative_throughput for t in told if t.relative_throughput]
        extra = np.array([0.0] * len(timed) + [TIME_OF_ANOTHER] * len(told))
        features = self._time_features(self._places([*timed, *told]))
        apart = np.zeros((len(values), len(values)))
        # Another problem's step times differ from this one's all together, and by their switches.
        deviations = TIME_OF_SWITCH_ELSEWHERE * (TIME_SLOPE * shares + calls)
        elsewhere = TIME_OF_ANOTHER if self.has_reference else UNKNOWN_OFFSET
        on = self._candidates.shares[self._places(told)]
        apart[len(timed) :, len(timed) :] = elsewhere**2 + (on * np.square(deviations)) @ on.T
        model.fit(features, np.array(values), extra, apart)
        return model

    def _places(self, trials: Sequence[Trial]) -> list[int]:
        return [self._candidates.places[trial.config] for trial in trials]

    def _peak_features(self, places: slice | list[int]) -> np.ndarray:
        switches = self._candidates.shares[places]
        simulated = self._candidates.simulated.peak_bytes[places].astype(float)
        return np.column_stack([np.ones(len(switches)), simulated, switches.sum(axis=1) == 0, switches])

    def _time_features(self, places: slice | list[int]) -> np.ndarray:
        switches = self._candidates.shares[places]
        again = self._candidates.simulated.recompute_share[places]
        return np.column_stack([np.ones(len(switches)), again, switches])


_erf = np.vectorize(math.erf, otypes=[float])


def normal(values: np.ndarray) -> np.ndarray:
    """Return the standard normal distribution function."""
    share: np.ndarray = 0.5 * (1 + _erf(values / math.sqrt(2)))
    return share
