"""Recipes that make a saved tensor again from other tensors."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._ops import OpOverload

from autorecompute.backends.torch.find.graphs import sequence_of
from autorecompute.backends.torch.find.recorded import SAME_ELEMENTS, Operand, run

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    from torch._ops import OpOverloadPacket
    from torch.autograd.graph import Node

    from autorecompute.backends.torch.find.recorded import Calls, Recorded


_DEEPEST = 12
_MOST = 8
"""So many ways to make an operand again are looked at."""

_SMALL = 8
"""A result that has so many times fewer elements than what it is made of is kept: to make it again costs more."""

_EXPAND = frozenset({torch.ops.aten.expand})
COMPUTED = "computed"
"""Stands for a parameter where another tensor went in."""


class Edge(NamedTuple):
    """An edge of a graph: what one node is given over it comes from another.

    Attributes:
        place: The place of the node that is given it.
        edge: Over which of its edges.
        source: The place of the node that it comes from.
    """

    place: int
    edge: int
    source: int


class Recipe(Protocol):
    """Recipe that makes a tensor."""

    def read(self, nodes: Mapping[int, Node], noted: Noted) -> Any:
        """Return the tensor.

        Args:
            nodes: Those of the step, by their places.
            noted: What ``notes`` gives, as it was in the step when the tensor was dropped.
        """

    def places(self) -> Iterator[int]:
        """Give the places of the nodes that are read."""

    def notes(self) -> Iterator[Note]:
        """Give the edges whose shapes are read, and the slots that are no tensors of the forward pass."""

    def edges(self) -> Iterator[Edge]:
        """Give the edges that have to be there for the recipe to hold."""

    def slots(self) -> Iterator[Slot]:
        """Give the tensors that are read of nodes."""


class Slot(NamedTuple):
    """Value that a node saves: a tensor, or another argument of its operator.

    Attributes:
        place: The node's place in its graph.
        name: The node's name for it.
    """

    place: int
    name: str

    def read(self, nodes: Mapping[int, Node], _noted: Noted) -> Any:
        """Return it, made again where it was dropped; None where the node saved none."""
        return self.in_step(nodes)

    def in_step(self, nodes: Mapping[int, Node]) -> Any:
        """Return it in the graph of a step."""
        return getattr(nodes[self.place], f"_saved_{self.name}")

    def places(self) -> Iterator[int]:
        """Give the node's place."""
        yield self.place

    def notes(self) -> Iterator[Note]:
        """Give none."""
        yield from ()

    def edges(self) -> Iterator[Edge]:
        """Give none: it is the node's own."""
        yield from ()

    def slots(self) -> Iterator[Slot]:
        """Give this one."""
        yield self


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter that went into a node which does not save it.

    Attributes:
        place: The node's place in its graph.
        edge: The edge over which it came.
    """

    place: int
    edge: int

    def read(self, _nodes: Mapping[int, Node], noted: Noted) -> Any:
        """Return the parameter as it was noted; None where no gradient goes there."""
        return noted[self]

    def in_step(self, nodes: Mapping[int, Node]) -> Any:
        """Return the parameter; None where no gradient goes there, and a word where it is computed."""
        leaf = nodes[self.place].next_functions[self.edge][0]
        return None if leaf is None else getattr(leaf, "variable", COMPUTED)

    def places(self) -> Iterator[int]:
        """Give none: it is noted."""
        yield from ()

    def notes(self) -> Iterator[Note]:
        """Give this one: a parameter that is frozen later looks as if there were none."""
        yield self

    def edges(self) -> Iterator[Edge]:
        """Give none: it is the node's own."""
        yield from ()

    def slots(self) -> Iterator[Slot]:
        """Give none."""
        yield from ()


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

    def read(self, nodes: Mapping[int, Node], noted: Noted) -> Tensor:
        """Return the tensor in the shape that it had there.

        Raises:
            RuntimeError: The source has another number of elements than it had.
        """
        value: Tensor = self.source.read(nodes, noted)
        for edge in self.way:
            shape = noted[edge]
            value = value.expand(shape) if edge.source in self.expanding else value.reshape(shape)
        return value

    def places(self) -> Iterator[int]:
        """Give those of the source."""
        yield from self.source.places()

    def notes(self) -> Iterator[Note]:
        """Give what the source notes, and the edges on the way."""
        yield from self.source.notes()
        yield from self.way

    def edges(self) -> Iterator[Edge]:
        """Give the edges on the way and to the node that saves the source, and those of the source."""
        yield from self.source.edges()
        yield from self.way
        yield from self.held

    def slots(self) -> Iterator[Slot]:
        """Give those of the source."""
        yield from self.source.slots()


@dataclasses.dataclass(frozen=True)
class Kept:
    """An argument, no tensor, that a node keeps. It is read in every step, as a script may change it.

    Attributes:
        slot: Where.
    """

    slot: Slot

    def value(self, noted: Noted) -> Any:
        """Return it as it was noted, dimensions that are counted from the end as numbers below zero."""
        value = noted[self.slot]
        if isinstance(value, (list, tuple)):
            return [_signed(one) for one in value]
        return _signed(value)


