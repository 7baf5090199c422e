"""Compares a config's gradients with those without recompute, on the same weights, samples and random numbers."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autorecompute.backends.common.gradients import TOLERANCES, relative_difference, scalar_of
from autorecompute.backends.torch.sharded import forgotten, gradients_of, is_sharded
from autorecompute.backends.torch.untouched import copies_of, untouched, without_autocast
from autorecompute.measurement import GradientCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.switchboard import Switchboard
    from autorecompute.plans import Choice

    See = Callable[[str, Tensor], None]

SEEDS = (20_230, 20_231)
"""A step is compared from each."""

LOSS, BUFFER = "the loss", "buffer "

LEAST_ROUNDED = 1024
"""A gradient of so many numbers that all fit into 16 bits was computed in 16 bits: under autocast, whatever the type of
the weight. There a sum in another order may round to the next number, 2**-8 of the largest gradient in bfloat16."""

NOISE_FACTOR = 4.0
"""Where kernels add up in any order, a config may be off by so many times what two steps without recompute differ by.

Attention's backward pass does so on a card. Seen on an H100 in bfloat16: from 4e-4 to 1.1e-2 of the largest gradient.
"""

MOST_NOISE = 0.05
"""But by no more than this share of the largest gradient. Other dropout masks in one of six layers make 0.3 of it."""


def check_gradients(
    model: Module, board: Switchboard, choices: Iterable[Choice], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> GradientCheck:
    """Compares choices with no recompute; training goes on bit for bit as if nothing had been run.

    No more gradients are held at once than at the end of a step: those without recompute are kept, and each of the
    others is dropped as soon as it was compared.

    Args:
        model: The model, which is about to be called.
        board: Its switches.
        choices: What to recompute.
        args: The positional arguments of the call, with few samples.
        kwargs: Its keyword arguments, likewise.
    """
    before, step = board.choices, _Step(model, args, kwargs)
    worst, place, message, kind = 0.0, "", "", ""
    try:
        for seed in SEEDS:
            difference, name, rounded = _compare(step, seed, board, choices)
            kind = kind or rounded
            if not difference <= worst:
                worst, place = difference, name
        # On a card, and in other compiled code, sums may come in another order. On a CPU nothing else may differ.
        is_exact = board.is_exact and all(parameter.device.type == "cpu" for parameter in model.parameters())
        agrees = worst <= (0.0 if is_exact else TOLERANCES.get(kind or _kind_of(model, place), 0.0))
        if not agrees and not is_exact:
            noise = max(_compare(step, seed, board, ())[0] for seed in SEEDS)
            agrees = worst <= min(NOISE_FACTOR * noise, MOST_NOISE)
            message = f"{place} is off by {worst:.1e} of its largest gradient, steps without recompute by {noise:.1e}"
    finally:
        board.set(before)
    parameter, message = ("", "") if agrees else (place, message)
    return GradientCheck(agrees=agrees, worst=worst, parameter=parameter, steps=len(SEEDS), message=message)


def _compare(step: _Step, seed: int, board: Switchboard, choices: Iterable[Choice]) -> tuple[float, str, str]:
    """The largest relative difference to the same step without recompute, where it is, and what type rounded it."""
    board.set([])
    expected: dict[str, Tensor] = {}
    step.run(seed, expected.__setitem__)
    board.set(choices)
    differences = dict.fromkeys(expected, math.inf)  # for what does not come again

    def see(name: str, found: Tensor) -> None:
        differences[name] = relative_difference(expected.get(name), found)

    step.run(seed, see)
    place = max(differences, key=lambda name: (differences[name], name))
    return differences[place], place, _rounded_to(expected) if differences[place] else ""


class _Step:
    """One forward and one backward pass, which can be run again on the same samples and random numbers."""

    def __init__(self, model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._model, self._args, self._kwargs = model, args, kwargs

    def run(self, seed: int, see: See) -> None:
        """Shows the loss, each gradient as soon as it is there, and the buffers; it keeps none of them."""
        args, kwargs = copies_of((tuple(self._args), dict(self._kwargs)))  # a model may change its arguments in place
        with untouched(self._model), forgotten(self._model), torch.enable_grad():
            torch.manual_seed(seed)
            loss = scalar_of(self._model(*args, **kwargs))
            with without_autocast():
                self._show_gradients(loss, see)
            see(LOSS, loss.detach())
            for name, buffer in self._model.named_buffers():
                see(f"{BUFFER}{name}", buffer.clone())

    def _show_gradients(self, loss: Tensor, see: See) -> None:
        named = [(name, parameter) for name, parameter in self._model.named_parameters() if parameter.requires_grad]
        parameters = [parameter for _, parameter in named]
        if is_sharded(self._model):
            for (name, _), gradient in zip(named, gradients_of(self._model, loss, parameters), strict=True):
                if gradient is not None:
                    see(name, gradient)
            return
        hooks = [parameter.register_hook(functools.partial(_show, see, name)) for name, parameter in named]
        try:
            torch.autograd.grad(loss, parameters, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()


def _show(see: See, name: str, gradient: Tensor) -> Tensor | None:
    """Shows a gradient, and gives autograd, which would keep it to the end, one that takes no memory in its place."""
    see(name, gradient)
    if type(gradient) is not Tensor or gradient.layout is not torch.strided:
        return None
    return gradient.new_zeros(()).expand_as(gradient)


def _rounded_to(found: Mapping[str, Tensor]) -> str:
    """The coarsest of the types that gradients of float32 were computed in; empty where that is their own."""
    gradients = [one for name, one in found.items() if not name.startswith(BUFFER)]
    wide = [one for one in gradients if one.dtype == torch.float32 and one.numel() >= LEAST_ROUNDED]
    wide = [one for one in wide if one.layout == torch.strided and one.any()]
    for kind in (torch.bfloat16, torch.float16):
        if any(torch.equal(one, one.to(kind).float()) for one in wide):
            return str(kind).removeprefix("torch.")
    return ""


def _kind_of(model: Module, name: str) -> str:
    kinds = {known: str(parameter.dtype).removeprefix("torch.") for known, parameter in model.named_parameters()}
    return kinds.get(name, "float32")
