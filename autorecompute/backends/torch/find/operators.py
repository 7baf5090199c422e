"""Finds single operators whose saved tensors can be made again, and the recipes for that."""

from __future__ import annotations

import collections
import functools
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from autorecompute.backends.torch.fake.repeats import Link, forms_of
from autorecompute.backends.torch.fake.tensors import is_fake, is_same
from autorecompute.backends.torch.find.graphs import Graph, GraphForm, graph_of, sequence_of
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.find.probe import Handle
from autorecompute.backends.torch.find.recipes import (
    EPSILON,
    SAME_ELEMENTS,
    SAME_MEMORY,
    Constant,
    Edge,
    Made,
    Operand,
    Recipe,
    Recorded,
    Slot,
    Viewed,
    noted_of,
    notes_of,
    shape_of,
    tensors_of,
)
from autorecompute.backends.torch.find.refusals import Reason
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.switch.module_state import modes_of
from autorecompute.backends.torch.switch.rewriting import Drop, Program, laid_out_as, made, mask_of, of_mask, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping

    from torch import Tensor
    from torch._ops import OpOverloadPacket
    from torch.autograd.graph import Node
    from torch.nn import Module

    from autorecompute.backends.torch.find.probe import Call, Probe, Saved
    from autorecompute.backends.torch.find.structure import Structure

    Candidate = tuple[int, Drop]  # the number of a storage, and how it can be dropped if nobody else holds it


MASK = "dropout_mask"

_RESULTS = frozenset({"result", "output"})
"""Names under which a node saves what its operator made; others are numbered, and small."""

NOT_OURS = {Reason.OWN_CHECKPOINT, Reason.COMPILED}
"""Why nothing is looked at inside a module: others decide there what is kept."""

_DEEPEST = 12
_MOST = 8
"""So many ways to make an operand again are looked at."""

_SMALL = 8
"""A result that has so many times fewer elements than what it is made of is kept: to make it again costs more."""

_EXPAND = frozenset({torch.ops.aten.expand})


class Finder:
    """Looks at the graph of each unit while a probe is in it, and at the model's own at the end.

    Without ``drops`` it looks for links alone, and for no operators.

    Attributes:
        unverified: Sites with an operator whose result was not the same bit for bit.
        links: The calls of units, without those in which others decide what is kept.
    """

    def __init__(self, model: Module, structure: Structure, *, drops: bool = True) -> None:
        self.unverified: set[str] = set()
        self.links: list[Link] = []
        self._model, self._drops = model, drops
        self._structure = structure
        self._saved: Mapping[int, Saved] = {}
        self._units: list[Call] = []
        self._pending: list[tuple[str, GraphForm, list[Candidate]]] = []

    def visit(self, seen: Probe, call: Call, result: Any) -> None:
        """Find what can be dropped in a unit that has just returned."""
        self._saved = seen.saved
        if not call.keeps:
            return
        units = tuple(self._units)
        self._units.append(call)
        own = [one for one in seen.calls if seen.refused.get(one.path) in NOT_OURS]
        if call.path and any(is_within(one.path, call.path) for one in own):
            return
        graph = graph_of(tensors_in(result), call.first)
        form = graph.form()
        module = self._model.get_submodule(call.path)
        if call.path:
            outputs = frozenset(map(seen.storages.number, tensors_in(result)))
            self.links.append(Link(call.path, name_of(module), form, forms_of(result), call.inputs, outputs))
        if not self._drops:
            return
        hidden = {
            place
            for place, node in enumerate(graph.nodes)
            if any(one.first <= sequence_of(node) < one.end for one in (*own, *units))
        }
        unit = _Unit(graph, hidden, seen, functools.partial(self._site, seen), modes_of(module))
        self._pending.append((call.path, form, list(unit.candidates())))
        self.unverified |= {self._site(seen, graph.nodes[place]) for place in unit.unverified}

    def _site(self, seen: Probe, node: Node, operator: str | None = None) -> str:
        path = seen.owner_of(sequence_of(node)).partition("/")[0]
        name = operator or operator_of(node)
        group = self._structure.group_of(path)
        return f"{group}/{name}" if group else name

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of the nodes of each graph, in order; graphs that are alike once."""
        return tuple(dict.fromkeys(" ".join(kind.__name__ for *_, kind in form) for _, form, _ in self._pending))

    def finish(self) -> dict[str, Program]:
        """Return for each unit what can be dropped in all its calls: what nobody outside it has saved."""
        programs: dict[str, Program] = {}
        for path, form, candidates in self._pending:
            program = Program(form, _merged(drop for _, drop in self._alone(candidates)))
            programs[path] = program.agreeing(programs[path]) if path in programs else program
        return {path: program for path, program in programs.items() if program.drops}

    def storages(self) -> Mapping[str, set[int]]:
        """Return for each site the storages that it drops."""
        found: dict[str, set[int]] = collections.defaultdict(set)
        for _, _, candidates in self._pending:
            for storage, drop in self._alone(candidates):
                found[drop.site].add(storage)
        return found

    def _alone(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return those whose storage nobody outside the unit has saved."""
        times = {number: saved.times for number, saved in self._saved.items()}
        return [(storage, drop) for storage, drop in candidates if times.get(storage) == len(drop.slots[0])]


