"""Compares the gradients of a config with those without recompute, on the same weights, batch and Dropout masks.

Recompute runs the same kernels on the same inputs, so the gradients are equal bit for bit wherever the kernels are
deterministic; ORT 1.19.2's CPU kernels are. Dropout draws other masks in another session, so for the check every
Dropout is given a seed of its own: ORT then draws the same masks with and without recompute, and a recomputed Dropout
that draws another mask than its forward did shows as a wrong gradient. Several steps are compared, as masks move on
with each.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autorecompute.backends.common.gradients import (
    beside_noise,
    differences_of,
    rounded_to,
    scalar_of,
    within,
)
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autorecompute.measurement import GradientCheck

STEPS = 3
SEED = 20_230


def check_gradients(
    manager: Any,
    config: Config,
    *,
    forward: Callable[[], Any],
    rebuild: Callable[[Config], None],
) -> GradientCheck:
    """Compare the config with no recompute over a few steps; the weights stay as they are.

    The gradients without recompute are kept in the host's memory: several steps' would be more than a card has left.

    Args:
        manager: ORT's ``TrainingManager`` whose session is rebuilt for the check.
        config: What to recompute.
        forward: Calls the model on the same batch, in training mode.
        rebuild: Builds the session anew with a config.
    """
    named = {
        name: parameter
        for name, parameter in manager._flattened_module.named_parameters()  # noqa: SLF001
        if parameter.requires_grad
    }
    parameters = list(named.values())
    with _seeded_dropouts(manager._onnx_models.optimized_model.graph):  # noqa: SLF001
        expected = [
            [None if gradient is None else gradient.cpu() for gradient in step]
            for step in _gradients(Config(), parameters, forward, rebuild)
        ]

        def compare(other: Config) -> dict[str, float]:
            return differences_of(list(named), expected, _gradients(other, parameters, forward, rebuild))

        found = compare(config)
        rounded = rounded_to(one for step in expected for one in step if one is not None)
        check = within(found, lambda name: rounded or str(named[name].dtype).removeprefix("torch."), STEPS)
        if check.agrees or all(parameter.device.type == "cpu" for parameter in parameters):
            return check
        return beside_noise(found, compare(Config()), check)


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
    config: Config, parameters: list[Any], forward: Callable[[], Any], rebuild: Callable[[Config], None]
) -> Iterator[Sequence[Any]]:
    """Yield the gradients of one step after the other."""
    import onnxruntime
    import torch

    # ORT's random operators take their seed when the session is made.
    onnxruntime.set_seed(SEED)
    try:
        rebuild(config)
        for _ in range(STEPS):
            yield torch.autograd.grad(scalar_of(forward()), parameters, allow_unused=True)
    finally:
        onnxruntime.set_seed(torch.initial_seed() % sys.maxsize)
