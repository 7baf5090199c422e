"""Finds single operators whose saved tensors can be made again."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import TYPE_CHECKING, Any

import torch

from autorecompute.backends.torch.fake.repeats import Link, forms_of
from autorecompute.backends.torch.fake.tensors import is_fake, is_same
from autorecompute.backends.torch.find.graphs import Graph, Plan, graph_of, sequence_of
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.find.probe import Handle
from autorecompute.backends.torch.find.recipes import Edge, Recipe, RecipeFinder, Slot, noted_of
from autorecompute.backends.torch.find.recorded import SAME_ELEMENTS, SAME_MEMORY, Calls
from autorecompute.backends.torch.find.refusals import Reason
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.switch.module_state import modes_of
from autorecompute.backends.torch.switch.rewriting import Drop, Layout, Mask, Program, State, made

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node
    from torch.nn import Module

    from autorecompute.backends.torch.find.probe import Call, Observation
    from autorecompute.backends.torch.find.storages import Storages
    from autorecompute.backends.torch.find.structure import Structure


MASK = "dropout_mask"

_RESULTS = frozenset({"result", "output"})
"""Names under which a node saves what its operator made; others are numbered, and small."""

NOT_OURS = {Reason.OWN_CHECKPOINT, Reason.COMPILED}
"""Why nothing is looked at inside a module: others decide there what is kept."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A storage that can be dropped, if nobody else holds it.

    Attributes:
        storage: Its number.
        slots: Where the unit saves it.
        recipe: How it is made again; None for the mask of a dropout.
        maker: The place of the node that made it.
        ways: The edges over which it came from there to the slots.
    """

    storage: int
    slots: tuple[Slot, ...]
    recipe: Recipe | None
    maker: int
    ways: frozenset[Edge] = frozenset()


class Finder:
    """Looks at the graph of each unit while a probe is in it, and at the model's own at the end.

    Args:
        model: The model.
        structure: How its modules repeat.
        drops: Whether operators are looked for; if not, links alone.

    Attributes:
        unverified: Sites with an operator whose result was not the same bit for bit.
        links: The calls of units, without those in which others decide what is kept.
    """

    def __init__(self, model: Module, structure: Structure, *, drops: bool = True) -> None:
        self.unverified: set[str] = set()
        self.links: list[Link] = []
        self._model, self._drops = model, drops
        self._structure = structure
        self._seen: Observation | None = None
        self._units: list[Call] = []
        self._pending: list[tuple[str, Plan, list[_Candidate]]] = []

    def visit(self, seen: Observation, call: Call, result: Any, storages: Storages) -> None:
        """Find what can be dropped in a unit that has just returned."""
        self._seen = seen
        if not call.keeps:
            return
        units = tuple(self._units)
        self._units.append(call)
        own = [one for one in seen.calls if seen.refused.get(one.path) in NOT_OURS]
        if call.path and any(is_within(one.path, call.path) for one in own):
            return
        graph = graph_of(tensors_in(result), call.first)
        plan = graph.plan()
        if call.path:
            self.links.append(self._link(call, plan, result, storages))
        if not self._drops:
            return
        hidden = {
            place
            for place, node in enumerate(graph.nodes)
            if any(one.first <= sequence_of(node) < one.end for one in (*own, *units))
        }
        modules = modes_of(self._model.get_submodule(call.path))
        unit = _Unit(Calls(graph, seen.recorded, storages), hidden, storages, seen)
        candidates = [
            _Candidate(found, self._site_of(graph, found), self._touched(graph, found), unit.state_of(found, modules))
            for found in unit.found()
        ]
        self.unverified |= {self._site(graph.nodes[place]) for place in unit.unverified}
        self._pending.append((call.path, plan, candidates))

    def _link(self, call: Call, plan: Plan, result: Any, storages: Storages) -> Link:
        kind = name_of(self._model.get_submodule(call.path))
        outputs = frozenset(map(storages.number, tensors_in(result)))
        return Link(call.path, kind, plan, forms_of(result), call.inputs, outputs)

    def _site_of(self, graph: Graph, found: Found) -> str:
        node = graph.nodes[found.maker]
        return self._site(node, MASK if found.recipe is None else None)

    def _site(self, node: Node, operator: str | None = None) -> str:
        assert self._seen is not None, "the probe has not run"
        path = self._seen.owner_of(sequence_of(node)).partition("/")[0]
        name = operator or operator_of(node)
        group = self._structure.group_of(path)
        return f"{group}/{name}" if group else name

    def _touched(self, graph: Graph, found: Found) -> frozenset[str]:
        places = {found.maker, *(slot.place for slot in found.slots), *(found.recipe.places() if found.recipe else ())}
        assert self._seen is not None, "the probe has not run"
        return frozenset(self._seen.owner_of(sequence_of(graph.nodes[place])) for place in places)

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of the nodes of each graph, in order; graphs that are alike once."""
        return tuple(dict.fromkeys(" ".join(kind.__name__ for kind in plan.kinds) for _, plan, _ in self._pending))

    def finish(self) -> dict[str, Program]:
        """Return for each unit what can be dropped in all its calls: what nobody outside it has saved."""
        programs: dict[str, Program] = {}
        for path, plan, candidates in self._pending:
            program = Program(plan, _merged(self._alone(candidates)))
            programs[path] = program.agreeing(programs[path]) if path in programs else program
        return {path: program for path, program in programs.items() if program.drops}

    def storages(self) -> Mapping[str, set[int]]:
        """Return for each site the storages that it drops."""
        found: dict[str, set[int]] = collections.defaultdict(set)
        for _, _, candidates in self._pending:
            for one in self._alone(candidates):
                found[one.site].add(one.found.storage)
        return found

    def _alone(self, candidates: Iterable[_Candidate]) -> list[_Candidate]:
        """Return those whose storage nobody outside the unit has saved."""
        assert self._seen is not None, "the probe has not run"
        saved = self._seen.saved
        return [
            one
            for one in candidates
            if one.found.storage in saved and saved[one.found.storage].times == len(one.found.slots)
        ]