def _merged(drops: Iterable[Drop]) -> Iterator[Drop]:
    """Yield one drop for each recipe: casts of one tensor, which several nodes save, are made from it together."""
    alike: dict[tuple[str, object], list[Drop]] = collections.defaultdict(list)
    for drop in drops:
        alike[drop.site, drop.recipe if drop.recipe is not None else drop.slots].append(drop)
    for group in alike.values():
        yield replace(
            group[0],
            slots=tuple(slots for drop in group for slots in drop.slots),
            touched=frozenset().union(*(drop.touched for drop in group)),
            ways=frozenset().union(*(drop.ways for drop in group)),
            state=(tuple(form for drop in group for form in drop.state[0]), group[0].state[1]),
        )


def operator_of(node: Node) -> str:
    """Return the usual name of the operator that made a node: ``NativeLayerNormBackward0`` is ``layer_norm``."""
    name = re.sub(r"(Backward)?\d*$", "", type(node).__name__).removeprefix("Native").removeprefix("Fused")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class _Unit:
    """The graph of one unit, while its tensors can be read."""

    def __init__(
        self, graph: Graph, hidden: set[int], seen: Probe, site: Callable[..., str], modules: Hashable
    ) -> None:
        self.unverified: set[int] = set()
        self._graph, self._hidden, self._seen, self._site, self._modules = graph, hidden, seen, site, modules
        self._nodes = dict(enumerate(graph.nodes))
        self._saved: dict[int, dict[Slot, Tensor]] = collections.defaultdict(dict)
        # For places of nodes, the slots that hold what the node made, and how it came to them.
        self._holders: dict[int, list[tuple[Slot, tuple[Edge, ...]]]] = {}
        self._known_edges: dict[int, dict[str | int, int]] = {}
        self._avoided: Container[Slot] = ()
        self._end = 0
        for slot, tensor in self._slots():
            self._saved[seen.storages.number(tensor)][slot] = tensor
            way = self._way_of(slot, SAME_ELEMENTS)
            if (source := self._source(slot, way)) is not None:
                self._holders.setdefault(source, []).append((slot, way))

    def _slots(self) -> Iterator[tuple[Slot, Tensor]]:
        for place, node in enumerate(self._graph.nodes):
            if place in self._hidden:
                continue
            for name in _saved_names(type(node)):  # type: ignore[arg-type]
                raw = getattr(node, f"_raw_saved_{name}", None)  # a list where the node saves a list of tensors
                # Reading what the script's own checkpoint has packed would run the checkpoint. Before torch 2.8 nobody
                # can tell.
                is_ours = isinstance(getattr(raw, "data", None), Handle) or not hasattr(raw, "data")
                value = getattr(node, f"_saved_{name}", None) if is_ours else None
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    yield Slot(place, name), value

    def _way_of(self, slot: Slot, through: Container[OpOverloadPacket]) -> tuple[Edge, ...]:
        """Return the edges from what made a slot's tensor to its node; none where that is the node itself."""
        edge = self._edges(slot.place).get(slot.name)
        return () if edge is None else self._way(slot.place, edge, through)

    def _source(self, slot: Slot, way: tuple[Edge, ...]) -> int | None:
        if way:
            return way[0].source
        return slot.place if slot.name in _RESULTS else None

    def candidates(self) -> Iterator[Candidate]:
        """Yield what can be made again bit for bit."""
        with torch.no_grad():
            for storage, slots in self._saved.items():
                if (drop := self._made_again(slots) or self._mask(storage, slots)) is not None:
                    yield storage, drop

    def _drop(
        self, slots: Mapping[Slot, Tensor], recipe: Recipe | None, maker: int, ways: frozenset[Edge] = frozenset()
    ) -> Drop:
        read = tensors_of(recipe) if recipe is not None else []
        noted = noted_of(notes_of(recipe), self._nodes) if recipe is not None else {}
        places = {maker, *(slot.place for slot in (*slots, *read))}
        touched = frozenset(self._seen.owner_of(sequence_of(self._nodes[place])) for place in places)
        state = state_of(self._modules, noted, slots.values(), (slot.in_step(self._nodes) for slot in read))
        site = self._site(self._nodes[maker], MASK if recipe is None else None)
        return Drop(site, (tuple(slots),), recipe, touched, maker, ways, state)

    def _made_again(self, slots: Mapping[Slot, Tensor]) -> Drop | None:
        ways = {slot: self._way_of(slot, SAME_MEMORY) for slot in slots}
        makers = {self._source(slot, way) for slot, way in ways.items()} - {None}
        maker = next(iter(makers)) if len(makers) == 1 else None
        if maker is None:
            return None
        edges = frozenset(edge for way in ways.values() for edge in way)
        is_tried = False
        for recipe in self._recipes(maker, slots):
            is_tried = True
            if self._is_equal(recipe, slots):
                return self._drop(slots, recipe, maker, edges)
        if is_tried:
            self.unverified.add(maker)
        return None

    def _is_equal(self, recipe: Recipe, slots: Mapping[Slot, Tensor]) -> bool:
        try:
            value = made(recipe, self._nodes, noted_of(notes_of(recipe), self._nodes))
            return all(is_same(laid_out_as(tensor)(value), tensor) for tensor in slots.values())
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, AttributeError):  # the rule does not fit what it was tried on
            return False

    def _mask(self, storage: int, slots: Mapping[Slot, Tensor]) -> Drop | None:
        """Return the mask of a dropout on the CPU: saved once, as the factor of a product, drawn as zeros and ones."""
        (slot, tensor), *others = slots.items()
        is_factor = self._is_one(slot.place, {torch.ops.aten.mul}) and slot.name == "other"
        if others or not is_factor or tensor.dim() == 0 or storage not in self._seen.masks:
            return None
        edges = self._nodes[slot.place].next_functions
        if len(edges) > 1 and edges[1][0] is not None:  # gradients go back to what made it
            return None
        is_mask = is_fake(tensor) or torch.equal(of_mask(*mask_of(tensor)), tensor)
        return self._drop(slots, None, slot.place) if is_mask else None

    def _call_at(self, place: int) -> Recorded | None:
        node = self._graph.nodes[place]
        return None if isinstance(node, BackwardCFunction) else self._seen.recorded.get(sequence_of(node))

    def _is_one(self, place: int, packets: Container[OpOverloadPacket]) -> bool:
        """Tell whether one of these operators made a node."""
        call = self._call_at(place)
        return call is not None and call.function.overloadpacket in packets

    def _edges(self, place: int) -> Mapping[str | int, int]:
        """Return the edges over which an operator's tensors came, by the names of its arguments."""
        if place not in self._known_edges:
            self._known_edges[place] = dict(self._edges_of(place))
        return self._known_edges[place]

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
            return value.came_over(source, result, self._seen.storages)
        return source is None

    def _recipes(self, place: int, avoided: Collection[Slot]) -> Iterator[Recipe]:
        """Give recipes for what a node made, which is in the slots to be avoided.

        They read nodes alone that are older than those of the slots: the slots' hooks hold the nodes that are read, and
        what is younger may hold the hooks.
        """
        self._avoided = avoided
        self._end = min(self._sequence(slot.place) for slot in avoided)
        call = self._call_at(place)
        if call is None:
            return
        most = max((one.elements for one in call.values if isinstance(one, Operand)), default=0)
        if shape_of(self._nodes[place]).numel() * _SMALL < most:
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
        """Give ways to have an argument of a node's operator; a number, or none, may stand in the place of a tensor."""
        name, is_tensor = argument.name, "Tensor" in str(argument.type)
        edge = self._edges(place).get(name)
        if isinstance(value, Operand):
            yield from self._operand(place, name, depth)
        elif is_tensor and value is None and edge is not None:
            yield Slot(place, edge, is_noted=True)
        elif hasattr(type(self._nodes[place]), f"_saved_{name}"):
            yield Slot(place, name, is_noted=not is_tensor)
        elif is_tensor and (value is None or value in call.literals):
            yield Constant(value, may_change=value is not None)
        elif not is_tensor and call.is_constant(argument, value):
            yield Constant(value, may_change=name in EPSILON)

    def _operand(self, place: int, name: str, depth: int) -> Iterator[Recipe]:
        """Give recipes for a tensor that went into a node: what it saved, what an older node holds, or made again."""
        slot, edge = Slot(place, name), self._edges(place).get(name)
        node = self._graph.nodes[place]
        if slot not in self._avoided and getattr(node, f"_saved_{name}", None) is not None:
            yield slot
            return
        if edge is None:
            return
        if name == "bias" and hasattr(
            node.next_functions[edge][0], "variable"
        ):  # no node saves it: no gradient needs it
            yield Slot(place, edge, is_noted=True)
        way = self._way(place, edge, SAME_ELEMENTS)
        if way and way[0].source not in self._hidden:
            expanding = frozenset(one.source for one in way if self._is_one(one.source, _EXPAND))
            for holder, held in self._holders.get(way[0].source, ()):
                if holder not in self._avoided and self._sequence(holder.place) < self._end:
                    yield Viewed(holder, way, expanding, held)
            for recipe in self._made(way[0].source, depth):
                yield Viewed(recipe, way, expanding)

    def _way(self, place: int, edge: int, through: Container[OpOverloadPacket]) -> tuple[Edge, ...]:
        """Return the edges from the node that made what went in over an edge, through views and casts.

        The first comes from that node. There are none where something else made it.
        """
        way: list[Edge] = []
        while (source := self._graph.before(place, edge)) is not None:
            if self._graph.nodes[place].next_functions[edge][1]:  # another result than an operator's first
                return ()
            way.insert(0, Edge(place, edge, source))
            if not self._is_one(source, through):
                return tuple(way)
            place, edge = source, 0
        return ()


@functools.cache
def _saved_names(kind: type) -> list[str]:
    start = "_raw_saved_"
    return [name.removeprefix(start) for name in dir(kind) if name.startswith(start)]
