"""The search that knows its subject: simulated peaks, summed times, and the trial that is most worth its time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.measurement import Outcome, Prediction
from autorecompute.plans import Config
from autorecompute.search.candidates import Candidates, chance_to_work, choices_of
from autorecompute.search.searcher import Proposal, Searcher, preset_reason
from autorecompute.search.surrogate import USUAL_ERROR, Surrogate, needs_nothing, normal, relative_costs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import PeakForecaster
    from autorecompute.plans import Space
    from autorecompute.search.surrogate import Needs

LEAST_GAIN = 0.0004
"""A trial that should gain less than this share of the step time is not worth its own time. One that takes n times as
long, as its config has to be made ready first, has to gain n times as much."""

PATIENCE, PATIENCE_WHERE_KNOWN = 10, 6
"""After so many trials that gained nothing the search ends: what is left to gain is less than what noise hides. Where
peaks are known, only times are left to learn."""

WORTH_WAITING = 0.01
"""A trial that brought the step time of the best down by no more than this share gained nothing: among many configs
that are equally fast, noise makes a new one look best now and then."""

LIKELY = 0.5  # chance from which a config is more likely to fit than not
HOPELESS = 1e-4  # chance below which only the least peak is still looked for, as long as no config fits

LOST_TRIALS, HOPELESS_THEN = 3, 0.05
"""After so many configs that ran out of memory, and none that fits, a trial takes a better chance: each one costs a
process, and tells no peak that the next one could learn from."""

MARGIN = 0.01
"""A config that recomputes all that another does may be as fast, if its kernels take no more than this share beyond:
some values are cheaper to make than to fetch."""

SLACK = 3.0
"""Simulated peaks that differ by no more than so many likely errors of the model of memory cannot be told apart. What
should need so much more than a config that ran out of memory is ruled out."""

INTERVAL = 1.645  # standard deviations on each side of a 90 % interval


class ModelSearcher(Searcher):
    """Measures what should gain most: likely to fit and faster than the best, or so little known that it may be.

    The expected improvement over the fastest config that fits (Jones, Schonlau and Welch, 1998), times the probability
    to fit (Schonlau, 1997), for the time that the trial takes (Snoek, Larochelle and Adams, 2012). Configs that
    recompute all that a fitting one does and more are never tried, nor those that should need as much as one that ran
    out of memory.

    Args:
        space: The plans.
        limit_bytes: The memory limit.
        memory: A model of memory.
        dims: The dimensions of a step at the target batch.
        prior: Trials of a problem that is like this one.
        needs: Returns what a config has to have made ready.
        known_trials: Number of trials that were held against another limit before. They say little about this one,
            which takes its own trials before nothing is left to gain.
        least_fit: Least chance to fit of what is tried. With it, presets get no turn of their own. While no config is
            that likely, only the one with the least expected peak is tried. It is also tried first where peaks are only
            known roughly.
    """

    def __init__(  # noqa: PLR0913  (what is known before the first trial)
        self,
        space: Space,
        *,
        limit_bytes: int,
        memory: PeakForecaster,
        dims: Mapping[str, int],
        prior: Sequence[Trial] = (),
        needs: Needs = needs_nothing,
        known_trials: int = 0,
        least_fit: float = 0.0,
    ) -> None:
        self._limit_bytes, self._prior, self._least_fit = limit_bytes, prior, least_fit
        self._noted: dict[Config, int] = {}
        self._candidates = Candidates(space, memory.simulator(dims, choices_of(space)))
        self._base_bytes, self._peak_error = memory.base_bytes(dims), memory.likely_error
        self._is_known = self._peak_error < USUAL_ERROR
        self._needs, self._known_trials = needs, known_trials
        self._presets, opaque = list(dict.fromkeys(space.presets.values())), space.opaque_presets.values()
        found = memory.forecasts(dims) if opaque else []
        # Nothing is known of a preset that seems to recompute nothing.
        self._opaque = {one.config: one for one in found if one.config in opaque and one.recompute_share > 0}

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config; ``None`` when the batch fits without recompute, or nothing is left to gain."""
        if any(trial.config.is_none and trial.fits for trial in trials):
            return None
        surrogate = self._learn(trials)
        tried = {*claimed, *(trial.config for trial in trials)}
        cost_of = relative_costs(trials, self._needs)
        for preset in self._presets_to_measure(tried, surrogate, few=self._is_known or cost_of is not None):
            if preset not in tried and not self._least_fit:
                return self._proposal(preset, preset_reason(preset), surrogate)
        # There may be a hundred thousand candidates.
        configs = map(self._candidates.config, range(len(self._candidates)))
        costs = np.array([cost_of(config) for config in configs]) if cost_of is not None else 1.0
        return self._most_worth_a_trial(trials, claimed, surrogate, costs)

    def fastest(self) -> Config | None:
        """Return the config that should be fastest of those whose forecast holds the limit; ``None`` where none does.

        Of trials only prior ones are known.
        """
        peaks = self._candidates.simulated.peak_bytes + self._base_bytes
        surrogate = self._learn(())
        steps = np.where(peaks <= self._limit_bytes, surrogate.step, math.inf)
        if (plain := self._candidates.places.get(Config())) is not None and math.isfinite(steps[plain]):
            return Config()
        place = int(steps.argmin())
        return self._candidates.config(place) if math.isfinite(steps[place]) else None

    def note_peak(self, config: Config, peak_bytes: int) -> None:
        """Learn a peak that a whole step on fake tensors tells: those of other configs are off in the same way."""
        self._noted[config] = peak_bytes

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """Return the model's prediction after these trials; ``None`` for a config that is no candidate."""
        return self._prediction(config, self._learn(trials))

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return the step times of the model, which all trials together have made."""
        surrogate = self._learn(trials)
        return {trial.number: surrogate.settled_step(trial) for trial in trials if trial.measurement.step_seconds}

    def _presets_to_measure(self, tried: Collection[Config], surrogate: Surrogate, *, few: bool) -> Sequence[Config]:
        """Return the presets whose figures everybody asks for; the others compete with all that there is.

        Where memory is known these are no recompute, and opaque presets of which nothing is forecast or that should be
        the fastest: what others take is predicted, and steps are spent on what may be the answer. Where a trial takes
        long for its config to be made ready, they are also the leanest preset, which people switch on first, and that
        which should be the fastest of those that should fit. What a rough model of memory says is no reason to leave
        out what users know by name.
        """
        places = {preset: self._candidates.places.get(preset) for preset in self._presets if not preset.is_none}
        known = {preset: place for preset, place in places.items() if place is not None}
        if not few or not known:
            return self._presets
        opaque = [preset for preset, place in places.items() if place is None and self._may_gain(preset, surrogate)]
        if self._is_known:
            return [Config(), *opaque]
        leanest = min(known, key=lambda preset: float(surrogate.peak_bytes[known[preset]]))
        fitting = [preset for preset, place in known.items() if surrogate.fits[place] >= LIKELY and preset != leanest]
        by_hand = sorted(fitting, key=lambda preset: float(surrogate.step[known[preset]]))[:1]
        return [Config(), leanest, *(by_hand if not any(one in tried for one in fitting) else ()), *opaque]

    def _may_gain(self, preset: Config, surrogate: Surrogate) -> bool:
        """Tell whether an opaque preset may fit, and no mix that is as likely to recomputes as little."""
        forecast = self._opaque.get(preset)
        if forecast is None:
            return True
        shares = self._candidates.simulated.recompute_share[surrogate.fits >= LIKELY]
        may_fit = forecast.peak_bytes <= self._limit_bytes or forecast.is_near(self._limit_bytes)
        return may_fit and forecast.recompute_share < float(shares.min(initial=math.inf))

    def _learn(self, trials: Sequence[Trial]) -> Surrogate:
        return Surrogate(
            self._candidates,
            base_bytes=self._base_bytes,
            limit_bytes=self._limit_bytes,
            peak_error=self._peak_error,
            trials=trials,
            noted=self._noted,
            prior=self._prior,
        )

    def _most_worth_a_trial(
        self, trials: Sequence[Trial], claimed: Collection[Config], surrogate: Surrogate, costs: np.ndarray | float
    ) -> Proposal | None:
        fitting = [surrogate.settled_step(trial) if trial.fits else math.inf for trial in trials]
        best = min((step for step in fitting if step < math.inf), default=None)
        allowed = self._allowed(trials, claimed)
        if self._least_fit:
            is_sure = allowed * (surrogate.fits >= self._least_fit)
            is_first_guess = not self._is_known and not trials  # what is sure of a rough model is not sure enough
            if best is None and (is_first_guess or not is_sure.any()):
                return self._least_peak(trials, surrogate, allowed)
            allowed = is_sure
        # Where nothing fits yet, anything that does is a gain, the faster the better.
        ahead = (best if best is not None else float(surrogate.step.max()) + 1.0) - surrogate.step
        units = ahead / surrogate.step_deviation
        density = np.exp(-0.5 * units**2) / math.sqrt(2 * math.pi)
        improvement = ahead * normal(units) + surrogate.step_deviation * density
        gain = surrogate.fits * improvement * allowed / costs
        place = int(gain.argmax())
        lost = sum(trial.measurement.outcome is Outcome.OOM for trial in trials if not trial.config.is_none)
        hopeless = HOPELESS_THEN if lost >= LOST_TRIALS else HOPELESS
        if best is None and float((surrogate.fits * (allowed > 0)).max()) < hopeless:
            return self._least_peak(trials, surrogate, allowed)
        is_done = best is not None and (gain[place] < LEAST_GAIN * best or self._is_tired(fitting))
        if gain[place] <= 0 or is_done:
            return None
        reason, expected = f"{surrogate.fits[place]:.0%} to fit", None
        if best is not None:
            lead = best / surrogate.step[place] - 1
            reason += f", {abs(lead):.1%} {'faster' if lead > 0 else 'slower'} than the best"
            expected = float(allowed[place]) * self._expect_gain(trials, fitting, surrogate, place)
        return replace(self._proposal(self._candidates.config(place), reason, surrogate), gain=expected)

    def _expect_gain(
        self, trials: Sequence[Trial], fitting: Sequence[float], surrogate: Surrogate, place: int
    ) -> float:
        """Return the share of the best step that a candidate should gain over it.

        Here the two are compared, and what is not known of both alike tells nothing. The more trials in a row have
        gained nothing, the less of it is to be believed: after n of them one in n + 2 gains something (Laplace's rule
        of succession), and before the first of them one in two.
        """
        best, leader = min(zip(fitting, trials, strict=True), key=lambda pair: pair[0])
        ahead, deviation = best - float(surrogate.step[place]), surrogate.step_deviation_from(leader, place)
        units = np.array([ahead / deviation])
        improvement = ahead * normal(units)[0] + deviation * math.exp(-0.5 * float(units[0]) ** 2) / math.sqrt(
            2 * math.pi
        )
        return float(surrogate.fits[place] * improvement) / best * 2 / (2 + count_since_gain(fitting))

    def _is_tired(self, fitting: Sequence[float]) -> bool:
        patience = PATIENCE_WHERE_KNOWN if self._is_known else PATIENCE
        # What is over a known limit was tried under another one, before whole processes were seen to need more.
        steps = [step for step in fitting if step < math.inf] if self._is_known else fitting
        return len(fitting) >= self._known_trials + patience and count_since_gain(steps) >= patience

    def _least_peak(self, trials: Sequence[Trial], surrogate: Surrogate, allowed: np.ndarray) -> Proposal | None:
        """Return the config that should need less than any that was measured, which tells what limit would do.

        Where that ran out of memory, too, all others would.
        """
        is_hopeless = any(trial.measurement.outcome.is_about_memory for trial in trials if not trial.config.is_none)
        measured = [trial.measurement.peak_bytes for trial in trials if trial.measurement.peak_bytes is not None]
        place = int(np.where(allowed, surrogate.peak_bytes, math.inf).argmin())
        if not allowed[place] or surrogate.peak_bytes[place] >= min(measured, default=0 if is_hopeless else math.inf):
            return None
        return self._proposal(self._candidates.config(place), "least peak", surrogate)

    def _allowed(self, trials: Sequence[Trial], claimed: Collection[Config]) -> np.ndarray:
        """Return each candidate's chance to run, and 0 for those not worth a trial."""
        candidates, peaks = self._candidates, self._candidates.simulated.peak_bytes
        allowed = np.ones(len(candidates), dtype=bool)
        allowed[[candidates.places[config] for config in claimed if config in candidates.places]] = False
        for trial in trials:
            if (place := candidates.places.get(trial.config)) is None:
                continue
            allowed[place] = False
            if trial.fits:
                is_slower = candidates.simulated.recompute_share > candidates.simulated.recompute_share[place] + MARGIN
                allowed &= ~(candidates.supersets(place) & is_slower)
            elif trial.measurement.outcome.is_about_memory and not trial.measurement.outcome.is_measured:
                allowed &= peaks < peaks[place] + SLACK * self._peak_error * float(peaks.max())
        found: np.ndarray = allowed * chance_to_work(candidates, trials)
        return found

    def _proposal(self, config: Config, reason: str, surrogate: Surrogate) -> Proposal:
        return Proposal(config=config, reason=reason, prediction=self._prediction(config, surrogate))

    def _prediction(self, config: Config, surrogate: Surrogate) -> Prediction | None:
        place = self._candidates.places.get(config)
        if place is None:
            return None
        # What is measured once has the noise of a measurement as well.
        spread = INTERVAL * math.hypot(surrogate.peak_deviation[place], surrogate.peak_noise)
        step_spread = INTERVAL * math.hypot(surrogate.step_deviation[place], surrogate.step_noise)
        peak, step = float(surrogate.peak_bytes[place]), float(surrogate.step[place])
        return Prediction(
            peak_bytes=max(round(peak), 1),
            peak_low=round(peak - spread),
            peak_high=round(peak + spread),
            step=step if surrogate.has_reference else None,
            step_low=step - step_spread if surrogate.has_reference else None,
            step_high=step + step_spread if surrogate.has_reference else None,
            fits=min(max(float(surrogate.fits[place]), 0.0), 1.0),
        )


def count_since_gain(steps: Sequence[float]) -> int:
    """Count the trials after the first whose step takes no more than 1 % longer than the best."""
    as_good = (1 + WORTH_WAITING) * min(steps)
    return len(steps) - 1 - next(place for place, step in enumerate(steps) if step <= as_good)
