"""Expressions over what the nodes of a graph keep, which give a tensor again that was dropped.

What a node saves under which name is no public interface of torch, and may change with its version. So every recipe is
compared with the tensor that it stands for before it is offered, and in the steps of the training: a name that means
something else costs a plan, never a gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from autorecompute.backends.torch.graphs import sequence_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    from torch.autograd.graph import Node

    from autorecompute.backends.torch.graphs import Graph

    Rule = Callable[["Cook", int, Node, int], Iterator["Recipe"]]

_DEEPEST = 12
EXPAND = "ExpandBackward0"
COMPUTED = "computed"
"""Stands for a parameter where another tensor went in."""


# Nodes that hand a tensor on with its elements in the same order; a cast changes the type alone.
SAME_ELEMENTS = frozenset(
    {
        "AliasBackward0",
        EXPAND,
        "ReshapeAliasBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "ToCopyBackward0",
        "UnsafeViewBackward0",
        "UnsqueezeBackward0",
        "ViewBackward0",
    }
)
# Nodes that hand it on in the same memory, the dimensions in any order.
SAME_MEMORY = SAME_ELEMENTS | {"PermuteBackward0", "TBackward0", "TransposeBackward0"}

# The edge over which a saved tensor came to a node; None for what the node made itself.
_EDGES = {
    "self": 0,
    "input": 0,
    "query": 0,
    "key": 1,
    "value": 2,
    "other": 1,
    "mat2": 1,
    "result": None,
    "output": None,
}
_EDGES_OF: dict[str, dict[str, int | None]] = {"AddmmBackward0": {"mat1": 1, "mat2": 2}}


def edges_of(node: Node) -> Mapping[str, int | None]:
    """For the names of saved tensors the edge over which they came."""
    return _EDGES_OF.get(type(node).__name__, _EDGES)


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
    """How a tensor is made."""

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
    """What a node saves: a tensor, or another argument of its operator.

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
class Made:
    """A tensor that a function makes.

    Attributes:
        function: Takes the tensors, then the constants, then what nodes keep.
        inputs: The tensors.
        constants: Numbers that no node keeps.
        kept: Arguments that nodes keep. They are read in every step, as a script may change them.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Recipe, ...]
    constants: tuple[float, ...] = ()
    kept: tuple[Slot, ...] = ()

    def read(self, nodes: Mapping[int, Node], noted: Noted) -> Tensor:
        """Return the tensor."""
        values = [recipe.read(nodes, noted) for recipe in self.inputs]
        return self.function(*values, *self.constants, *(noted[slot] for slot in self.kept))

    def read_row(self, nodes: Mapping[int, Node], noted: Noted, result: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Return the first or the last row as it is made again, and that of the result itself.

        Args:
            nodes: Those of the step.
            noted: What is noted of the step.
            result: What is made, in its own shape.
            end: 0 for the first row, -1 for the last one.
        """
        kept = {slot.name: noted[slot] for slot in self.kept}
        row = (end,) * (result.dim() - len(kept.get("normalized_shape", (0,))))
        values = [recipe.read(nodes, noted) for recipe in self.inputs]
        rows = [value[row] if value is not None and value.shape == result.shape else value for value in values]
        return self.function(*rows, *self.constants, *kept.values()), result[row]

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


def shape_over(node: Node, edge: int) -> torch.Size:
    """Return the shape of what a node was given over an edge: that of what the node before it made."""
    before, result = node.next_functions[edge]
    return shape_of(before, result)


def shape_of(node: Node, result: int = 0) -> torch.Size:
    """Return the shape of what a node made."""
    return torch.Size(node._input_metadata[result].shape)


def noted_of(notes: Iterable[Note], nodes: Mapping[int, Node]) -> Noted:
    """Return what a recipe reads beside tensors, as it is in a step."""
    return {
        note: shape_over(nodes[note.place], note.edge) if isinstance(note, Edge) else note.in_step(nodes)
        for note in notes
    }


