"""Small training steps, written by hand."""

from __future__ import annotations

import pytest

from autorecompute.memory import Operation, StepProfile, Tensor
from autorecompute.memory.step import Phase

LETTERS = {"f": Phase.FORWARD, "l": Phase.LOSS, "b": Phase.BACKWARD, "r": Phase.RECOMPUTE}


@pytest.fixture
def make_step():
    """Builds a profile: a letter for the phase of each operation, and tensors as ``(name, first, last, *shape)``."""

    def make(phases, *tensors, seconds=1.0, batch=2):
        return StepProfile(
            operations=tuple(
                Operation(name=f"layer.{place}/{letter}", operator="Gelu", phase=LETTERS[letter], seconds=seconds)
                for place, letter in enumerate(phases)
            ),
            tensors=tuple(
                Tensor(name=name, first=first, last=last, shape=shape, element_bytes=1)
                for name, first, last, *shape in [(n, f, t, *s) for n, f, t, *s in tensors]
                for shape in [tuple(shape)]
            ),
            backward=phases.index("l"),
            dims={"batch": batch},
        )

    return make
