"""What configs in plain PyTorch truly take, from noisy recordings."""

import itertools
import random
import types

import numpy as np
import pytest

from autorecompute.plans import Choice, Config
from sums import fit_sums
from tables import Recording

COSTS = {"blocks": 0.3, "mlp": 0.12, "gelu": 0.02}
BLOCKS = 6


def true_ratio(counts):
    """A sum of what each plan adds in the first blocks, as many as it has on."""
    return 1 + sum(cost * count / BLOCKS for cost, count in zip(COSTS.values(), counts, strict=True))


@pytest.fixture
def record():
    """Records every mix a few times, with noise; some of them by accident thrice as slow."""

    def record(noise, accidents=0.0, own=None):
        chance, recordings = random.Random(0), {}
        mixes = list(itertools.product(range(BLOCKS + 1), repeat=len(COSTS)))
        for number, counts in enumerate(mixes):
            choices = [Choice(site, "on", count) for site, count in zip(COSTS, counts, strict=True) if count]
            ratio = true_ratio(counts) + (own or {}).get(counts, 0.0)
            recordings[Config(frozenset(choices))] = [
                Recording(
                    "ok", 1, (ratio * chance.gauss(1, noise) * (3 if chance.random() < accidents else 1),), 1.0, n
                )
                for n in range(6 * number, 6 * number + 6)
            ]
        places = {config: place for place, config in enumerate(recordings)}
        candidates = types.SimpleNamespace(shares=np.array(mixes) / BLOCKS, places=places)
        return mixes, types.SimpleNamespace(recordings=recordings, candidates=candidates)

    return record


@pytest.mark.parametrize("accidents", [0.0, 0.03])
def test_noise_is_averaged_over_all_recordings(record, accidents):
    """Each recording is off by a tenth, some by far more; the truth is off by a hundredth in the median."""
    mixes, table = record(0.1, accidents)
    found = fit_sums(table).recorded
    misses = [abs(found[c] / true_ratio(counts) - 1) for c, counts in zip(table.recordings, mixes, strict=True)]
    assert np.median(misses) < 0.01


def test_what_is_special_about_a_config_is_kept(record):
    """One that truly takes half a step more than its plans say is not smoothed away."""
    special = (3, 3, 3)
    mixes, table = record(0.02, own={special: 0.5})
    config = list(table.recordings)[mixes.index(special)]
    assert fit_sums(table).recorded[config] == pytest.approx(true_ratio(special) + 0.5, rel=0.05)


def test_a_config_that_was_not_recorded_is_told_by_its_parts(record):
    """What its choices add elsewhere is what they add in it."""
    mixes, table = record(0.02)
    unseen = (2, 5, 1)
    place = mixes.index(unseen)
    config = list(table.recordings)[place]
    del table.recordings[config]
    assert fit_sums(table).ratio(table.candidates.shares[place]) == pytest.approx(true_ratio(unseen), rel=0.01)
