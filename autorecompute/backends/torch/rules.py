"""For every class of node that is known, how what it made is made again."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from autorecompute.backends.torch.fake_tensors import is_same
from autorecompute.backends.torch.recipes import Leaf, Made, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node

    from autorecompute.backends.torch.recipes import Cook, Recipe, Rule

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8)
"""Those of norms that are no modules; modules tell of theirs."""


def _unary(function: Callable[..., Tensor], *constants: str, saves: str | None = None) -> Rule:
    """An operator of one tensor, which its node saves under a name or not, with constants that it keeps."""

    def rule(cook: Cook, place: int, _node: Node, depth: int) -> Iterator[Recipe]:
        for recipe in cook.operand(place, saves, 0, depth):
            yield Made(function, (recipe,), kept=_slots(place, constants))

    return rule


def _product(cook: Cook, place: int, _node: Node, depth: int) -> Iterator[Recipe]:
    """A product of matrices in batches."""
    for inputs in itertools.product(cook.operand(place, "self", 0, depth), cook.operand(place, "mat2", 1, depth)):
        yield Made(torch.bmm, inputs)


def _binary(function: Callable[..., Tensor], *constants: str) -> Rule:
    """An operator of two tensors, or of one and a number.

    Where the node does not keep the number it has to stand in the code itself: a variable may change from step to step.
    """

    def rule(cook: Cook, place: int, _node: Node, depth: int) -> Iterator[Recipe]:
        kept = _slots(place, constants)
        firsts, seconds = (list(cook.operand(place, name, edge, depth)) for edge, name in enumerate(("self", "other")))
        for inputs in itertools.product(firsts, seconds):
            yield Made(function, inputs, kept=kept)
        if depth == 1 and not seconds:
            for recipe, number in itertools.product(firsts, cook.literals(place)):
                yield Made(function, (recipe,), (number,), kept)

    return rule


def _norm(function: Callable[..., tuple[Tensor, ...]], saved: Sequence[str], root: str) -> Rule:
    """A norm of saved tensors, whose epsilon its node does not keep.

    What the node keeps is the reciprocal root that the epsilon is in. It tells more than the result does: of rows that
    are still constant, as behind weights that begin at zero, the result is the same with every epsilon.
    """

    def rule(cook: Cook, place: int, node: Node, _depth: int) -> Iterator[Recipe]:
        given = [getattr(node, f"_saved_{name}") for name in saved]
        shape, expected = node._saved_normalized_shape, getattr(node, f"_saved_{root}")
        found = (epsilon for epsilon in cook.epsilons if is_same(function(*given, epsilon, shape)[-1], expected))
        # Of an epsilon that nobody knows nothing is made that is the same, and the norm is told as one that is left.
        epsilon = next(found, math.nan)
        yield Made(_first(function), _slots(place, saved), (epsilon,), _slots(place, ("normalized_shape",)))

    return rule


@functools.cache
def _first(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """The same function's first result."""
    return lambda *inputs: function(*inputs)[0]


def _batch_norm(_cook: Cook, place: int, _node: Node, _depth: int) -> Iterator[Recipe]:
    """BatchNorm with the statistics of the batch, or in ``eval`` with those that ran; its node saves no bias."""
    inputs = (Slot(place, "input"), Slot(place, "weight"), Leaf(place, 2))
    yield Made(_normalize_batch, inputs, kept=_slots(place, ("running_mean", "running_var", "training", "eps")))


def _group_norm(cook: Cook, place: int, node: Node, _depth: int) -> Iterator[Recipe]:
    """GroupNorm; its node does not save the bias either, nor the epsilon from torch 2.14 on."""
    inputs, sizes = (Slot(place, "input"), Slot(place, "weight"), Leaf(place, 2)), ("N", "C", "HxW", "group")
    if hasattr(node, "_saved_eps"):
        yield Made(_normalize_groups, inputs, kept=_slots(place, (*sizes, "eps")))
        return
    x, weight, *shape = (getattr(node, f"_saved_{name}") for name in ("input", "weight", *sizes))
    root = node._saved_result2
    found = (one for one in cook.epsilons if is_same(torch.native_group_norm(x, weight, None, *shape, one)[2], root))
    yield Made(_normalize_groups_by, inputs, (next(found, math.nan),), kept=_slots(place, sizes))


