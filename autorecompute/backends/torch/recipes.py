"""Expressions over what the nodes of a graph keep, which give a tensor again that was dropped.

What a node saves under which name is no public interface of torch. The names here and in ``rules`` are for the versions
in ``rules.KNOWN_VERSIONS``, and every recipe is compared with the tensor that it stands for before it is offered: a
name that means something else costs a plan, never a gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

from autorecompute.backends.torch.graphs import sequence_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Mapping, Sequence

    from torch.autograd.graph import Node

    from autorecompute.backends.torch.graphs import Graph

    Rule = Callable[["Cook", int, Node, int], Iterator["Recipe"]]

_DEEPEST = 12

# Nodes that hand a tensor on with its elements in the same order; a cast changes the type alone.
SAME_ELEMENTS = frozenset(
    {
        "AliasBackward0",
        "ExpandBackward0",
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


class Recipe(Protocol):
    """How a tensor is made."""

    def read(self, nodes: Mapping[int, Node]) -> Any:
        """The tensor."""

    def places(self) -> Iterator[int]:
        """Places of the nodes that are read."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """What a node saves: a tensor, or another argument of its operator.

    Attributes:
        place: The node's place in its graph.
        name: The node's name for it.
    """

    place: int
    name: str

    def read(self, nodes: Mapping[int, Node]) -> Any:
        """It, made again where it was dropped; None where the node saved none."""
        return getattr(nodes[self.place], f"_saved_{self.name}")

    def places(self) -> Iterator[int]:
        """The node's place."""
        yield self.place


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter that went into a node which does not save it.

    Attributes:
        place: The node's place in its graph.
        edge: The edge over which it came.
    """

    place: int
    edge: int

    def read(self, nodes: Mapping[int, Node]) -> Any:
        """The parameter; None where there was none."""
        leaf = nodes[self.place].next_functions[self.edge][0]
        return None if leaf is None else leaf.variable

    def places(self) -> Iterator[int]:
        """The node's place."""
        yield self.place


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that a function makes.

    Attributes:
        function: Takes the tensors, then the constants, then what nodes keep.
        inputs: The tensors.
        constants: Numbers that no node keeps.
        kept: Arguments that nodes keep. They are read in every step, as a script may change them.
        shaped_as: Inputs with as many elements are given the shape of this one.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Recipe, ...]
    constants: tuple[float, ...] = ()
    kept: tuple[Slot, ...] = ()
    shaped_as: int | None = None

    def read(self, nodes: Mapping[int, Node]) -> Tensor:
        """The tensor."""
        values = [recipe.read(nodes) for recipe in self.inputs]
        if self.shaped_as is not None:
            model = values[self.shaped_as]
            values = [value.reshape(model.shape) if value.numel() == model.numel() else value for value in values]
        return self.function(*values, *self.constants, *(slot.read(nodes) for slot in self.kept))

    def places(self) -> Iterator[int]:
        """Places of the nodes that are read."""
        for recipe in (*self.inputs, *self.kept):
            yield from recipe.places()


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
        holders: For places of nodes, the slots that hold what the node made.
        hidden: Places of nodes whose tensors cannot be read.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        numbers: Numbers,
        holders: Mapping[int, Sequence[Slot]],
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
        source = self.source(place, edge, SAME_ELEMENTS)
        if source is not None and source not in self._hidden:
            yield from self._held(source)
            yield from self._made(source, depth)

    def source(self, place: int, edge: int, through: Container[str]) -> int | None:
        """The node that made what went in over an edge, behind views and casts."""
        source = self._graph.before(place, edge)
        while source is not None and type(self._graph.nodes[source]).__name__ in through:
            source = self._graph.before(source, 0)
        return source

    def _is_saved(self, slot: Slot) -> bool:
        return getattr(self._graph.nodes[slot.place], f"_saved_{slot.name}", None) is not None

    def _held(self, source: int) -> Iterator[Slot]:
        for slot in self._holders.get(source, ()):
            if slot not in self._avoided and self._sequence(slot.place) < self._end:
                yield slot
