"""What a recorded config truly needs, as far as noisy recordings tell.

A config is measured once or a few times, and a step of a shared machine takes a tenth more or less by chance. Among a
thousand configs the one with the fastest recording is a lucky one, so that "within 1 % of the fastest recorded" would
be a question of luck. Step times are therefore taken from all recordings together: the recordings of a few minutes
share their pace, each plan multiplies the step, and each pair of plans does so too, as far as the recordings bear out
that pairs do.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from dataclasses import dataclass

import numpy as np

from autorecompute.backends.ortmodule.controller import OrtDetection, level_of, option_of
from autorecompute.plans import Config
from robust import DEVIATION, doubt, weigh
from sums import fit_sums

LEVEL_RECORDINGS = 4
"""A level recorded as often has an effect of its own: at the borders of layers it recomputes less than its plans."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a config is taken to need.

    Attributes:
        peak_bytes: Median of its recorded peaks.
        ratio: Its step time, as a share of that without recompute.
    """

    peak_bytes: float
    ratio: float


def truths_of(table):
    """The truth about each config that could be measured."""
    ratios = fit_sums(table).recorded if table.is_torch else fit_ratios(table)
    found = {}
    for config, recordings in table.recordings.items():
        peaks = [recording.peak_bytes for recording in recordings if recording.peak_bytes is not None]
        if peaks:
            found[config] = Truth(statistics.median(peaks), ratios[config])
    return found


def peak_noise_bytes(table):
    """How far a recorded peak is from the median of its config, as a normal deviation; 0 where none was repeated."""
    found = []
    for recordings in table.recordings.values():
        peaks = [recording.peak_bytes for recording in recordings if recording.peak_bytes is not None]
        if len(peaks) > 1:
            median = statistics.median(peaks)
            found += [abs(peak - median) for peak in peaks]
    return DEVIATION * statistics.median(found) if found else 0.0


def fit_ratios(table):
    """The step time of each measured config, as a share of that without recompute."""
    rows = [(config, recording) for config, found in table.recordings.items() for recording in found]
    rows = [(config, recording) for config, recording in rows if recording.seconds and recording.reference_seconds]
    references = {recording.window: recording.reference_seconds for _, recording in rows}
    configs = [*(config for config, _ in rows), *(Config() for _ in references)]
    counts = Counter(config for config in configs if not table.space.is_mix(config))
    known = [config for config, count in counts.items() if count >= LEVEL_RECORDINGS]
    features = {config: _features(config, table, known) for config in {*configs}}
    windows = np.array([recording.window for _, recording in rows] + list(references))
    times = np.log([statistics.median(recording.seconds) for _, recording in rows] + list(references.values()))
    plans, pairs = (np.array([features[config][place] for config in configs]) for place in (0, 1))
    effects = _fit(plans, pairs, windows[:, None] == np.array(list(references)), times)
    found = {config: float(np.concatenate(parts) @ effects) for config, parts in features.items()}
    return {config: float(np.exp(found[config] - found[Config()])) for config in found}


def _features(config, table, known):
    """Which plans a config has, or which of the known levels it is; and of which pairs it has both plans or neither."""
    space = table.space
    if space.is_mix(config) or config in known:
        plans = np.array([config.has(plan) for plan in space.plans], dtype=float)
    else:
        layer_plans = OrtDetection.of(table.detection).layer_plans
        taken = {plan.id for plan in layer_plans if int(option_of(plan)) <= level_of(config)}
        plans = np.array([plan.id in taken for plan in space.plans], dtype=float)
    own = [float(config == level) for level in known]
    return np.concatenate([plans, own]), np.array(
        [1.0 if one == other else -1.0 for one, other in itertools.combinations(plans, 2)]
    )


def _fit(plans, pairs, windows, times):
    """What each plan and each pair add to the logarithm of a time, whatever the pace of its window."""
    design = np.hstack([windows.astype(float), plans])
    weights = weigh(design, times)
    design = np.hstack([design, pairs])
    ridge = np.zeros(design.shape[1])
    ridge[-pairs.shape[1] :] = doubt(design, times, weights, pairs.shape[1])
    weighted = design.T * weights
    return np.linalg.solve(weighted @ design + np.diag(ridge), weighted @ times)[windows.shape[1] :]
