"""Tells whether a loss is one of the whole batch, as a contrastive one is: halves of the batch then train otherwise."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autorecompute.backends.common import observe_batch, tensors_in
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.nn import Module

MOST_BYTES = 64 * MIB
"""Of results that are looked at: going back twice takes several times as much. Contrastive losses are of embeddings."""

LEAST_SAMPLES = 4  # of fewer, a pair is as much as most others

NEGLIGIBLE = 1e-6
"""Share of the second derivatives that rounding may leave where there are none."""


class Results:
    """Follows what models return, and what their children do where a model returns its loss alone.

    Attributes:
        is_looking: True while gradients are computed that are not the training's.
    """

    def __init__(self) -> None:
        self._returned: list[weakref.ref[Tensor]] = []
        self._inside: list[weakref.ref[Tensor]] = []
        self._hooks: list[Any] = []
        self.is_looking = False

    def follow(self, roots: Iterable[Module]) -> None:
        """Follow models from now on, until a loss is looked at."""

        def note(_module: Module, _args: Any, result: Any) -> None:
            self._inside += _samples_in(result)

        self._stop()
        self._hooks = [child.register_forward_hook(note) for root in roots for child in root.children()]

    def note(self, result: Any) -> None:
        """Note what a model has returned."""
        self._returned += _samples_in(result) if self._hooks else ()

    def are_mixed_by(self, loss: Tensor) -> bool:
        """Tell whether a loss mixes samples, where models are followed, and follow nothing any more."""
        if not self._hooks:
            return False
        references = self._returned or self._inside
        self._stop()
        self.is_looking = True
        try:
            return mixes_samples(loss, [one for reference in references if (one := reference()) is not None])
        finally:
            self.is_looking = False

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._returned, self._inside, self._hooks = [], [], []


def _samples_in(result: Any) -> Iterator[weakref.ref[Tensor]]:
    return (weakref.ref(one) for one in tensors_in(result) if one.grad_fn is not None and one.dim() > 1)


def mixes_samples(loss: Tensor, results: Sequence[Tensor]) -> bool:
    """Tell whether the gradients of most samples change as the results of one do.

    Results have the samples as their first dimension. Gradients of a sum or a mean over samples do not, whatever its
    weights, and those of a loss over pairs or triples do of few. Of fewer than four samples, of a loss that cannot be
    gone back through twice, and of too large results nothing is told: ``False``.
    """
    batch = observe_batch([*results])
    results = [one for one in results if one.shape[0] == batch and one.numel()]
    if not results or batch < LEAST_SAMPLES or sum(one.nbytes for one in results) > MOST_BYTES:
        return False
    try:
        gradients = torch.autograd.grad(loss, results, create_graph=True, allow_unused=True)
        # The gradient of the first sample in some direction, and of what results it depends.
        numbers = torch.Generator(device=loss.device).manual_seed(0)
        inner = [
            (one[0] * torch.randn(one[0].shape, generator=numbers, device=one.device, dtype=one.dtype)).sum()
            for one in gradients
            if one is not None and one.requires_grad
        ]
        if not inner:
            return False
        changes = torch.autograd.grad(sum(inner), results, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return False
    by_sample = [one.detach().abs().flatten(1).amax(1).float() for one in changes if one is not None]
    if not by_sample:
        return False
    largest = torch.stack(by_sample).amax(0)
    return int((largest[1:] > NEGLIGIBLE * largest.max()).sum()) > (batch - 1) / 2
