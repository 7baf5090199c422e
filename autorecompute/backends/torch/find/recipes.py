"""Operators as a forward pass called them, and recipes that make a saved tensor again from other tensors."""

from __future__ import annotations

import dataclasses
import functools
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from autorecompute.backends.common import tensors_in
from autorecompute.backends.torch.find.graphs import LEAF, sequence_of
from autorecompute.backends.torch.find.source import calling_frame, literals_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch.autograd.graph import Node

    from autorecompute.backends.torch.find.storages import Storages


_ATEN = torch.ops.aten

_SUMS = frozenset({_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.rsub.Scalar})
"""Operators whose nodes keep no number that was added."""

_BATCH_NORMS = frozenset({_ATEN.native_batch_norm, _ATEN.cudnn_batch_norm, _ATEN.miopen_batch_norm})
"""Operators that write the statistics they are given, which their schemas do not tell."""

_COSTLY = (flop_registry.keys() | {getattr(_ATEN, "_grouped_mm", None)}) - {_ATEN.bmm}
"""Operators that torch counts FLOPs of are left to checkpoints; a product in batches is attention's, and small."""

_TRAINING = 5  # the place among their arguments of what says whether the statistics are those of the batch

_MOMENTUM = frozenset({"momentum", "exponential_average_factor"})
EPSILON = frozenset({"eps", "epsilon"})
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


Origin = tuple[int | str, int]
"""The place that gradients go back to: a node by its number, and which of its results, or a leaf by its storage."""


class Operand(NamedTuple):
    """A tensor that an operator was given: its origin, which is None if no gradient goes back to it, and its size."""

    origin: Origin | None
    elements: int

    @classmethod
    def of(cls, tensor: Tensor, storages: Storages) -> Operand:
        """Describe a tensor without holding it."""
        if not tensor.requires_grad:
            return cls(None, tensor.numel())
        node = tensor.grad_fn
        made = ("leaf", storages.number(tensor)) if node is None else (sequence_of(node), tensor.output_nr)
        return cls(made, tensor.numel())


def _origin_over(node: Node | None, result: int, storages: Storages) -> Origin | None:
    """Return what an edge of a graph leads to."""
    if node is None:
        return None
    if type(node).__name__ != LEAF:  # the attributes of a script's own functions are the script's
        return sequence_of(node), result
    leaf: Tensor = node.variable
    return "leaf", storages.number(leaf)


def takes_tensor(argument: Any) -> bool:
    """Tell whether an argument of an operator's schema is a tensor; a number, or none, may stand in its place."""
    return "Tensor" in str(argument.type)


class Recorded(NamedTuple):
    """An operator as it was called.

    Attributes:
        function: The operator; one that works in place as the one that does not.
        values: Its arguments in the order of its schema; operands in place of tensors.
        literals: Numbers that stand in the expression that called it.
    """

    function: OpOverload
    values: tuple[Any, ...]
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
        return cls(out_of_place, known, literals)

    @property
    def given(self) -> Iterator[tuple[Any, Any]]:
        """Return the arguments of its schema, each with its value."""
        return zip(self.function._schema.arguments, self.values, strict=True)

    def edges(self, node: Node, storages: Storages) -> dict[str | int, int]:
        """Return the edges over which its tensors came to the node that it made, by the names of its arguments."""
        origins = [_origin_over(source, result, storages) for source, result in node.next_functions]
        given = [
            (argument.name, value.origin if isinstance(value, Operand) else None)
            for argument, value in self.given
            if takes_tensor(argument)
        ]
        # Most operators have a gradient for their first tensors.
        if all(origin == came for (_, origin), came in zip(given, origins, strict=False)):
            return {name: edge for edge, (name, _) in enumerate(given[: len(origins)])}
        edges: dict[str | int, int] = {}
        first = 0
        for name, origin in given:
            if origin is not None and origin in origins[first:]:
                edges[name] = origins.index(origin, first)
                first = edges[name] + 1
        return edges

    def is_constant(self, argument: Any, value: Any) -> bool:
        """Tell whether an argument that no node keeps is the same in every step, as far as anybody knows."""
        if takes_tensor(argument):
            return value is None or value in self.literals
        if argument.name in _MOMENTUM:
            return self.function.overloadpacket in _BATCH_NORMS
        if value is None or isinstance(value, _STRUCTURAL) or argument.name in EPSILON:
            return True
        return bool(argument.has_default_value() and value == argument.default_value)

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


COMPUTED = "computed"  # stands for a parameter where another tensor went in


Edge = tuple[int, int, int]
"""An edge of a graph: the place of a node, the number of its edge, and the place of the node to which that leads."""


class Slot(NamedTuple):
    """Saved under a name by a node: a tensor, or another argument of its operator.

    With the number of an edge for a name, it is a parameter that went over it into a node which does not save it.

    What is no tensor of the forward pass is noted in every step: a script may change an argument, and a parameter that
    is frozen later looks as if there were none.
    """

    place: int
    name: str | int
    is_noted: bool = False

    def in_step(self, nodes: Mapping[int, Node]) -> Any:
        """Return it in the graph of a step, a tensor made again where it was dropped.

        It is None where the node saved none, or no gradient goes to the parameter, and a word where that is computed.
        """
        if isinstance(self.name, str):
            return getattr(nodes[self.place], f"_saved_{self.name}")
        leaf = nodes[self.place].next_functions[self.name][0]
        return None if leaf is None else getattr(leaf, "variable", COMPUTED)


