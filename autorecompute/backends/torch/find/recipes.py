"""Recipes that make a saved tensor again from other tensors."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import BackwardCFunction

from autorecompute.backends.torch.find.graphs import sequence_of
from autorecompute.backends.torch.find.recorded import SAME_ELEMENTS, Operand, run

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    from torch._ops import OpOverloadPacket
    from torch.autograd.graph import Node

    from autorecompute.backends.torch.find.graphs import Graph
    from autorecompute.backends.torch.find.recorded import Recorded
    from autorecompute.backends.torch.find.storages import Storages


_DEEPEST = 12
_MOST = 8
"""So many ways to make an operand again are looked at."""

_SMALL = 8
"""A result that has so many times fewer elements than what it is made of is kept: to make it again costs more."""

_EXPAND = frozenset({torch.ops.aten.expand})
COMPUTED = "computed"
"""Stands for a parameter where another tensor went in."""


class Edge(NamedTuple):
    """An edge of a graph: what the node at ``place`` is given over it comes from the one at ``source``."""

    place: int
    edge: int
    source: int


class Slot(NamedTuple):
    """Saved under a name by a node: a tensor, or another argument of its operator.

    An argument, no tensor, is noted in every step, as a script may change it.
    """

    place: int
    name: str
    is_noted: bool = False

    def in_step(self, nodes: Mapping[int, Node]) -> Any:
        """Return it in the graph of a step, made again where it was dropped; None where the node saved none."""
        return getattr(nodes[self.place], f"_saved_{self.name}")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter that went over an edge into a node which does not save it.

    It is noted: a parameter that is frozen later looks as if there were none.
    """

    place: int
    edge: int

    def in_step(self, nodes: Mapping[int, Node]) -> Any:
        """Return the parameter; None where no gradient goes there, and a word where it is computed."""
        leaf = nodes[self.place].next_functions[self.edge][0]
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
class Constant:
    """An argument that no node keeps, as the probe saw it.

    ``may_change`` is true where a script may give another one in a later step, as far as such arguments are known.
    """

    value: Any
    may_change: bool = False


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that an operator makes of arguments, which are in the order of its schema.

    The operator is None for the product with a mask: a dropout that keeps one.
    """

    operator: OpOverload | None
    arguments: tuple[Recipe | Constant, ...]

    @functools.cached_property
    def has_rows(self) -> bool:
        """Tell whether it has an argument that may change unseen, and gives each row of its result by itself."""
        if not any(isinstance(one, Constant) and one.may_change for one in self.arguments):
            return False
        is_pointwise = self.operator is not None and torch.Tag.pointwise in self.operator.tags
        return is_pointwise or self._normalized is not None

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


Recipe = Slot | Leaf | Viewed | Made
Note = Edge | Slot | Leaf
Noted = dict[Note, Any]
"""Notes of a step: for edges the shape of what went over them, for slots and leaves what they hold."""


def value_of(part: Recipe | Constant, nodes: Mapping[int, Node], noted: Noted) -> Any:
    """Return the value of a recipe or argument in a step, of which ``noted_of`` noted this when the tensor was dropped.

    Raises:
        RuntimeError: What is viewed has another number of elements than it had.
    """
    match part:
        case Slot():
            return noted_value(part, noted) if part.is_noted else part.in_step(nodes)
        case Leaf():
            return noted[part]
        case Constant():
            return part.value
        case Made():
            return part.of([value_of(one, nodes, noted) for one in part.arguments])
    value: Tensor = value_of(part.source, nodes, noted)
    for edge in part.way:
        shape = noted[edge]
        value = value.expand(shape) if edge.source in part.expanding else value.reshape(shape)
    return value


def noted_value(slot: Slot, noted: Noted) -> Any:
    """Return an argument as it was noted, dimensions that are counted from the end as numbers below zero."""
    value = noted[slot]
    return [_signed(one) for one in value] if isinstance(value, (list, tuple)) else _signed(value)


def _signed(value: Any) -> Any:
    # Nodes show a dimension as a number of 64 bits without a sign.
    return value - 2**64 if type(value) is int and value >= 2**63 else value


def _parts_of(recipe: Recipe | Constant) -> Iterator[Recipe | Constant]:
    inner = (recipe.source,) if isinstance(recipe, Viewed) else recipe.arguments if isinstance(recipe, Made) else ()
    for part in inner:
        yield from _parts_of(part)
    yield recipe


def tensors_of(recipe: Recipe) -> list[Slot]:
    """Return the slots of the tensors that are read of nodes."""
    return [part for part in _parts_of(recipe) if isinstance(part, Slot) and not part.is_noted]


def edges_of(recipe: Recipe) -> Iterator[Edge]:
    """Yield the edges that have to be there for the recipe to hold."""
    for part in _parts_of(recipe):
        if isinstance(part, Viewed):
            yield from (*part.way, *part.held)


def notes_of(recipe: Recipe) -> Iterator[Note]:
    """Yield the edges whose shapes are read, the parameters, and the slots that are no tensors of the forward pass."""
    for part in _parts_of(recipe):
        if isinstance(part, Leaf) or (isinstance(part, Slot) and part.is_noted):
            yield part
        elif isinstance(part, Viewed):
            yield from part.way


def noted_of(notes: Iterable[Note], nodes: Mapping[int, Node]) -> Noted:
    """Return the values that a recipe reads beside tensors, as they are in a step."""
    return {
        # The shape of what a node was given over an edge is that of what the node before it made.
        note: shape_of(*nodes[note.place].next_functions[note.edge]) if isinstance(note, Edge) else note.in_step(nodes)
        for note in notes
    }


def shape_of(node: Node, result: int = 0) -> torch.Size:
    """Return the shape of what a node made."""
    return torch.Size(node._input_metadata[result].shape)


class RecipeFinder:
    """Finds recipes in a graph.

    Args:
        graph: The graph.
        recorded: The operators that made its nodes, by the nodes' numbers.
        storages: Numbers of storages.
        hidden: Places of nodes whose tensors cannot be read.

    Attributes:
        holders: For places of nodes, the slots that hold what the node made, and how it came to them.
    """

    def __init__(
        self,
        graph: Graph,
        recorded: Mapping[int, Recorded | None],
        storages: Storages,
        hidden: Container[int],
    ) -> None:
        self._graph, self._recorded, self._storages, self._hidden = graph, recorded, storages, hidden
        self.holders: dict[int, list[tuple[Slot, tuple[Edge, ...]]]] = {}
        self._edges: dict[int, dict[str, int]] = {}
        self._avoided: Container[Slot] = ()
        self._end = 0

    def _call_at(self, place: int) -> Recorded | None:
        node = self._graph.nodes[place]
        return None if isinstance(node, BackwardCFunction) else self._recorded.get(sequence_of(node))

    def is_one(self, place: int, packets: Container[OpOverloadPacket]) -> bool:
        """Tell whether one of these operators made a node."""
        call = self._call_at(place)
        return call is not None and call.function.overloadpacket in packets

    def edges(self, place: int) -> Mapping[str, int]:
        """Return the edges over which an operator's tensors came, by the names of its arguments."""
        if place not in self._edges:
            self._edges[place] = dict(self._edges_of(place))
        return self._edges[place]

    def _edges_of(self, place: int) -> Iterator[tuple[str, int]]:
        call, sources = self._call_at(place), self._graph.nodes[place].next_functions
        if call is None:
            return
        given = [
            (argument.name, value)
            for argument, value in zip(call.function._schema.arguments, call.values, strict=True)
            if "Tensor" in str(argument.type)
        ]
        # Most operators have a gradient for their first tensors.
        if all(self._came(value, *source) for (_, value), source in zip(given, sources, strict=False)):
            yield from ((name, edge) for edge, (name, _) in enumerate(given[: len(sources)]))
            return
        edge = 0
        for name, value in given:
            if isinstance(value, Operand) and value.trains:
                came = (at for at in range(edge, len(sources)) if self._came(value, *sources[at]))
                if (found := next(came, None)) is not None:
                    yield name, found
                    edge = found + 1

    def _came(self, value: Any, source: Node | None, result: int) -> bool:
        if isinstance(value, Operand):
            return value.came_over(source, result, self._storages)
        return source is None

    def recipes(self, place: int, avoided: Collection[Slot]) -> Iterator[Recipe]:
        """Give recipes for what a node made, which is in the slots to be avoided.

        They read nodes alone that are older than those of the slots: the slots' hooks hold the nodes that are read, and
        what is younger may hold the hooks.
        """
        self._avoided = avoided
        self._end = min(self._sequence(slot.place) for slot in avoided)
        call = self._call_at(place)
        if call is None or call.elements * _SMALL < max((one.elements for one in call.operands), default=0):
            return
        for recipe in self._made(place, 0):
            if all(self._sequence(read) < self._end for read in {slot.place for slot in tensors_of(recipe)}):
                yield recipe

    def _sequence(self, place: int) -> int:
        return sequence_of(self._graph.nodes[place])

    def _made(self, place: int, depth: int) -> Iterator[Recipe]:
        call = self._call_at(place)
        if call is None or place in self._hidden or depth >= _DEEPEST:
            return
        if call.function.overloadpacket is torch.ops.aten.native_dropout:  # its mask is kept
            given = self._operand(place, "input", depth + 1)
            kept = Slot(place, "result1"), Slot(place, "p", is_noted=True)
            yield from (Made(None, (recipe, *kept)) for recipe in given)
        elif call.is_cheap:
            schema = zip(call.function._schema.arguments, call.values, strict=True)
            options = [self._argument(place, call, argument, value, depth + 1) for argument, value in schema]
            for chosen in itertools.product(*(itertools.islice(option, _MOST) for option in options)):
                yield Made(call.function, chosen)

    def _argument(
        self, place: int, call: Recorded, argument: Any, value: Any, depth: int
    ) -> Iterator[Recipe | Constant]:
        name: str = argument.name
        if isinstance(value, Operand):
            yield from self._operand(place, name, depth)
        elif "Tensor" in str(argument.type):
            yield from self._number_or_none(place, call, name, value)
        elif self._keeps(place, name):
            yield Slot(place, name, is_noted=True)
        elif call.is_constant(argument, value):
            yield Constant(value, may_change=call.is_epsilon(argument))

    def _number_or_none(self, place: int, call: Recorded, name: str, value: Any) -> Iterator[Recipe | Constant]:
        """Give ways to have what stands in the place of a tensor."""
        edge = self.edges(place).get(name)
        if value is None and edge is not None:
            yield Leaf(place, edge)
        elif self._keeps(place, name):
            yield Slot(place, name)
        elif value is None or value in call.literals:
            yield Constant(value, may_change=value is not None)

    def _operand(self, place: int, name: str, depth: int) -> Iterator[Recipe]:
        """Give recipes for a tensor that went into a node: what it saved, what an older node holds, or made again."""
        slot, edge = Slot(place, name), self.edges(place).get(name)
        node = self._graph.nodes[place]
        if slot not in self._avoided and getattr(node, f"_saved_{name}", None) is not None:
            yield slot
            return
        if edge is None:
            return
        if name == "bias" and hasattr(
            node.next_functions[edge][0], "variable"
        ):  # no node saves it: no gradient needs it
            yield Leaf(place, edge)
        way = self.way(place, edge, SAME_ELEMENTS)
        if way and way[0].source not in self._hidden:
            expanding = frozenset(one.source for one in way if self.is_one(one.source, _EXPAND))
            for holder, held in self.holders.get(way[0].source, ()):
                if holder not in self._avoided and self._sequence(holder.place) < self._end:
                    yield Viewed(holder, way, expanding, held)
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
            if not self.is_one(source, through):
                return tuple(way)
            place, edge = source, 0
        return ()

    def _keeps(self, place: int, name: str) -> bool:
        return hasattr(type(self._graph.nodes[place]), f"_saved_{name}")


def _drop_out(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    return x * mask * (1 / (1 - probability) if probability < 1 else 0.0)
