"""The operators that a forward pass called, as they were seen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from autorecompute.backends.torch.find.graphs import sequence_of
from autorecompute.backends.torch.find.source import calling_frame, literals_of
from autorecompute.backends.torch.find.storages import tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.autograd.graph import Node

    from autorecompute.backends.torch.find.storages import Storages


_ATEN = torch.ops.aten

_SUMS = frozenset({_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.rsub.Scalar})
"""Operators whose nodes keep no number that was added."""

_BATCH_NORMS = frozenset({_ATEN.native_batch_norm, _ATEN.cudnn_batch_norm, _ATEN.miopen_batch_norm})
"""Operators that write the statistics they are given, which their schemas do not tell."""

_COSTLY = (flop_registry.keys() | {getattr(_ATEN, "_grouped_mm", None)}) - {_ATEN.bmm}
"""Operators that torch counts FLOPs of are left to checkpoints; a product in batches is attention's, and small."""

_TRAINING = 5
"""The place among their arguments of what says whether the statistics are those of the batch."""

_MOMENTUM = frozenset({"momentum", "exponential_average_factor"})
_EPSILON = frozenset({"eps", "epsilon"})
_STRUCTURAL = (bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that are the code's own, not numbers that it computes."""

SAME_ELEMENTS = frozenset(
    {
        _ATEN._reshape_alias,
        _ATEN._to_copy,
        _ATEN._unsafe_view,
        _ATEN.alias,
        _ATEN.detach,
        _ATEN.expand,
        _ATEN.squeeze,
        _ATEN.unsqueeze,
        _ATEN.view,
    }
)
"""Operators that hand a tensor on with its elements in the same order; a cast changes the type alone."""

SAME_MEMORY = SAME_ELEMENTS | {_ATEN.permute, _ATEN.t, _ATEN.transpose}
"""Operators that hand it on in the same memory, the dimensions in any order."""


class Operand(NamedTuple):
    """A tensor that an operator was given.

    Attributes:
        storage: The number of its storage.
        made: The number of the node that made it, and which of the node's results it is; none of a leaf.
        trains: True if gradients go back to it.
        elements: Their number.
    """

    storage: int
    made: tuple[int, int] | None
    trains: bool
    elements: int

    @classmethod
    def of(cls, tensor: Tensor, storages: Storages) -> Operand:
        """Describe a tensor without holding it."""
        node = tensor.grad_fn
        made = (sequence_of(node), tensor.output_nr) if node is not None else None
        return cls(storages.number(tensor), made, tensor.requires_grad, tensor.numel())

    def came_over(self, source: Node | None, result: int, storages: Storages) -> bool:
        """Tell whether it came over an edge from a node's result."""
        if source is None or not self.trains:
            return source is None and not self.trains
        if self.made is None:
            variable = getattr(source, "variable", None)
            return variable is not None and storages.number(variable) == self.storage
        return self.made == (sequence_of(source), result)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """An operator as it was called.

    Attributes:
        function: The operator; one that works in place as the one that does not.
        values: Its arguments in the order of its schema; operands in place of tensors.
        elements: The number of elements of its first result.
        literals: Numbers that stand in the expression that called it.
    """

    function: OpOverload
    values: tuple[Any, ...]
    elements: int
    literals: frozenset[float]

    @classmethod
    def of(
        cls, function: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], storages: Storages
    ) -> Recorded | None:
        """Describe an operator that is about to run; return none for one that cannot be called again.

        What an operator of the user's own reads and writes, its schema need not tell.
        """
        out_of_place = _out_of_place(function) if function.namespace == "aten" else None
        if out_of_place is None:
            return None
        arguments = function._schema.arguments
        given = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
        values = (given.get(argument.name, argument.default_value) for argument in arguments)
        known = tuple(_known(value, storages) for value in values)
        if any(isinstance(value, tuple) and next(tensors_in(value), None) is not None for value in known):
            return None
        adds = function in _SUMS and any(isinstance(value, (int, float)) for value in known[1:2])
        literals = literals_of(calling_frame()) if adds else frozenset[float]()
        return cls(out_of_place, known, 0, literals)

    def returning(self, result: Any) -> Recorded:
        """Return this with the size of its first result."""
        first = next(tensors_in(result), None)
        return dataclasses.replace(self, elements=first.numel() if first is not None else 0)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Return the tensors that it was given."""
        return tuple(value for value in self.values if isinstance(value, Operand))

    def is_constant(self, argument: Any, value: Any) -> bool:
        """Tell whether an argument that no node keeps is the same in every step, as far as anybody knows."""
        if argument.name in _MOMENTUM:
            return self.function.overloadpacket in _BATCH_NORMS
        if value is None or isinstance(value, _STRUCTURAL) or self.is_epsilon(argument):
            return True
        return bool(argument.has_default_value() and value == argument.default_value)

    @staticmethod
    def is_epsilon(argument: Any) -> bool:
        """Tell whether an argument is the epsilon of a norm, which is compared with a row of each step's tensor."""
        return argument.name in _EPSILON

    @property
    def is_cheap(self) -> bool:
        """Tell whether it may be called again: it draws nothing, makes no view, and takes little time."""
        if self.function.overloadpacket in _COSTLY:
            return False
        tags = self.function.tags
        return not ({torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view} & set(tags) or self.function.is_view)


def _known(value: Any, storages: Storages) -> Any:
    """Return a form of an argument that can be compared and hashed, and holds no tensor."""
    if isinstance(value, Tensor):
        return Operand.of(value, storages)
    return tuple(value) if isinstance(value, list) else value


def run(function: OpOverload, values: Sequence[Any]) -> Any:
    """Call an operator with the values of its arguments, in the order of its schema."""
    if function.overloadpacket in _BATCH_NORMS:  # what ran is not written again
        running = (None, None) if values[_TRAINING] else values[3:_TRAINING]
        values = (*values[:3], *running, values[_TRAINING], 0.0, *values[_TRAINING + 2 :])
    arguments = list(zip(function._schema.arguments, values, strict=True))
    args = [value for argument, value in arguments if not argument.kwarg_only]
    return function(*args, **{argument.name: value for argument, value in arguments if argument.kwarg_only})


def _out_of_place(function: OpOverload) -> OpOverload | None:
    """Return an operator that works in place as the one that does not; none where there is none."""
    if not function._schema.is_mutable:
        return function
    name = function._schema.name.partition("::")[2]
    packet = getattr(_ATEN, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, function._overloadname, None)
