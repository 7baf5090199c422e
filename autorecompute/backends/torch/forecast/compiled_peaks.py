"""Forecasts the peaks of a compiled model, and says what its configs have to compile."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

import numpy as np

from autorecompute.backends.torch.forecast.records import BUDGET, GRAPH, KEEPING, RECOMPUTE, CompiledPeak
from autorecompute.memory import PeakForecaster, Simulator, covered
from autorecompute.plans import Choice, Config
from autorecompute.plans.savings import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autorecompute.plans import Plan, Space


def code_of_blocks(config: Config, plans: Iterable[Plan]) -> frozenset[str]:
    """Return the names of what is compiled: a block for each way in which the config runs blocks of its group.

    A budget has all blocks compiled with it. Blocks that no choice is about run as the script has them.
    """
    budgets = [str(on) for on in config.choices if on.option.startswith(BUDGET)]
    if budgets:
        return frozenset(budgets)
    groups = {choice.site: plan.occurrences for plan in plans if plan.counts for choice in plan.choices}
    chosen = {on.site: on for on in config.choices}
    checkpointed = {f"{on.site}:{on.option}" for on in config.choices}
    plain = {
        site
        for site, blocks in groups.items()
        if site not in chosen or (chosen[site].count is not None and (chosen[site].count or 0) < blocks)
    }
    return frozenset(checkpointed | plain)


LIKELY_ERROR: Final = 0.09
"""By less than this share half of all forecasts were off, in the worst of three studies (``make bench-compiled``)."""

STEP_ERROR, STEP_ERROR_OF_ALL = 0.03, 0.06
"""Errors of the added time of one choice, as a share of the step: standard deviations, of a cluster and of a choice
that changes all of the code. Code that recomputes more may even be faster, as other operators are joined in it. Beside
their work's estimate, budgets and blocks took from 10 % less to 12 % more in a GPT-2 and a Llama, and clusters from 4 %
less to 5 % more (``make bench-compiled``)."""


class CompiledSimulator(Simulator):
    """Adds up what the choices of a config change, each as it does by itself.

    Args:
        peaks: Peaks of no choice and of single ones.
        scale: Size of activations, as a multiple of those in the peaks.
    """

    def __init__(
        self, peaks: Sequence[CompiledPeak], choices: Sequence[Choice], space: Space, scale: float = 1.0
    ) -> None:
        occurrences = {choice: max(plan.occurrences, 1) for plan in space.plans for choice in plan.choices}
        super().__init__(choices, [occurrences.get(choice, 1) for choice in choices])
        self._space = space
        none = next(peak for peak in peaks if peak.config.is_none)
        self._none = np.array([none.peak_bytes * scale, none.kept_bytes * scale, 0.0])
        curves: dict[Choice, dict[float, np.ndarray]] = collections.defaultdict(lambda: {0.0: np.zeros(3)})
        for peak in peaks:
            for on in peak.config.choices:
                needs = np.array([peak.peak_bytes * scale, peak.kept_bytes * scale, peak.work])
                choice = Choice(on.site, on.option)
                share = 1.0 if on.count is None else on.count / occurrences.get(choice, 1)
                curves[choice][share] = needs - self._none
        self._curves = [curves[choice] for choice in choices]
        of_cluster = [on.option == RECOMPUTE or (on.site == GRAPH and on.option.startswith(KEEPING)) for on in choices]
        self.step_error = np.where(of_cluster, STEP_ERROR, STEP_ERROR_OF_ALL)

    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shares = switches - covered(switches, self._space, self._choices)
        needs = np.tile(self._none, (len(switches), 1))
        for column, curve in enumerate(self._curves):
            known = sorted(curve)
            values = np.array([curve[share] for share in known])
            for part in range(needs.shape[1]):
                needs[:, part] += np.interp(shares[:, column], known, values[:, part])
        peak, kept, work = np.maximum(needs, 0.0).T
        return peak, kept, work


class CompiledPeaks(PeakForecaster):
    """Peaks of a compiled model, from its joint graph.

    Args:
        peaks: Peaks of no choice and of single ones.
        base_bytes: Bytes that the process holds between two steps.
        batch: Samples of these peaks.
    """

    likely_error = LIKELY_ERROR

    def __init__(self, space: Space, peaks: Sequence[CompiledPeak], base_bytes: int, batch: int) -> None:
        self._space, self._peaks, self._base_bytes, self._batch = space, peaks, base_bytes, batch

    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> CompiledSimulator:
        """Return a simulator at some dimensions, of which only the batch may differ from what was traced."""
        return CompiledSimulator(self._peaks, choices, self._space, dims.get(BATCH, self._batch) / self._batch)

    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """Return the bytes that a process needs at its peak beyond its live tensors."""
        del dims
        return self._base_bytes