@dataclasses.dataclass(frozen=True)
class Viewed:
    """An operand: a tensor as nodes that keep the order of its elements handed it on.

    Attributes:
        source: The tensor.
        way: The edges over which it came to the operand's node, the source's own first.
        expanding: Places of the nodes on the way that repeat elements.
        held: The edges over which the source came to the node that saves it, where that is another one.
    """

    source: Recipe
    way: tuple[Edge, ...]
    expanding: frozenset[int]
    held: tuple[Edge, ...] = ()


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that an operator makes of arguments in the order of its schema: recipes, and what no node keeps.

    The operator is None for the product with a mask: a dropout that keeps one.
    """

    operator: OpOverload | None
    arguments: tuple[Any, ...]

    @functools.cached_property
    def has_rows(self) -> bool:
        """Tell whether it has an argument that may change unseen, and gives each row of its result by itself."""
        if self.operator is None:
            return False
        given = zip(self.operator._schema.arguments, self.arguments, strict=True)
        is_pointwise = torch.Tag.pointwise in self.operator.tags
        return any(starmap(_may_change, given)) and (is_pointwise or self._normalized is not None)

    @functools.cached_property
    def _normalized(self) -> Slot | None:
        noted = (one for one in self.arguments if isinstance(one, Slot) and one.is_noted)
        return next((slot for slot in noted if slot.name == "normalized_shape"), None)

    def of(self, values: Sequence[Any]) -> Tensor:
        """Return the tensor made of these arguments."""
        made = run(self.operator, values) if self.operator is not None else _drop_out(*values)
        first: Tensor = made[0] if isinstance(made, (tuple, list)) else made
        return first

    def read_row(self, nodes: Mapping[int, Node], noted: Noted, result: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Return the first row (``end`` 0) or the last (-1) as it is made again, and that of the result itself."""
        normalized = noted[self._normalized] if self._normalized is not None else (0,)
        row = (end,) * (result.dim() - len(normalized))
        values = [value_of(one, nodes, noted) for one in self.arguments]
        rows = [value[row] if isinstance(value, Tensor) and value.shape == result.shape else value for value in values]
        return self.of(rows), result[row]


Recipe = Slot | Viewed | Made
Note = int | Slot
Noted = dict[Note, Any]  # notes of a step: for places of nodes the shape of what they made, for slots what they hold


def _may_change(argument: Any, value: Any) -> bool:
    """Tell whether a script may give another number in a later step, which no node keeps."""
    return not isinstance(value, Recipe) and (
        argument.name in EPSILON or (takes_tensor(argument) and value is not None)
    )


def value_of(part: Any, nodes: Mapping[int, Node], noted: Noted) -> Any:
    """Return the value of a recipe or argument in a step, of which ``noted_of`` noted this when it was dropped."""
    match part:
        case Slot():
            return noted_value(part, noted) if part.is_noted else part.in_step(nodes)
        case Made():
            return part.of([value_of(one, nodes, noted) for one in part.arguments])
        case Viewed():
            value: Tensor = value_of(part.source, nodes, noted)
            for _, _, source in part.way:
                shape = noted[source]
                value = value.expand(shape) if source in part.expanding else value.reshape(shape)
            return value
    return part


def noted_value(slot: Slot, noted: Noted) -> Any:
    """Return an argument as it was noted, dimensions that are counted from the end as numbers below zero."""
    value = noted[slot]
    return [_signed(one) for one in value] if isinstance(value, (list, tuple)) else _signed(value)


def _signed(value: Any) -> Any:
    # Nodes show a dimension as a number of 64 bits without a sign.
    return value - 2**64 if type(value) is int and value >= 2**63 else value


def _parts_of(recipe: Any) -> Iterator[Any]:
    inner = (recipe.source,) if isinstance(recipe, Viewed) else recipe.arguments if isinstance(recipe, Made) else ()
    for part in inner:
        yield from _parts_of(part)
    yield recipe


def tensors_of(recipe: Recipe | None) -> list[Slot]:
    """Return the slots of the tensors that are read of nodes."""
    return [part for part in _parts_of(recipe) if isinstance(part, Slot) and not part.is_noted]


def edges_of(recipe: Recipe | None) -> Iterator[Edge]:
    """Yield the edges that have to be there for the recipe to hold."""
    for part in _parts_of(recipe):
        if isinstance(part, Viewed):
            yield from (*part.way, *part.held)


def notes_of(recipe: Recipe | None) -> Iterator[Note]:
    """Yield the nodes whose shapes are read, the parameters, and the slots that are no tensors of the forward pass."""
    for part in _parts_of(recipe):
        if isinstance(part, Slot) and part.is_noted:
            yield part
        elif isinstance(part, Viewed):
            yield from (source for _, _, source in part.way)


def noted_of(notes: Iterable[Note], nodes: Mapping[int, Node]) -> Noted:
    """Return the values that a recipe reads beside tensors, as they are in a step."""
    return {note: shape_of(nodes[note]) if isinstance(note, int) else note.in_step(nodes) for note in notes}


def shape_of(node: Node) -> torch.Size:
    """Return the shape of the first result of a node's operator."""
    return torch.Size(node._input_metadata[0].shape)


def _drop_out(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    return x * mask * (1 / (1 - probability) if probability < 1 else 0.0)