@dataclasses.dataclass(frozen=True)
class _Candidate:
    found: Found
    site: str
    touched: frozenset[str]
    state: State


def _merged(candidates: Sequence[_Candidate]) -> Iterator[Drop]:
    """Yield one drop for each recipe: casts of one tensor, which several nodes save, are made from it together."""
    alike: dict[tuple[str, object], list[_Candidate]] = collections.defaultdict(list)
    for one in candidates:
        key = one.found.recipe if one.found.recipe is not None else one.found.slots
        alike[one.site, key].append(one)
    for (site, _), group in alike.items():
        slots = tuple(one.found.slots for one in group)
        state = group[0].state._replace(forms=tuple(form for one in group for form in one.state.forms))
        ways = frozenset().union(*(one.found.ways for one in group))
        touched = frozenset().union(*(one.touched for one in group))
        yield Drop(site, slots, group[0].found.recipe, touched, group[0].found.maker, ways, state)


def operator_of(node: Node) -> str:
    """Return the usual name of the operator that made a node: ``NativeLayerNormBackward0`` is ``layer_norm``."""
    name = re.sub(r"(Backward)?\d*$", "", type(node).__name__).removeprefix("Native").removeprefix("Fused")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class _Unit:
    """The graph of one unit, while its tensors can be read."""

    def __init__(self, calls: Calls, hidden: set[int], storages: Storages, seen: Observation) -> None:
        self.unverified: set[int] = set()
        self._calls, self._graph = calls, calls.graph
        graph = calls.graph
        self._nodes = dict(enumerate(graph.nodes))
        self._hidden, self._masks = hidden, seen.masks
        self._saved: dict[int, dict[Slot, Tensor]] = collections.defaultdict(dict)
        holders: dict[int, list[tuple[Slot, tuple[Edge, ...]]]] = collections.defaultdict(list)
        self._cook = RecipeFinder(calls, holders, hidden)
        for slot, tensor in self._slots():
            self._saved[storages.number(tensor)][slot] = tensor
            way = self._way(slot, SAME_ELEMENTS)
            if (source := self._source(slot, way)) is not None:
                holders[source].append((slot, way))

    def _slots(self) -> Iterator[tuple[Slot, Tensor]]:
        for place, node in enumerate(self._graph.nodes):
            if place in self._hidden:
                continue
            for name in _saved_names(type(node)):
                raw = getattr(node, f"_raw_saved_{name}", None)  # a list where the node saves a list of tensors
                # Reading what the script's own checkpoint has packed would run the checkpoint. Before torch 2.8 nobody
                # can tell.
                is_ours = isinstance(getattr(raw, "data", None), Handle) or not hasattr(raw, "data")
                value = getattr(node, f"_saved_{name}", None) if is_ours else None
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    yield Slot(place, name), value

    def _way(self, slot: Slot, through: frozenset[str]) -> tuple[Edge, ...]:
        """Return the edges from what made a slot's tensor to its node; none where that is the node itself."""
        edge = self._calls.edges(slot.place).get(slot.name)
        return () if edge is None else self._cook.way(slot.place, edge, through)

    def _source(self, slot: Slot, way: tuple[Edge, ...]) -> int | None:
        """Return the place of the node that made a slot's tensor."""
        if way:
            return way[0].source
        return slot.place if slot.name in _RESULTS else None

    def found(self) -> Iterator[Found]:
        """Yield what can be made again bit for bit."""
        with torch.no_grad():
            for storage, slots in self._saved.items():
                one = self._recipe(storage, slots) or self._mask(storage, slots)
                if one:
                    yield one

    def state_of(self, found: Found, modules: Hashable) -> State:
        """Return the state in which a tensor was found."""
        notes, read = (found.recipe.notes(), found.recipe.slots()) if found.recipe is not None else ((), ())
        tensors = [self._saved[found.storage][slot] for slot in found.slots]
        return State.of(modules, noted_of(notes, self._nodes), tensors, [slot.in_step(self._nodes) for slot in read])

    def _recipe(self, storage: int, slots: Mapping[Slot, Tensor]) -> Found | None:
        ways = {slot: self._way(slot, SAME_MEMORY) for slot in slots}
        makers = {self._source(slot, way) for slot, way in ways.items()} - {None}
        maker = next(iter(makers)) if len(makers) == 1 else None
        if maker is None:
            return None
        edges = frozenset(edge for way in ways.values() for edge in way)
        is_tried = False
        for recipe in self._cook.recipes(maker, slots):
            is_tried = True
            if self._is_equal(recipe, slots):
                return Found(storage, tuple(slots), recipe, maker, edges)
        if is_tried:
            self.unverified.add(maker)
        return None

    def _is_equal(self, recipe: Recipe, slots: Mapping[Slot, Tensor]) -> bool:
        try:
            value = made(recipe, self._nodes, noted_of(recipe.notes(), self._nodes))
            return all(is_same(Layout.of(tensor).view(value), tensor) for tensor in slots.values())
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, AttributeError):  # the rule does not fit what it was tried on
            return False

    def _mask(self, storage: int, slots: Mapping[Slot, Tensor]) -> Found | None:
        """Return the mask of a dropout on the CPU: saved once, as the factor of a product, drawn as zeros and ones."""
        (slot, tensor), *others = slots.items()
        is_factor = self._calls.is_one(slot.place, {torch.ops.aten.mul}) and slot.name == "other"
        if others or not is_factor or tensor.dim() == 0 or storage not in self._masks or self._is_made(slot):
            return None
        is_mask = is_fake(tensor) or torch.equal(Mask.of(tensor).tensor(), tensor)
        return Found(storage, (slot,), None, slot.place) if is_mask else None

    def _is_made(self, slot: Slot) -> bool:
        """Tell whether gradients go back to what made the tensor."""
        edges = self._graph.nodes[slot.place].next_functions
        return len(edges) > 1 and edges[1][0] is not None


_NAMES: dict[type, list[str]] = {}


def _saved_names(kind: type) -> list[str]:
    """Name under which nodes of a class save single tensors."""
    if kind not in _NAMES:
        start = "_raw_saved_"
        _NAMES[kind] = [name.removeprefix(start) for name in dir(kind) if name.startswith(start)]
    return _NAMES[kind]
