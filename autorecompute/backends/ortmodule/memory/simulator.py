"""The peak of every config at once, without running one.

The operations of a step keep their order. One that is repeated runs just before the first operation that reads its
copy, as in ORT's memory-efficient order (since 1.18): a chain of repeated operations runs as a whole before whatever
needs its end. A value lives until it was read last; one that nobody reads lives until the step ends.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.backends.ortmodule.memory.lives import Lives
from autorecompute.memory.model import STEP_ERROR, Simulated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.backends.ortmodule.memory.blueprint import Blueprint
    from autorecompute.plans import Choice, Config

CHUNK = 4096
"""Configs that are simulated together: their arrays stay in the processor's cache."""


class OrtSimulator:
    """A blueprint at some dimensions.

    Args:
        blueprint: The step.
        dims: Its dimensions, where they are not those that were profiled.
        choices: What can be on, in the order of the columns that :meth:`simulate` takes.

    Raises:
        KeyError: a shape depends on a dimension that is not known.
    """

    def __init__(self, blueprint: Blueprint, dims: Mapping[str, int], choices: Sequence[Choice]) -> None:
        self._blueprint, self._choices = blueprint, tuple(choices)
        dims = {**blueprint.plain.dims, **dims}
        self._sizes = {tensor.name: tensor.bytes_at(dims) for tensor in blueprint.plain.tensors}
        self._lives = Lives(blueprint, self._sizes)
        place = {op.key: index for index, op in enumerate(blueprint.repeatable)}
        self._covers = np.zeros((len(self._choices), len(place)), dtype=np.float32)
        for choice, covered in zip(self._choices, self._covers, strict=True):
            covered[[place[op.key] for nodes in blueprint.subgraphs.get(choice.site, ()) for op in nodes]] = 1
        self.call_seconds = np.zeros(len(self._choices))  # the graph is compiled: nothing but kernels runs
        self.step_error = STEP_ERROR
        self._seconds = np.array([op.seconds for op in blueprint.repeatable])
        self._step_seconds = math.fsum(op.seconds for op in blueprint.plain.operations)

    def matrix(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the configs as :meth:`simulate` takes them: one line each, a column for each choice."""
        return np.array(
            [[choice in config.choices for choice in self._choices] for config in configs], dtype=np.float32
        )

    def simulate(self, switches: np.ndarray) -> Simulated:
        """Return what configs need.

        Args:
            switches: Which choices are on, of shape ``[configs, choices]``.
        """
        parts = [self._simulate(switches[start : start + CHUNK]) for start in range(0, max(len(switches), 1), CHUNK)]
        peaks, stashes, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Simulated(peaks, stashes, shares)

    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        repeats = np.ascontiguousarray((switches.astype(np.float32) @ self._covers > 0).T)
        peaks, stashes = self._lives.simulate(repeats)
        share = self._seconds @ repeats / self._step_seconds if self._step_seconds else np.zeros(len(switches))
        return peaks, stashes, share
