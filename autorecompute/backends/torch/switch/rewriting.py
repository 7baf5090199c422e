"""Drops saved tensors, and makes them again in the backward pass."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from autorecompute.backends.common import tensors_in
from autorecompute.backends.torch.fake.tensors import is_fake, is_same
from autorecompute.backends.torch.find.graphs import GraphForm, route
from autorecompute.backends.torch.find.recipes import (
    Edge,
    Made,
    Note,
    Noted,
    Recipe,
    Slot,
    edges_of,
    noted_of,
    notes_of,
    shape_of,
    tensors_of,
    value_of,
)
from autorecompute.backends.torch.switch.module_state import modes_of, without_autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from torch.autograd.graph import Node
    from torch.nn import Module

    from autorecompute.backends.torch.check.recompute_check import Sums, Watch

    View = Callable[[Tensor], Tensor]
    Mask = tuple[Tensor, float | Tensor, torch.dtype]
    State = tuple[tuple[tuple[torch.dtype, torch.Size], ...], Hashable]


_PART = 2**16
"""So many elements of a mask are compared at once."""

_FEW_ELEMENTS = 64
"""Among so many a dropout's mask has one that is not zero, nearly always."""


def laid_out_as(tensor: Tensor) -> View:
    """Return what lays out the values of a tensor's storage as the tensor, which is not kept.

    It raises a ``RuntimeError`` for values of another size.
    """
    size, stride, offset, dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype
    storage_bytes = tensor.untyped_storage().nbytes()

    def view(value: Tensor) -> Tensor:
        cast = value.to(dtype)
        if cast.numel() * cast.element_size() != storage_bytes:
            raise RuntimeError("an operator was made again in another size than it had; leave it without recompute")
        return cast.as_strided(size, stride, offset)

    return view


def mask_of(tensor: Tensor) -> Mask:
    """Return a tensor of zeros and one other value as truth values, which take a byte an element, with that value."""
    # A cast takes a tenth of the time of a comparison.
    return tensor.detach().bool(), _other_than_zero(tensor), tensor.dtype


