"""Compares a config's gradients with those without recompute, on the same weights, samples and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autorecompute.backends.common.gradients import TOLERANCES, relative_difference, scalar_of
from autorecompute.backends.torch.sharded import forgotten, gradients_of, is_sharded
from autorecompute.backends.torch.untouched import copies_of, untouched, without_autocast
from autorecompute.measurement import GradientCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.nn import Module, Parameter

    from autorecompute.backends.torch.switchboard import Switchboard
    from autorecompute.plans import Choice

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

    Args:
        model: The model, which is about to be called.
        board: Its switches.
        choices: What to recompute.
        args: The positional arguments of the call, with few samples.
        kwargs: Its keyword arguments, likewise.
    """
    before = board.choices
    worst, place, message = 0.0, "", ""
    try:
        for seed in SEEDS:
            board.set([])
            expected = _step(model, seed, args, kwargs)
            board.set(choices)
            found = _step(model, seed, args, kwargs)
            difference, name = _worst(expected, found)
            if not difference <= worst:
                worst, place = difference, name
        # On a card, and in other compiled code, sums may come in another order. On a CPU nothing else may differ.
        is_exact = board.is_exact and all(parameter.device.type == "cpu" for parameter in model.parameters())
        kind = _rounded_to(expected) or _kind_of(model, place)
        agrees = worst <= (0.0 if is_exact else TOLERANCES.get(kind, 0.0))
        if not agrees and not is_exact:
            board.set([])
            noise = max(_noise(model, seed, args, kwargs) for seed in SEEDS)
            agrees = worst <= min(NOISE_FACTOR * noise, MOST_NOISE)
            message = f"{place} is off by {worst:.1e} of its largest gradient, steps without recompute by {noise:.1e}"
    finally:
        board.set(before)
    parameter, message = ("", "") if agrees else (place, message)
    return GradientCheck(agrees=agrees, worst=worst, parameter=parameter, steps=len(SEEDS), message=message)


def _noise(model: Module, seed: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The largest relative difference of the same step, run twice."""
    return _worst(_step(model, seed, args, kwargs), _step(model, seed, args, kwargs))[0]


def _step(model: Module, seed: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor | None]:
    """The loss, the gradients and the buffers of one forward and backward pass."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    args, kwargs = copies_of((tuple(args), dict(kwargs)))  # a model may change its arguments in place
    with untouched(model), forgotten(model), torch.enable_grad():
        torch.manual_seed(seed)
        loss = scalar_of(model(*args, **kwargs))
        with without_autocast():
            gradients = _gradients(model, loss, [parameter for _, parameter in named])
        buffers = {f"{BUFFER}{name}": buffer.clone() for name, buffer in model.named_buffers()}
    found = {name: gradient for (name, _), gradient in zip(named, gradients, strict=True)}
    return {LOSS: loss.detach(), **found, **buffers}


def _gradients(model: Module, loss: Tensor, parameters: Sequence[Parameter]) -> Sequence[Tensor | None]:
    if is_sharded(model):
        return gradients_of(model, loss, parameters)
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
    return gradients


def _worst(expected: Mapping[str, Tensor | None], found: Mapping[str, Tensor | None]) -> tuple[float, str]:
    """The largest relative difference, and where it is."""
    differences = ((relative_difference(one, found[name]), name) for name, one in expected.items())
    return max(differences, default=(0.0, ""))


def _rounded_to(found: Mapping[str, Tensor | None]) -> str:
    """The coarsest of the types that gradients of float32 were computed in; empty where that is their own."""
    gradients = [one for name, one in found.items() if one is not None and not name.startswith(BUFFER)]
    wide = [one for one in gradients if one.dtype == torch.float32 and one.numel() >= LEAST_ROUNDED]
    wide = [one for one in wide if one.layout == torch.strided and one.any()]
    for kind in (torch.bfloat16, torch.float16):
        if any(torch.equal(one, one.to(kind).float()) for one in wide):
            return str(kind).removeprefix("torch.")
    return ""


def _kind_of(model: Module, name: str) -> str:
    kinds = {known: str(parameter.dtype).removeprefix("torch.") for known, parameter in model.named_parameters()}
    return kinds.get(name, "float32")