def _signed(value: Any) -> Any:
    # Nodes show a dimension as a number of 64 bits without a sign.
    return value - 2**64 if type(value) is int and value >= 2**63 else value


@dataclasses.dataclass(frozen=True)
class Constant:
    """An argument that no node keeps, as the probe saw it.

    Attributes:
        value: The argument.
        may_change: Whether a script may give another one in a later step, as far as such arguments are known.
    """

    value: Any
    may_change: bool = False


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that an operator makes.

    Attributes:
        operator: The operator; the product with a mask stands for a dropout that keeps one.
        arguments: The arguments in the order of the operator's schema.
    """

    operator: OpOverload | None
    arguments: tuple[Recipe | Kept | Constant, ...]

    @functools.cached_property
    def inputs(self) -> tuple[Recipe, ...]:
        """Return the tensors."""
        return tuple(one for one in self.arguments if not isinstance(one, (Kept, Constant)))

    @functools.cached_property
    def kept(self) -> tuple[Slot, ...]:
        """Return the slots of what nodes keep."""
        return tuple(one.slot for one in self.arguments if isinstance(one, Kept))

    @functools.cached_property
    def has_rows(self) -> bool:
        """Tell whether it has an argument that may change unseen, and gives each row of its result by itself."""
        if not any(isinstance(one, Constant) and one.may_change for one in self.arguments):
            return False
        is_pointwise = self.operator is not None and torch.Tag.pointwise in self.operator.tags
        return is_pointwise or any(slot.name == "normalized_shape" for slot in self.kept)

    def read(self, nodes: Mapping[int, Node], noted: Noted) -> Tensor:
        """Return the tensor."""
        return self._make([_value_of(one, nodes, noted) for one in self.arguments])

    def _make(self, values: Sequence[Any]) -> Tensor:
        made = run(self.operator, values) if self.operator is not None else _drop_out(*values)
        first: Tensor = made[0] if isinstance(made, (tuple, list)) else made
        return first

    def read_row(self, nodes: Mapping[int, Node], noted: Noted, result: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Return the first or the last row as it is made again, and that of the result itself.

        Args:
            nodes: Those of the step.
            noted: What is noted of the step.
            result: What is made, in its own shape.
            end: 0 for the first row, -1 for the last one.
        """
        normalized = next((noted[slot] for slot in self.kept if slot.name == "normalized_shape"), (0,))
        row = (end,) * (result.dim() - len(normalized))
        values = [_value_of(one, nodes, noted) for one in self.arguments]
        rows = [value[row] if isinstance(value, Tensor) and value.shape == result.shape else value for value in values]
        return self._make(rows), result[row]

    def places(self) -> Iterator[int]:
        """Give the places of the nodes that are read."""
        for recipe in self.inputs:
            yield from recipe.places()

    def notes(self) -> Iterator[Note]:
        """Give those of the inputs, and what nodes keep."""
        for recipe in self.inputs:
            yield from recipe.notes()
        yield from self.kept

    def edges(self) -> Iterator[Edge]:
        """Give those of the inputs."""
        for recipe in self.inputs:
            yield from recipe.edges()

    def slots(self) -> Iterator[Slot]:
        """Give those of the inputs."""
        for recipe in self.inputs:
            yield from recipe.slots()


def _value_of(argument: Recipe | Kept | Constant, nodes: Mapping[int, Node], noted: Noted) -> Any:
    match argument:
        case Kept():
            return argument.value(noted)
        case Constant(value):
            return value
        case _:
            return argument.read(nodes, noted)


def shape_over(node: Node, edge: int) -> torch.Size:
    """Return the shape of what a node was given over an edge: that of what the node before it made."""
    before, result = node.next_functions[edge]
    return shape_of(before, result)


def shape_of(node: Node, result: int = 0) -> torch.Size:
    """Return the shape of what a node made."""
    return torch.Size(node._input_metadata[result].shape)


def noted_of(notes: Iterable[Note], nodes: Mapping[int, Node]) -> Noted:
    """Return the values that a recipe reads beside tensors, as they are in a step."""
    return {
        note: shape_over(nodes[note.place], note.edge) if isinstance(note, Edge) else note.in_step(nodes)
        for note in notes
    }


Note = Edge | Slot | Leaf
Noted = dict[Note, Any]
"""Notes of a step: for edges the shape of what went over them, for slots and leaves what they hold."""