def _softmax(function: Callable[..., Tensor]) -> Rule:
    """Over the dimension that its node keeps."""

    def rule(cook: Cook, place: int, _node: Node, depth: int) -> Iterator[Recipe]:
        for recipe in cook.operand(place, None, 0, depth):
            yield Made(_along(function), (recipe,), kept=_slots(place, ("dim",)))

    return rule


@functools.cache
def _along(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take a dimension as nodes keep it: one that is counted from the end as a number of 64 bits without a sign."""
    return lambda x, dim: function(x, dim - 2**64 if dim >= 2**63 else dim)


def _dropout(cook: Cook, place: int, _node: Node, depth: int) -> Iterator[Recipe]:
    """Dropout on a GPU: its mask is kept."""
    for recipe in cook.operand(place, None, 0, depth):
        yield Made(_drop_out, (recipe, Slot(place, "result1")), kept=_slots(place, ("p",)))


def _slots(place: int, names: Iterable[str]) -> tuple[Slot, ...]:
    return tuple(Slot(place, name) for name in names)


def _drop_out(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    return x * mask * (1 / (1 - probability) if probability < 1 else 0.0)


def _add(x: Tensor, other: Any, alpha: Any) -> Tensor:
    return torch.add(x, other, alpha=alpha)


def _subtract(x: Tensor, other: Any, alpha: Any) -> Tensor:
    return torch.sub(x, other, alpha=alpha)


def _gelu(x: Tensor, approximate: str) -> Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def _normalize(x: Tensor, weight: Any, bias: Any, epsilon: float, shape: Sequence[int]) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = torch.native_layer_norm(x, shape, weight, bias, epsilon)
    return results


def _normalize_groups(x: Tensor, weight: Any, bias: Any, *shape_and_epsilon: Any) -> Tensor:
    return torch.native_group_norm(x, weight, bias, *shape_and_epsilon)[0]


def _normalize_groups_by(x: Tensor, weight: Any, bias: Any, epsilon: float, *shape: Any) -> Tensor:
    return _normalize_groups(x, weight, bias, *shape, epsilon)


def _normalize_root(x: Tensor, weight: Any, epsilon: float, shape: Sequence[int]) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = torch.ops.aten._fused_rms_norm(x, shape, weight, epsilon)
    return results


def _normalize_batch(  # noqa: PLR0913, PLR0917  (what the node keeps)
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: Any,
    epsilon: float,
) -> Tensor:
    running = (None, None) if training else (mean, variance)
    return torch.native_batch_norm(x, weight, bias, *running, training, 0.0, epsilon)[0]


RULES: dict[str, Rule] = {
    "AddBackward0": _binary(_add, "alpha"),
    "BmmBackward0": _product,
    "DivBackward0": _binary(torch.div),
    "ExpBackward0": _unary(torch.exp),
    "FusedRmsNormBackward0": _norm(_normalize_root, ("input", "weight"), "result1"),
    "GeluBackward0": _unary(_gelu, "approximate", saves="self"),
    "HardswishBackward0": _unary(torch.nn.functional.hardswish, saves="self"),
    "LeakyReluBackward0": _unary(torch.nn.functional.leaky_relu, "negative_slope", saves="self"),
    "MishBackward0": _unary(torch.nn.functional.mish, saves="self"),
    "MulBackward0": _binary(torch.mul),
    "MulBackward1": _unary(torch.mul, "other"),
    "NativeBatchNormBackward0": _batch_norm,
    "NativeDropoutBackward0": _dropout,
    "NativeGroupNormBackward0": _group_norm,
    "NativeLayerNormBackward0": _norm(_normalize, ("input", "weight", "bias"), "result2"),
    "NegBackward0": _unary(torch.neg),
    "PowBackward0": _unary(torch.pow, "exponent", saves="self"),
    "ReluBackward0": _unary(torch.relu),
    "RsqrtBackward0": _unary(torch.rsqrt),
    "SafeSoftmaxBackward0": _softmax(torch._safe_softmax),
    "SigmoidBackward0": _unary(torch.sigmoid),
    "SiluBackward0": _unary(torch.nn.functional.silu, saves="self"),
    "SoftmaxBackward0": _softmax(torch.softmax),
    "SqrtBackward0": _unary(torch.sqrt),
    "SubBackward0": _binary(_subtract, "alpha"),
    "TanhBackward0": _unary(torch.tanh),
}
