"""Compares the gradients of a config with those without recompute, on the same weights, batch and Dropout masks.

Recompute runs the same kernels on the same inputs, so the gradients are equal bit for bit wherever the kernels are
deterministic; ORT 1.19.2's CPU kernels are. Dropout draws other masks in another session, so for the check every
Dropout is given a seed of its own: ORT then draws the same masks with and without recompute, and a recomputed Dropout
that draws another mask than its forward did shows as a wrong gradient. Several steps are compared, as masks move on
with each.
"""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autorecompute.measurement import GradientCheck
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 3
SAMPLES = 2
"""So few samples of the batch are compared: the batch need not fit without recompute."""

SEED = 20_230
TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""Largest difference, relative to the largest gradient of a parameter, that kernels with unordered sums may leave."""


def check_gradients(
    manager: Any,
    config: Config,
    *,
    forward: Callable[[], Any],
    rebuild: Callable[[Config], None],
) -> GradientCheck:
    """Compares the config with no recompute over a few steps; the weights stay as they are.

    Args:
        manager: ORT's ``TrainingManager`` whose session is rebuilt for the check.
        config: What to recompute.
        forward: Calls the model on the same batch, in training mode.
        rebuild: Builds the session anew with a config.
    """
    named = [pair for pair in manager._flattened_module.named_parameters() if pair[1].requires_grad]  # noqa: SLF001
    with _seeded_dropouts(manager._onnx_models.optimized_model.graph):  # noqa: SLF001
        expected = _gradients(Config(), named, forward, rebuild)
        found = _gradients(config, named, forward, rebuild)
    worst, parameter, dtype = _worst_difference(named, expected, found)
    agrees = worst <= TOLERANCES.get(dtype, 0.0)
    return GradientCheck(agrees=agrees, worst=worst, parameter="" if agrees else parameter, steps=STEPS)


@contextmanager
def _seeded_dropouts(graph: Any) -> Iterator[None]:
    from onnx import helper

    dropouts = [
        node
        for node in graph.node
        if "Dropout" in node.op_type
        and "Grad" not in node.op_type
        and all(attribute.name != "seed" for attribute in node.attribute)
    ]
    for number, node in enumerate(dropouts):
        node.attribute.append(helper.make_attribute("seed", SEED + number))
    try:
        yield
    finally:
        for node in dropouts:
            node.attribute.pop()


def _gradients(
    config: Config, named: list[tuple[str, Any]], forward: Callable[[], Any], rebuild: Callable[[Config], None]
) -> list[list[Any]]:
    import onnxruntime
    import torch

    rebuild(config)
    onnxruntime.set_seed(SEED)
    parameters = [parameter for _, parameter in named]
    try:
        return [list(torch.autograd.grad(_scalar(forward()), parameters, allow_unused=True)) for _ in range(STEPS)]
    finally:
        onnxruntime.set_seed(torch.initial_seed() % sys.maxsize)


def _scalar(outputs: Any) -> Any:
    """One number that all differentiable outputs weigh in; a loss among them is taken alone."""
    tensors = [tensor for tensor in _flatten(outputs) if tensor.requires_grad]
    losses = [tensor for tensor in tensors if tensor.numel() == 1]
    return losses[0].sum() if losses else sum((tensor.float() * _weights_like(tensor)).sum() for tensor in tensors)


def _weights_like(tensor: Any) -> Any:
    # A plain sum has no gradient behind a softmax: uneven weights have one everywhere.
    import torch

    return torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32).cos().view_as(tensor)


def _flatten(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _flatten(item)] if isinstance(value, list | tuple) else []


def _worst_difference(
    named: list[tuple[str, Any]], expected: list[list[Any]], found: list[list[Any]]
) -> tuple[float, str, str]:
    """The largest relative difference, the parameter it is in, and that parameter's type."""
    differences = [
        (_difference(theirs, ours), name, str(parameter.dtype).removeprefix("torch."))
        for step_expected, step_found in zip(expected, found, strict=True)
        for (name, parameter), theirs, ours in zip(named, step_expected, step_found, strict=True)
        if theirs is not None or ours is not None
    ]
    return max(differences, default=(0.0, "", "float32"))


def _difference(expected: Any, found: Any) -> float:
    if expected is None or found is None:
        return math.inf
    scale = expected.abs().max().item()
    difference = (expected - found).abs().max().item()
    if difference == 0:
        return 0.0
    # Not a number must not pass for small, nor a gradient where there should be none.
    return difference / scale if math.isfinite(difference) and scale > 0 else math.inf


def slice_batch(value: Any, batch: int, samples: int = SAMPLES) -> Any:
    """The same structure with every tensor of ``batch`` rows cut to its first few."""
    import torch

    if isinstance(value, torch.Tensor):
        return value[:samples] if value.dim() > 0 and value.shape[0] == batch else value
    if isinstance(value, dict):
        return {key: slice_batch(item, batch, samples) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(slice_batch(item, batch, samples) for item in value)
    return value
