"""Finds single operators whose saved tensors can be made again."""

from __future__ import annotations

import collections
import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from autorecompute.backends.torch.fake.repeats import Link, forms_of
from autorecompute.backends.torch.fake.tensors import is_fake, is_same
from autorecompute.backends.torch.find.graphs import Graph, Plan, graph_of, sequence_of
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.find.probe import Handle
from autorecompute.backends.torch.find.recipes import Edge, Recipe, RecipeFinder, Slot, noted_of, notes_of, tensors_of
from autorecompute.backends.torch.find.recorded import SAME_ELEMENTS, SAME_MEMORY
from autorecompute.backends.torch.find.refusals import Reason
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.switch.module_state import modes_of
from autorecompute.backends.torch.switch.rewriting import Drop, Layout, Mask, Program, State, made

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from torch import Tensor
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
        self._pending: list[tuple[str, Plan, list[Candidate]]] = []

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
        plan = graph.plan()
        module = self._model.get_submodule(call.path)
        if call.path:
            outputs = frozenset(map(seen.storages.number, tensors_in(result)))
            self.links.append(Link(call.path, name_of(module), plan, forms_of(result), call.inputs, outputs))
        if not self._drops:
            return
        hidden = {
            place
            for place, node in enumerate(graph.nodes)
            if any(one.first <= sequence_of(node) < one.end for one in (*own, *units))
        }
        unit = _Unit(graph, hidden, seen, functools.partial(self._site, seen), modes_of(module))
        self._pending.append((call.path, plan, list(unit.candidates())))
        self.unverified |= {self._site(seen, graph.nodes[place]) for place in unit.unverified}

    def _site(self, seen: Probe, node: Node, operator: str | None = None) -> str:
        path = seen.owner_of(sequence_of(node)).partition("/")[0]
        name = operator or operator_of(node)
        group = self._structure.group_of(path)
        return f"{group}/{name}" if group else name

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of the nodes of each graph, in order; graphs that are alike once."""
        return tuple(dict.fromkeys(" ".join(kind.__name__ for kind in plan.kinds) for _, plan, _ in self._pending))

    def finish(self) -> dict[str, Program]:
        """Return for each unit what can be dropped in all its calls: what nobody outside it has saved."""
        programs: dict[str, Program] = {}
        for path, plan, candidates in self._pending:
            program = Program(plan, _merged(drop for _, drop in self._alone(candidates)))
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
            state=group[0].state._replace(forms=tuple(form for drop in group for form in drop.state.forms)),
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
        self._finder = RecipeFinder(graph, seen.recorded, seen.storages, hidden)
        for slot, tensor in self._slots():
            self._saved[seen.storages.number(tensor)][slot] = tensor
            way = self._way(slot, SAME_ELEMENTS)
            if (source := self._source(slot, way)) is not None:
                self._finder.holders.setdefault(source, []).append((slot, way))

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

    def _way(self, slot: Slot, through: frozenset[str]) -> tuple[Edge, ...]:
        """Return the edges from what made a slot's tensor to its node; none where that is the node itself."""
        edge = self._finder.edges(slot.place).get(slot.name)
        return () if edge is None else self._finder.way(slot.place, edge, through)

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
        state = State.of(self._modules, noted, slots.values(), (slot.in_step(self._nodes) for slot in read))
        site = self._site(self._nodes[maker], MASK if recipe is None else None)
        return Drop(site, (tuple(slots),), recipe, touched, maker, ways, state)

    def _made_again(self, slots: Mapping[Slot, Tensor]) -> Drop | None:
        ways = {slot: self._way(slot, SAME_MEMORY) for slot in slots}
        makers = {self._source(slot, way) for slot, way in ways.items()} - {None}
        maker = next(iter(makers)) if len(makers) == 1 else None
        if maker is None:
            return None
        edges = frozenset(edge for way in ways.values() for edge in way)
        is_tried = False
        for recipe in self._finder.recipes(maker, slots):
            is_tried = True
            if self._is_equal(recipe, slots):
                return self._drop(slots, recipe, maker, edges)
        if is_tried:
            self.unverified.add(maker)
        return None

    def _is_equal(self, recipe: Recipe, slots: Mapping[Slot, Tensor]) -> bool:
        try:
            value = made(recipe, self._nodes, noted_of(notes_of(recipe), self._nodes))
            return all(is_same(Layout.of(tensor).view(value), tensor) for tensor in slots.values())
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, AttributeError):  # the rule does not fit what it was tried on
            return False

    def _mask(self, storage: int, slots: Mapping[Slot, Tensor]) -> Drop | None:
        """Return the mask of a dropout on the CPU: saved once, as the factor of a product, drawn as zeros and ones."""
        (slot, tensor), *others = slots.items()
        is_factor = self._finder.is_one(slot.place, {torch.ops.aten.mul}) and slot.name == "other"
        if others or not is_factor or tensor.dim() == 0 or storage not in self._seen.masks:
            return None
        edges = self._nodes[slot.place].next_functions
        if len(edges) > 1 and edges[1][0] is not None:  # gradients go back to what made it
            return None
        is_mask = is_fake(tensor) or torch.equal(Mask.of(tensor).tensor(), tensor)
        return self._drop(slots, None, slot.place) if is_mask else None


@functools.cache
def _saved_names(kind: type) -> list[str]:
    start = "_raw_saved_"
    return [name.removeprefix(start) for name in dir(kind) if name.startswith(start)]