Note = Edge | Slot | Leaf
Noted = dict[Note, Any]
"""Notes of a step: for edges the shape of what went over them, for slots and leaves what they hold."""


class Numbers(NamedTuple):
    """Numbers that nodes do not keep.

    Attributes:
        epsilons: Those of norms; to be tried.
        literals: For the numbers of nodes, what stands in the expression that made them.
    """

    epsilons: Sequence[float]
    literals: Mapping[int, Collection[float]]


class Cook:
    """Finds recipes in a graph.

    Args:
        graph: The graph.
        rules: For classes of nodes, what gives recipes for what such a node made.
        numbers: Those that nodes do not keep.
        holders: For places of nodes, the slots that hold what the node made, and how it came to them.
        hidden: Places of nodes whose tensors cannot be read.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        numbers: Numbers,
        holders: Mapping[int, Sequence[tuple[Slot, tuple[Edge, ...]]]],
        hidden: Container[int] = (),
    ) -> None:
        self.epsilons = numbers.epsilons
        self._literals = numbers.literals
        self._graph = graph
        self._rules = rules
        self._holders = holders
        self._hidden = hidden
        self._avoided: Container[Slot] = ()
        self._end = 0

    def recipes(self, place: int, avoided: Collection[Slot]) -> Iterator[Recipe]:
        """Recipes for what a node made, which is in the slots to be avoided.

        They read nodes alone that are older than those of the slots: the slots' hooks hold the nodes that are read, and
        what is younger may hold the hooks.
        """
        self._avoided = avoided
        self._end = min(self._sequence(slot.place) for slot in avoided)
        for recipe in self._made(place, 0):
            if all(self._sequence(read) < self._end for read in recipe.places()):
                yield recipe

    def _sequence(self, place: int) -> int:
        return sequence_of(self._graph.nodes[place])

    def _made(self, place: int, depth: int) -> Iterator[Recipe]:
        node = self._graph.nodes[place]
        rule = self._rules.get(type(node).__name__)
        if rule is not None and place not in self._hidden and depth < _DEEPEST:
            with contextlib.suppress(AttributeError):  # a node that keeps something else in this version of torch
                yield from rule(self, place, node, depth + 1)

    def literals(self, place: int) -> Collection[float]:
        """Numbers that stand in the expression that made a node: every step has the same."""
        return self._literals.get(self._sequence(place), ())

    def operand(self, place: int, name: str | None, edge: int, depth: int) -> Iterator[Recipe]:
        """Recipes for what went into a node: what it saved, what an older node holds, or made again."""
        slot = Slot(place, name) if name else None
        if slot and slot not in self._avoided and self._is_saved(slot):
            yield slot
            return
        way = self.way(place, edge, SAME_ELEMENTS)
        if way and way[0].source not in self._hidden:
            expanding = frozenset(one.source for one in way if self._kind(one.source) == EXPAND)
            for slot_held, held in self._held(way[0].source):
                yield Viewed(slot_held, way, expanding, held)
            for recipe in self._made(way[0].source, depth):
                yield Viewed(recipe, way, expanding)

    def way(self, place: int, edge: int, through: Container[str]) -> tuple[Edge, ...]:
        """Return the edges from the node that made what went in over an edge, through views and casts.

        The first comes from that node. There are none where something else made it.
        """
        way: list[Edge] = []
        while (source := self._graph.before(place, edge)) is not None:
            way.insert(0, Edge(place, edge, source))
            if self._kind(source) not in through:
                return tuple(way)
            place, edge = source, 0
        return ()

    def _kind(self, place: int) -> str:
        return type(self._graph.nodes[place]).__name__

    def _is_saved(self, slot: Slot) -> bool:
        return getattr(self._graph.nodes[slot.place], f"_saved_{slot.name}", None) is not None

    def _held(self, source: int) -> Iterator[tuple[Slot, tuple[Edge, ...]]]:
        for slot, way in self._holders.get(source, ()):
            if slot not in self._avoided and self._sequence(slot.place) < self._end:
                yield slot, way