def of_mask(is_other: Tensor, value: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor that a mask was made of."""
    # A cast from bytes takes a quarter of the time of one from truth values, which are the same bytes.
    return is_other.view(torch.uint8).to(dtype).mul_(value)


def _is_whole(mask: Mask, tensor: Tensor) -> bool:
    """Tell whether a mask is all of the tensor that it was made of; on a card nobody waits to know."""
    if is_fake(tensor) or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return True
    is_other, value, dtype = mask
    # In parts, which take no memory to speak of and stay in a processor's cache.
    parts = zip(is_other.view(-1).split(_PART), tensor.view(-1).split(_PART), strict=True)
    return all(torch.equal(of_mask(bits, value, dtype), part) for bits, part in parts)


def _other_than_zero(tensor: Tensor) -> float | Tensor:
    if tensor.device.type != "cpu":  # reading an element would wait for all that is queued
        return tensor.detach().amax()
    if is_fake(tensor) or not tensor.numel():  # nobody can tell, and nobody needs to
        return 1.0
    few = tensor.view(-1)[:_FEW_ELEMENTS].tolist() if tensor.is_contiguous() else []
    return float(next(filter(None, few), None) or tensor.amax())


def state_of(modules: Hashable, noted: Noted, tensors: Iterable[Tensor], read: Iterable[Any]) -> State:
    """Return the state of a step that decides what is made again, and that may differ in another step.

    That is the type and shape of each saved tensor; and the modes of the unit's modules and of autocast, what the
    recipe notes (of tensors, that there are any), and which of the tensors that it reads are there.
    """
    hashable = (tuple(value) if isinstance(value, list) else value for value in noted.values())
    notes = tuple(["a tensor" if isinstance(value, Tensor) else value for value in hashable])
    forms = tuple([(tensor.dtype, tensor.size()) for tensor in tensors])
    return forms, (modules, notes, tuple([one is not None for one in read]))


@dataclasses.dataclass(frozen=True)
class Drop:
    """Tensors that one operator of a unit made.

    Attributes:
        slots: Places where it is saved. Those of one storage are together: casts of it are storages of their own.
        recipe: The way to make it again; None for the mask of a dropout, which is kept as one byte an element.
        touched: Paths of the modules that made or saved what is dropped or read.
        maker: The place of the node that made it.
        ways: The edges over which it came from there to the slots.
        state: That of the step in which it was found (:func:`state_of`).
    """

    site: str
    slots: tuple[tuple[Slot, ...], ...]
    recipe: Recipe | None
    touched: frozenset[str]
    maker: int
    ways: frozenset[Edge]
    state: State = dataclasses.field(compare=False)

    @functools.cached_property
    def edges(self) -> frozenset[Edge]:
        """Edges that have to be there in every step."""
        return self.ways.union(edges_of(self.recipe) if self.recipe is not None else ())

    @functools.cached_property
    def notes(self) -> tuple[Note, ...]:
        """Notes that the recipe takes of a step."""
        return tuple(notes_of(self.recipe)) if self.recipe is not None else ()

    @functools.cached_property
    def tensors(self) -> tuple[Slot, ...]:
        """Slots of the tensors that the recipe reads."""
        return tuple(tensors_of(self.recipe)) if self.recipe is not None else ()

    def places(self) -> frozenset[int]:
        """Places of the nodes that are rewritten, read or looked at."""
        ends = {place for start, _, source in self.edges for place in (start, source)}
        return frozenset(ends | {self.maker} | {slot.place for slot in itertools.chain(self.tensors, *self.slots)})

    def in_step(self, nodes: Mapping[int, Node]) -> Dropping | None:
        """Bind it to the nodes of a step; return None where it cannot be recomputed from them."""
        for place, edge, source in self.edges:
            if nodes[place].next_functions[edge][0] is not nodes[source]:
                return None
        # The script's hooks on a saved tensor, which reading it would run; before torch 2.8 nobody can tell.
        saved = (getattr(nodes[slot.place], f"_raw_saved_{slot.name}") for together in self.slots for slot in together)
        if any(getattr(one, "unpack_hook", None) is not None for one in saved):
            return None
        tensors = [[slot.in_step(nodes) for slot in together] for together in self.slots]
        if not all(map(_share_storage, tensors)):
            return None
        if self.recipe is not None:
            elements = shape_of(nodes[self.maker]).numel()
            if any(tensor.untyped_storage().nbytes() != elements * tensor.element_size() for tensor, *_ in tensors):
                return None
        return Dropping(self, nodes, noted_of(self.notes, nodes), tensors)


def _share_storage(tensors: Sequence[Any]) -> bool:
    storages = {tensor.untyped_storage()._cdata if isinstance(tensor, Tensor) else None for tensor in tensors}
    return len(storages) == 1 and None not in storages


class Dropping(NamedTuple):
    """A drop in the graph of one step, while its tensors are there: those in its slots."""

    drop: Drop
    nodes: Mapping[int, Node]
    noted: Noted
    tensors: Sequence[Sequence[Tensor]]

    def state(self, modules: Hashable) -> State:
        """Return the state in which it is dropped, with that of its unit's modules."""
        read = [slot.in_step(self.nodes) for slot in self.drop.tensors]
        return state_of(modules, self.noted, itertools.chain.from_iterable(self.tensors), read)

    def is_same(self) -> bool:
        """Tell whether the recipe gives, bit for bit, what is there."""
        if self.drop.recipe is None:
            return True  # looked at when it is packed
        try:
            with torch.no_grad():
                value = made(self.drop.recipe, self.nodes, self.noted)
                together = itertools.chain.from_iterable(self.tensors)
                return all(is_same(laid_out_as(tensor)(value), tensor) for tensor in together)
        except (RuntimeError, TypeError, AttributeError):  # out of memory, or a tensor is missing: it is kept
            return False

    def is_same_in_a_row(self, end: int) -> bool:
        """Tell whether a number that no node keeps gives the first row (0) or the last (-1) again, if one is used.

        A row may differ where all of them together do not: sums come in another order.
        """
        recipe, tensor = self.drop.recipe, self.tensors[0][0]
        if not isinstance(recipe, Made) or not recipe.has_rows or tensor.device.type != "cpu":
            return True
        shape = shape_of(self.nodes[self.drop.maker])
        if tensor.shape != shape or not tensor.numel():
            return True
        with torch.no_grad(), without_autocast():
            again, row = recipe.read_row(self.nodes, self.noted, tensor, end)
            return is_same(again.to(tensor.dtype), row)

    def hooks(self, watch: Watch | None) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
        """Return the saved tensor hooks that drop and recompute it; with a watch they compare the two."""
        if self.drop.recipe is None:
            return _pack_mask, _unpack_mask  # compared when it is packed
        read = {slot.place: self.nodes[slot.place] for slot in self.drop.tensors}
        return _dropping_hooks(self.drop.recipe, read, self.noted, watch)


def _pack_mask(tensor: Tensor) -> Mask | Tensor:
    """Return the mask of a dropout's tensor, or where a mask loses something, the tensor."""
    mask = mask_of(tensor)
    return mask if _is_whole(mask, tensor) else tensor


def _unpack_mask(kept: Mask | Tensor) -> Tensor:
    return kept if isinstance(kept, Tensor) else of_mask(*kept)


def _dropping_hooks(
    recipe: Recipe, nodes: Mapping[int, Node], noted: Noted, watch: Watch | None
) -> tuple[Callable[[Tensor], View], Callable[[View], Tensor]]:
    """Return the hooks of a tensor that is made again when it is first read, and kept until every slot has been.

    No node that the recipe reads may lie after a slot's node, which holds these hooks. There is no watch where what is
    made again is not to be compared in this step.
    """
    pending = 0
    seen: tuple[View, Sums | None] | None = None
    value: tuple[Tensor, Any] | None = None
    home: Any = None

    def pack(tensor: Tensor) -> View:
        nonlocal pending, seen, home
        pending += 1
        view, home = laid_out_as(tensor), stream_of(tensor.device)
        if watch is not None and seen is None:
            seen = (view, watch.sums_of(tensor))
        return view

    def make() -> tuple[Tensor, Any]:
        with torch.no_grad():
            again = made(recipe, nodes, noted)
            if watch is not None and seen is not None:
                first_view, sums = seen
                watch.compare(sums, first_view(again))
        return again, stream_of(again.device)

    def unpack(view: View) -> Tensor:
        # Where the backward pass makes a graph of its own (``create_graph``), autograd puts what is made at the place
        # of what was dropped in the graph: what it was made by is of no interest.
        nonlocal pending, value
        again, stream = value or make()
        if value is not None:
            read_behind(stream, again)
        elif stream != home:
            home.wait_stream(stream)  # the memory of what was read here goes back to that one
        pending -= 1
        value = (again, stream) if pending > 0 else None
        return view(again)

    return pack, unpack


def stream_of(device: torch.device) -> Any:
    """Return the stream of a card that is in use now; ``None`` for another device."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def read_behind(stream: Any, tensor: Tensor) -> None:
    """Have what follows read a tensor once the stream that makes it has done so, and that one not reuse it before.

    Autograd runs each node on the stream of its forward pass. What a recipe reads was there before what was dropped,
    for which that stream has waited then; but two streams may read what only one of them has made again.
    """
    now = stream_of(tensor.device)
    if now != stream:
        now.wait_stream(stream)
        tensor.record_stream(now)


def made(recipe: Recipe, nodes: Mapping[int, Node], noted: Noted) -> Tensor:
    """Return a recipe's result, in the types of its inputs. It has no gradient."""
    with without_autocast():
        value: Tensor = value_of(recipe, nodes, noted)
        return value


class Program:
    """All that can be dropped in one unit, which makes a graph of this form."""

    def __init__(self, form: GraphForm, drops: Iterable[Drop]) -> None:
        self.drops = tuple(drops)
        self._form = form
        self._arounds: dict[frozenset[str], Rewrite] = {}

    def around(self, sites: Mapping[str, Watch]) -> Rewrite:
        """Return a wrapper of the unit that drops the operators of these sites; each is compared by its watch."""
        key = frozenset(sites)
        if key not in self._arounds:
            self._arounds[key] = Rewrite(self._form, [drop for drop in self.drops if drop.site in sites], sites)
        return self._arounds[key]

    def touched(self, site: str) -> frozenset[str]:
        """Paths of the modules whose operators are read or dropped for the site."""
        return frozenset(path for drop in self.drops if drop.site == site for path in drop.touched)

    def agreeing(self, other: Program) -> Program:
        """Return a program of the drops that both have; empty where the graphs differ."""
        same = other.drops if self._form == other._form else ()
        return Program(self._form, [drop for drop in self.drops if drop in same])


class Rewrite:
    """Rewrites the graph of a unit after each of its calls; an ``Around`` for it.

    Attributes:
        missed: Number of calls after which something could not be dropped, since the graph was another one or had hooks
            already. They are trained as without us.
    """

    def __init__(self, form: GraphForm, drops: Sequence[Drop], watches: Mapping[str, Watch]) -> None:
        self.missed = 0
        self._follow = route(form, {place for drop in drops for place in drop.places()})
        self._drops, self._watches = drops, watches
        self._known: list[dict[State, bool]] = [{drop.state: True} for drop in self._drops]
        self._has_rows = [True] * len(self._drops)
        self._end = 0

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call the unit, and drop the operators of its graph."""
        result = forward(*args, **kwargs)
        if torch.is_grad_enabled():
            nodes = self._follow(tensors_in(result))
            if nodes is None:
                self.missed += 1
            else:
                self._drop(nodes, modes_of(module))
        return result

    def _drop(self, nodes: Mapping[int, Node], modules: Hashable) -> None:
        self._end = -1 - self._end  # the first row and the last one, in turn
        try:
            found = [drop.in_step(nodes) for drop in self._drops]
            # All is looked at before anything is dropped: what is dropped would be made again to be looked at.
            dropping = [
                one for at, one in enumerate(found) if one is not None and self._can_be_made_again(at, one, modules)
            ]
            self.missed += len(dropping) < len(self._drops)
            compared = {site for site, watch in self._watches.items() if watch.begins()}
            for one in dropping:
                site = one.drop.site
                if not self._watches[site].is_taken_back:
                    hooks = one.hooks(self._watches[site] if site in compared else None)
                    for slot in itertools.chain.from_iterable(one.drop.slots):
                        getattr(nodes[slot.place], f"_raw_saved_{slot.name}").register_hooks(*hooks)
        except RuntimeError:  # hooks of the script's own, or a tensor that it has changed in place
            self.missed += 1

    def _can_be_made_again(self, at: int, one: Dropping, modules: Hashable) -> bool:
        """Tell whether the recipe holds in this step; compare it with what is there where what it reads is new."""
        if is_fake(one.tensors[0][0]):
            return True
        known, state = self._known[at], one.state(modules)
        is_known = known.get(state)
        if is_known is None:
            is_known = known[state] = one.is_same()
        elif is_known and self._has_rows[at] and not one.is_same_in_a_row(self._end):
            is_known = one.is_same()
            self._has_rows[at] = not is_known
        return is_known
