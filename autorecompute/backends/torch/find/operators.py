"""Finds single operators whose saved tensors can be made again, and the recipes for that.

A unit's graph is looked at when the unit has returned, while the tensors that its nodes save can still be read:

1. Each node shows the slots in which it saves a tensor. Slots on one storage are dropped together, or not at all.
2. Autograd's edges lead back from a slot, through views and casts, to the node that made the tensor. The probe has
   recorded the call of an operator that made this node.
3. The call can be repeated if each of its arguments is there in the backward pass: saved by a node that is kept, noted,
   or made again in turn. That is a recipe. Products that are costly, and what is drawn by chance, have none.
4. The first recipe that gives the very bits that are saved makes a drop. It counts in the end if nobody outside of the
   unit has saved the storage, too: else nothing would be freed.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from autorecompute.backends.common import tensors_in
from autorecompute.backends.torch.fake.repeats import Link, forms_of
from autorecompute.backends.torch.fake.tensors import is_fake, is_same
from autorecompute.backends.torch.find.graphs import LEAF, GraphForm, graph_of, sequence_of
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.find.probe import unpack
from autorecompute.backends.torch.find.recipes import (
    SAME_ELEMENTS,
    SAME_MEMORY,
    Made,
    Operand,
    Recipe,
    Recorded,
    Slot,
    Viewed,
    noted_of,
    notes_of,
    shape_of,
    takes_tensor,
    tensors_of,
)
from autorecompute.backends.torch.find.refusals import Reason
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.switch.module_state import modes_of
from autorecompute.backends.torch.switch.rewriting import Drop, Program, laid_out_as, made, mask_of, of_mask, state_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch._ops import OpOverloadPacket
    from torch.autograd.graph import Node
    from torch.nn import Module

    from autorecompute.backends.torch.find.probe import Call, Probe
    from autorecompute.backends.torch.find.recipes import Edge
    from autorecompute.backends.torch.find.structure import Structure

    Candidate = tuple[int, Drop]  # the number of a storage, and how it can be dropped if nobody else holds it


MASK = "dropout_mask"

_RESULTS = frozenset({"result", "output"})
"""Names under which a node saves what its operator made; others are numbered, and small."""

NOT_OURS = {Reason.OWN_CHECKPOINT, Reason.COMPILED}
"""Why nothing is looked at inside a module: others decide there what is kept."""

_DEEPEST = 12
_MOST = 8  # so many ways to make an operand again are looked at

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
        self._model, self._structure, self._drops = model, structure, drops
        self._units: list[Call] = []
        self._found: list[tuple[str, GraphForm, list[Candidate]]] = []

    def visit(self, seen: Probe, call: Call, result: Any) -> None:
        """Find what can be dropped in a unit that has just returned."""
        if not call.keeps:
            return
        own = [one for one in seen.calls if seen.refused.get(one.path) in NOT_OURS]
        others = (*own, *self._units)
        self._units.append(call)
        if call.path and any(is_within(one.path, call.path) for one in own):
            return
        nodes, form = graph_of(tensors_in(result), call.first)
        module = self._model.get_submodule(call.path)
        if call.path:
            outputs = frozenset(map(seen.storages.number, tensors_in(result)))
            self.links.append(Link(call.path, name_of(module), form, forms_of(result), call.inputs, outputs))
        if self._drops:
            hidden = {
                place
                for place, node in enumerate(nodes)
                if any(one.first <= sequence_of(node) < one.end for one in others)
            }
            unit = _Unit(nodes, hidden, seen, self._structure, modes_of(module))
            self._found.append((call.path, form, list(unit.candidates())))
            self.unverified |= unit.unverified

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the names of the nodes of each graph, in order; graphs that are alike once."""
        return tuple(dict.fromkeys(" ".join(kind.__name__ for *_, kind in form) for _, form, _ in self._found))

    def finish(self, seen: Probe) -> tuple[dict[str, Program], Mapping[str, set[int]]]:
        """Return for each unit what can be dropped in all its calls, and for each site the storages that it drops."""
        programs: dict[str, Program] = {}
        times = {number: saved.times for number, saved in seen.saved.items()}
        storages: dict[str, set[int]] = collections.defaultdict(set)
        for path, form, candidates in self._found:
            # What was saved more often has slots outside of the unit, which would hold it.
            alone = [(storage, drop) for storage, drop in candidates if times.get(storage) == len(drop.slots[0])]
            for storage, drop in alone:
                storages[drop.site].add(storage)
            program = Program(form, _merged(drop for _, drop in alone))
            programs[path] = program.agreeing(programs[path]) if path in programs else program
        return {path: program for path, program in programs.items() if program.drops}, storages


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
    """The graph of one unit, while its tensors can be read; a node is named by its place in it.

    Attributes:
        unverified: Sites with an operator that no recipe made again bit for bit.
    """

    def __init__(
        self, nodes: Sequence[Node], hidden: set[int], seen: Probe, structure: Structure, modules: Hashable
    ) -> None:
        self.unverified: set[str] = set()
        self._hidden, self._seen, self._structure, self._modules = hidden, seen, structure, modules
        self._nodes = dict(enumerate(nodes))
        self._places = {node: place for place, node in self._nodes.items()}
        self._known_edges: dict[int, Mapping[str | int, int]] = {}
        self._saved: dict[int, dict[Slot, Tensor]] = collections.defaultdict(dict)
        # For makers, the slots that hold what they made, and the edges over which it came to them.
        self._holders: dict[int, list[tuple[Slot, tuple[Edge, ...]]]] = collections.defaultdict(list)
        for slot, tensor in self._slots():
            self._saved[seen.storages.number(tensor)][slot] = tensor
            maker, way = self._origin(slot, SAME_ELEMENTS)
            if maker is not None:
                self._holders[maker].append((slot, way))

    def candidates(self) -> Iterator[Candidate]:
        """Yield what can be made again bit for bit."""
        with torch.no_grad():
            for storage, slots in self._saved.items():
                if (drop := self._made_again(slots) or self._mask(storage, slots)) is not None:
                    yield storage, drop

    # What the unit saves.

    def _slots(self) -> Iterator[tuple[Slot, Tensor]]:
        for place, node in self._nodes.items():
            if place in self._hidden:
                continue
            for name in _saved_names(type(node)):  # type: ignore[arg-type]
                # Reading what the script's own checkpoint has packed would run the checkpoint. Before torch 2.8 nobody
                # can tell. Where a node saves a list of tensors, that is no slot.
                hook = getattr(getattr(node, f"_raw_saved_{name}", None), "unpack_hook", unpack)
                value = getattr(node, f"_saved_{name}", None) if hook is unpack else None
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    yield Slot(place, name), value

    # Which call made it.

    def _call_at(self, place: int) -> Recorded | None:
        node = self._nodes[place]
        return None if isinstance(node, BackwardCFunction) else self._seen.recorded.get(sequence_of(node))

    def _is_one(self, place: int, packets: Container[OpOverloadPacket]) -> bool:
        """Tell whether one of these operators made a node."""
        call = self._call_at(place)
        return call is not None and call.function.overloadpacket in packets

    def _edge_of(self, slot: Slot) -> int | None:
        """Return the edge over which the argument came to the node of a slot that has its name."""
        place = slot.place
        if place not in self._known_edges:
            call = self._call_at(place)
            self._known_edges[place] = call.edges(self._nodes[place], self._seen.storages) if call is not None else {}
        return self._known_edges[place].get(slot.name)

    def _origin(self, slot: Slot, through: Container[OpOverloadPacket]) -> tuple[int | None, tuple[Edge, ...]]:
        """Return the node that made what is in a slot, if one did, and the edges over which that came to the slot.

        Operators on the way handed it on through views and casts. There is no way if the slot's own node made it.
        """
        way: list[Edge] = []
        place, edge = slot.place, self._edge_of(slot)
        while edge is not None and edge < len(edges := self._nodes[place].next_functions):
            source = self._places.get(edges[edge][0])
            if source is None or edges[edge][1]:  # of another call, or another result than an operator's first
                break
            way.insert(0, (place, edge, source))
            if not self._is_one(source, through):
                return source, tuple(way)
            place, edge = source, 0
        return (slot.place if slot.name in _RESULTS else None), ()

    # Whether it can be made again.

    def _made_again(self, slots: Mapping[Slot, Tensor]) -> Drop | None:
        origins = [self._origin(slot, SAME_MEMORY) for slot in slots]
        makers = {maker for maker, _ in origins if maker is not None}
        if len(makers) != 1:
            return None
        (maker,) = makers
        is_tried = False
        for recipe in self._recipes(maker, slots):
            is_tried = True
            if self._is_equal(recipe, slots):
                return self._drop(slots, recipe, maker, frozenset(edge for _, way in origins for edge in way))
        if is_tried:
            self.unverified.add(self._site(maker))
        return None

    def _is_equal(self, recipe: Recipe, slots: Mapping[Slot, Tensor]) -> bool:
        try:
            value = made(recipe, self._nodes, noted_of(notes_of(recipe), self._nodes))
            return all(is_same(laid_out_as(tensor)(value), tensor) for tensor in slots.values())
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, AttributeError):  # the rule does not fit what it was tried on
            return False

    def _recipes(self, maker: int, avoided: Collection[Slot]) -> Iterator[Recipe]:
        """Give recipes for what a node made, which is in the slots to be avoided.

        They read nodes alone that are older than those of the slots: the slots' hooks hold the nodes that are read, and
        what is younger may hold the hooks.
        """
        call = self._call_at(maker)
        if call is None:
            return
        most = max((one.elements for one in call.values if isinstance(one, Operand)), default=0)
        if shape_of(self._nodes[maker]).numel() * _SMALL >= most:
            for recipe in self._calls_again(maker, avoided, 0):
                if all(self._is_older(slot, avoided) for slot in tensors_of(recipe)):
                    yield recipe

    def _is_older(self, slot: Slot, others: Iterable[Slot]) -> bool:
        sequence = sequence_of(self._nodes[slot.place])
        return all(sequence < sequence_of(self._nodes[other.place]) for other in others)

    def _calls_again(self, place: int, avoided: Collection[Slot], depth: int) -> Iterator[Recipe]:
        call = self._call_at(place)
        if call is None or place in self._hidden or depth >= _DEEPEST:
            return
        if call.function.overloadpacket is torch.ops.aten.native_dropout:  # its mask is kept
            kept = Slot(place, "result1"), Slot(place, "p", is_noted=True)
            for recipe in self._operands(Slot(place, "input"), avoided, depth + 1):
                yield Made(None, (recipe, *kept))
        elif call.is_cheap:
            options = [self._arguments(place, call, given, avoided, depth + 1) for given in call.given]
            for chosen in itertools.product(*(itertools.islice(option, _MOST) for option in options)):
                yield Made(call.function, chosen)

    def _arguments(
        self, place: int, call: Recorded, given: tuple[Any, Any], avoided: Collection[Slot], depth: int
    ) -> Iterator[Any]:
        """Give ways to have an argument of a node's operator: recipes, or the value where it is known not to change."""
        argument, value = given
        slot, is_tensor = Slot(place, argument.name), takes_tensor(argument)
        edge = self._edge_of(slot)
        if isinstance(value, Operand):
            yield from self._operands(slot, avoided, depth)
        elif is_tensor and value is None and edge is not None:
            yield Slot(place, edge, is_noted=True)
        elif hasattr(type(self._nodes[place]), f"_saved_{argument.name}"):
            yield slot._replace(is_noted=not is_tensor)
        elif call.is_constant(argument, value):
            yield value

    def _operands(self, slot: Slot, avoided: Collection[Slot], depth: int) -> Iterator[Recipe]:
        """Give recipes for a tensor that went into a node: what it saved, what an older node holds, or made again."""
        node, edge = self._nodes[slot.place], self._edge_of(slot)
        if slot not in avoided and getattr(node, f"_saved_{slot.name}", None) is not None:
            yield slot
            return
        if edge is None:
            return
        if slot.name == "bias" and type(node.next_functions[edge][0]).__name__ == LEAF:
            yield Slot(slot.place, edge, is_noted=True)  # no node saves it: no gradient needs it
        maker, way = self._origin(slot, SAME_ELEMENTS)
        if maker is not None and way and maker not in self._hidden:
            expanding = frozenset(source for _, _, source in way if self._is_one(source, _EXPAND))
            for holder, held in self._holders.get(maker, ()):
                if holder not in avoided and self._is_older(holder, avoided):
                    yield Viewed(holder, way, expanding, held)
            for recipe in self._calls_again(maker, avoided, depth):
                yield Viewed(recipe, way, expanding)

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

    # What is dropped then.

    def _drop(
        self, slots: Mapping[Slot, Tensor], recipe: Recipe | None, maker: int, ways: frozenset[Edge] = frozenset()
    ) -> Drop:
        read = tensors_of(recipe)
        touched = {self._owner_of(place) for place in (maker, *(slot.place for slot in (*slots, *read)))}
        noted = noted_of(notes_of(recipe), self._nodes)
        state = state_of(self._modules, noted, slots.values(), (slot.in_step(self._nodes) for slot in read))
        site = self._site(maker, MASK if recipe is None else None)
        return Drop(site, (tuple(slots),), recipe, frozenset(touched), maker, ways, state)

    def _site(self, maker: int, operator: str | None = None) -> str:
        group = self._structure.group_of(self._owner_of(maker).partition("/")[0])
        name = operator or operator_of(self._nodes[maker])
        return f"{group}/{name}" if group else name

    def _owner_of(self, place: int) -> str:
        return self._seen.owner_of(sequence_of(self._nodes[place]))


@functools.cache
def _saved_names(kind: type) -> list[str]:
    start = "_raw_saved_"
    return [name.removeprefix(start) for name in dir(kind) if name.startswith(start)]
