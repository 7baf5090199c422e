"""Compares a config's gradients with those without recompute, on the same weights, samples and random numbers."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autorecompute.backends.common.gradients import beside_noise, relative_difference, rounded_to, within
from autorecompute.backends.torch.failures import classify
from autorecompute.backends.torch.options import CHECKPOINT
from autorecompute.backends.torch.sharded import is_anywhere, is_sharded
from autorecompute.backends.torch.shown_step import BUFFER, Part, Step
from autorecompute.backends.torch.structure import is_within
from autorecompute.backends.torch.untouched import AUTOCAST_DEVICES
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.switchboard import Switchboard

SEEDS = (20_230, 20_231)
"""A step is compared from each."""

SCALES = (2.0**14, 2.0**8)
"""Of the loss, where gradients are in float16, whose smallest steps a mean over many tokens comes close to."""

_TOO_LARGE: weakref.WeakSet[Module] = weakref.WeakSet()
"""Models of which a step without recompute was seen not to fit, with few samples."""


def check_gradients(  # noqa: PLR0913  (a call, what is recomputed in it, and where memory can be saved)
    model: Module,
    board: Switchboard,
    choices: Iterable[Choice],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    blocks: Mapping[str, Module] = MappingProxyType({}),
    calls: int = 1,
) -> GradientCheck:
    """Compare choices with no recompute; training goes on bit for bit as if nothing had been run.

    No more gradients are held at once than at the end of a step: those without recompute are kept, and each of the
    others is dropped as soon as it was compared. Where that runs out of memory, as the step without recompute does that
    the choices are for, gradients are compared block by block. Those of a sharded model are compared with those of all
    blocks checkpointed, or of all but one.

    Args:
        model: The model, which is about to be called.
        board: Its switches.
        choices: What to recompute.
        args: The positional arguments of the call, with few samples.
        kwargs: Its keyword arguments, likewise.
        blocks: The repeated modules of the model by their paths, none of them inside another one.
        calls: How often it is called in a step before the backward pass.
    """
    choices, step = list(choices), Step(model, args, kwargs, calls=calls)
    with board.trying():
        if is_sharded(model):
            # All ranks take the same steps, whoever has how much memory left.
            every = _every_block(board, blocks)
            are_all = board.resolve(choices) == board.resolve(every)
            others = _but_one(board, every) if are_all else every
            return _check(replace(step, is_lean=True), board, choices, others)
        if model not in _TOO_LARGE:
            try:
                return _check(step, board, choices)
            except Exception as error:
                if classify(error)[0] is not Outcome.OOM or not blocks:
                    raise
            _TOO_LARGE.add(model)
            gc.collect()
        return _check_in_parts(replace(step, is_lean=True), board, choices, blocks)


def _check_in_parts(
    step: Step, board: Switchboard, choices: Sequence[Choice], blocks: Mapping[str, Module]
) -> GradientCheck:
    """Return what is recomputed in blocks, each of which is run alone; and the rest, with all blocks checkpointed."""
    inside = [
        choice
        for choice in choices
        if all(any(is_within(path, block) for block in blocks) for path in board.paths(choice))
    ]
    outside = [choice for choice in choices if choice not in inside]
    check = _check(replace(step, blocks=tuple(blocks.values())), board, inside) if inside else None
    if not outside or (check is not None and not check.agrees):
        assert check is not None, "what has no choices is not checked"
        return check
    every = _every_block(board, blocks)
    return _check(step, board, [*every, *outside], every)


def _every_block(board: Switchboard, blocks: Mapping[str, Module]) -> list[Choice]:
    """Return what has all blocks run again, as far as they can be."""
    return [
        Choice(site.name, CHECKPOINT)
        for site in board.sites.values()
        if CHECKPOINT in site.options and not site.attention and set(site.occurrences) <= blocks.keys()
    ]


def _but_one(board: Switchboard, every: Sequence[Choice]) -> list[Choice]:
    """Return the same without the last block of each kind."""
    counts = {choice: len(board.paths(choice)) - 1 for choice in every}
    return [Choice(choice.site, choice.option, count) for choice, count in counts.items() if count]


def _check(step: Step, board: Switchboard, choices: Sequence[Choice], others: Sequence[Choice] = ()) -> GradientCheck:
    """Compare choices with others that are on in their place."""
    board.set(others)
    step = _scaled(step) if _computes_in_half(step.model) else step
    found, kind = _differences(step, board, choices, others)
    # Under an autocast of the model's own it is seen now.
    if step.scale == 1 and is_anywhere(step.model, kind == "float16" and any(found.values())):
        board.set(others)
        step = _scaled(step)
        found, kind = _differences(step, board, choices, others)
    # On a card, and in other compiled code, sums may come in another order. On a CPU nothing else may differ.
    is_exact = board.is_exact and all(parameter.device.type == "cpu" for parameter in step.model.parameters())
    check = within(found, (lambda _: "") if is_exact else _kind_of(step.model, kind), len(SEEDS))
    if is_exact or not is_anywhere(step.model, not check.agrees):
        return check
    noise = _differences(step, board, others, others)[0]
    return check if check.agrees else beside_noise(found, noise, check)


def _computes_in_half(model: Module) -> bool:
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    dtypes |= {torch.get_autocast_dtype(device) for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)}
    return torch.float16 in dtypes


def _scaled(step: Step) -> Step:
    """Return the same step with a loss whose gradients float16 can hold, as a GradScaler would have it."""
    for scale in SCALES:
        scaled = replace(step, scale=scale)
        if not is_anywhere(step.model, not _is_finite(scaled)):
            return scaled
    return step


def _is_finite(step: Step) -> bool:
    """Tell whether all gradients of the step are numbers; a buffer may hold others, such as a mask."""
    found: list[bool] = []

    def see(part: Part, tensor: Tensor) -> None:
        if not part[0].startswith(BUFFER):
            seen = step.seen(tensor)
            found.append(bool((seen.to_dense() if seen.layout is not torch.strided else seen).isfinite().all()))

    step.run(SEEDS[0], see)
    return all(found)


def _differences(
    step: Step, board: Switchboard, choices: Sequence[Choice], others: Sequence[Choice]
) -> tuple[dict[str, float], str]:
    """Return the largest relative difference of each gradient to that with others on, and what type rounded any."""
    found: dict[str, float] = {}
    kind = ""
    for seed in SEEDS:
        differences, rounded = _compare(step, seed, board, choices, others)
        kind = kind or rounded
        for (name, _), difference in differences.items():
            found[name] = max(found.get(name, 0.0), difference)
    return found, kind


def _compare(
    step: Step, seed: int, board: Switchboard, choices: Sequence[Choice], others: Sequence[Choice]
) -> tuple[dict[Part, float], str]:
    """Relative differences to the same step with others on, and what type rounded some of them."""
    board.set(others)
    expected: dict[Part, Tensor] = {}
    step.run(seed, lambda part, tensor: expected.update({part: step.kept(tensor)}))
    board.set(choices)
    differences = dict.fromkeys(expected, math.inf)  # for what does not come again

    def see(part: Part, found: Tensor) -> None:
        differences[part] = relative_difference(expected.get(part), step.seen(found))

    step.run(seed, see)
    gradients = [one for (name, _), one in expected.items() if not name.startswith(BUFFER)]
    return differences, rounded_to(gradients) if any(differences.values()) else ""


def _kind_of(model: Module, rounded: str) -> Callable[[str], str]:
    """Return the type that a gradient was computed in, by its name; the loss and buffers as in float32."""
    kinds = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in model.named_parameters()}
    return lambda name: rounded or kinds.get(name, "float32")