class RecipeFinder:
    """Finds recipes in a graph.

    Args:
        calls: The graph, with the operators that made its nodes.
        holders: For places of nodes, the slots that hold what the node made, and how it came to them.
        hidden: Places of nodes whose tensors cannot be read.
    """

    def __init__(
        self,
        calls: Calls,
        holders: Mapping[int, Sequence[tuple[Slot, tuple[Edge, ...]]]],
        hidden: Container[int] = (),
    ) -> None:
        self._calls, self._graph = calls, calls.graph
        self._holders = holders
        self._hidden = hidden
        self._avoided: Container[Slot] = ()
        self._end = 0

    def recipes(self, place: int, avoided: Collection[Slot]) -> Iterator[Recipe]:
        """Give recipes for what a node made, which is in the slots to be avoided.

        They read nodes alone that are older than those of the slots: the slots' hooks hold the nodes that are read, and
        what is younger may hold the hooks.
        """
        self._avoided = avoided
        self._end = min(self._sequence(slot.place) for slot in avoided)
        call = self._calls.at(place)
        if call is None or call.elements * _SMALL < max((one.elements for one in call.operands), default=0):
            return
        for recipe in self._made(place, 0):
            if all(self._sequence(read) < self._end for read in recipe.places()):
                yield recipe

    def _sequence(self, place: int) -> int:
        return sequence_of(self._graph.nodes[place])

    def _made(self, place: int, depth: int) -> Iterator[Recipe]:
        call = self._calls.at(place)
        if call is None or place in self._hidden or depth >= _DEEPEST:
            return
        if call.function.overloadpacket is torch.ops.aten.native_dropout:  # its mask is kept
            given = self._operand(place, "input", depth + 1)
            kept = Slot(place, "result1"), Kept(Slot(place, "p"))
            yield from (Made(None, (recipe, *kept)) for recipe in given)
        elif call.is_cheap:
            schema = zip(call.function._schema.arguments, call.values, strict=True)
            options = [self._argument(place, call, argument, value, depth + 1) for argument, value in schema]
            for chosen in itertools.product(*(itertools.islice(option, _MOST) for option in options)):
                yield Made(call.function, chosen)

    def _argument(
        self, place: int, call: Recorded, argument: Any, value: Any, depth: int
    ) -> Iterator[Recipe | Kept | Constant]:
        """Give ways to have an argument in a later step."""
        name: str = argument.name
        if isinstance(value, Operand):
            yield from self._operand(place, name, depth)
        elif "Tensor" in str(argument.type):
            yield from self._number_or_none(place, call, name, value)
        elif self._keeps(place, name):
            yield Kept(Slot(place, name))
        elif call.is_constant(argument, value):
            yield Constant(value, may_change=call.is_epsilon(argument))

    def _number_or_none(self, place: int, call: Recorded, name: str, value: Any) -> Iterator[Recipe | Constant]:
        """Give ways to have what stands in the place of a tensor."""
        edge = self._calls.edges(place).get(name)
        if value is None and edge is not None:
            yield Leaf(place, edge)
        elif self._keeps(place, name):
            yield Slot(place, name)
        elif value is None or value in call.literals:
            yield Constant(value, may_change=value is not None)

    def _operand(self, place: int, name: str, depth: int) -> Iterator[Recipe]:
        """Give recipes for a tensor that went into a node: what it saved, what an older node holds, or made again."""
        slot, edge = Slot(place, name), self._calls.edges(place).get(name)
        if slot not in self._avoided and self._is_saved(slot):
            yield slot
            return
        if edge is None:
            return
        if name == "bias" and is_leaf(self._graph.nodes[place], edge):  # no gradient needs it, so no node saves it
            yield Leaf(place, edge)
        way = self.way(place, edge, SAME_ELEMENTS)
        if way and way[0].source not in self._hidden:
            expanding = frozenset(one.source for one in way if self._calls.is_one(one.source, _EXPAND))
            for slot_held, held in self._held(way[0].source):
                yield Viewed(slot_held, way, expanding, held)
            for recipe in self._made(way[0].source, depth):
                yield Viewed(recipe, way, expanding)

    def way(self, place: int, edge: int, through: Container[OpOverloadPacket]) -> tuple[Edge, ...]:
        """Return the edges from the node that made what went in over an edge, through views and casts.

        The first comes from that node. There are none where something else made it.
        """
        way: list[Edge] = []
        while (source := self._graph.before(place, edge)) is not None:
            if self._graph.nodes[place].next_functions[edge][1]:  # another result than an operator's first
                return ()
            way.insert(0, Edge(place, edge, source))
            if not self._calls.is_one(source, through):
                return tuple(way)
            place, edge = source, 0
        return ()

    def _keeps(self, place: int, name: str) -> bool:
        return hasattr(type(self._graph.nodes[place]), f"_saved_{name}")

    def _is_saved(self, slot: Slot) -> bool:
        return getattr(self._graph.nodes[slot.place], f"_saved_{slot.name}", None) is not None

    def _held(self, source: int) -> Iterator[tuple[Slot, tuple[Edge, ...]]]:
        for slot, way in self._holders.get(source, ()):
            if slot not in self._avoided and self._sequence(slot.place) < self._end:
                yield slot, way


def is_leaf(node: Node, edge: int) -> bool:
    """Tell whether a parameter comes over an edge of a node."""
    source = node.next_functions[edge][0]
    return source is not None and hasattr(source, "variable")


def _drop_out(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    return x * mask * (1 / (1 - probability) if probability < 1 else 0.0)
