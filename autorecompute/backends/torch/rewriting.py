"""Operators of a unit dropped after its forward pass, and made again when the backward pass reads them.

Nothing that the model calls is replaced and nothing of ours runs inside it. When a unit has returned, the graph that it
left is rewritten: a tensor that a node saved gets hooks which let it go and make it again from what other nodes keep.
Autograd's own check that nobody has changed a saved tensor in place goes on guarding what a recipe reads.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from autorecompute.backends.torch.fake_tensors import is_fake
from autorecompute.backends.torch.graphs import DifferentGraphError, Plan, Route
from autorecompute.backends.torch.recipes import Recipe, Slot
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.backends.torch.untouched import without_autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch.autograd.graph import Node
    from torch.nn import Module

_FEW_ELEMENTS = 64
"""Among so many a dropout's mask has one that is not zero, nearly always."""


class Layout(NamedTuple):
    """How a tensor lies in its storage.

    Attributes:
        size: Its shape.
        stride: Elements between neighbours of each dimension.
        offset: Elements before the first.
        dtype: Their type.
        bytes: Those of the whole storage.
    """

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    bytes: int

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        """The layout of a tensor."""
        storage = tensor.untyped_storage().nbytes()
        return cls(tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype, storage)

    def view(self, value: Tensor) -> Tensor:
        """The tensor as it lay, on what its storage held.

        Raises:
            RuntimeError: The value is of another size than what was dropped.
        """
        cast = value.to(self.dtype)
        if cast.numel() * cast.element_size() != self.bytes:
            raise RuntimeError("an operator was made again in another size than it had; leave it without recompute")
        return cast.as_strided(self.size, self.stride, self.offset)


class Mask(NamedTuple):
    """A tensor of zeros and one other value, with one byte in place of each element.

    Attributes:
        is_other: Where it is not zero.
        value: What it is there.
        dtype: Its type.
    """

    is_other: Tensor
    value: float | Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Mask:
        """What is kept of a tensor."""
        # A cast takes a tenth of the time of a comparison.
        return cls(tensor.detach().bool(), _other_than_zero(tensor), tensor.dtype)

    def tensor(self) -> Tensor:
        """The tensor."""
        # A cast from bytes takes a quarter of the time of one from truth values, which are the same bytes.
        return self.is_other.view(torch.uint8).to(self.dtype).mul_(self.value)


def _other_than_zero(tensor: Tensor) -> float | Tensor:
    """What a tensor of zeros and one positive value has beside the zeros."""
    if tensor.device.type != "cpu":  # reading an element would wait for all that is queued
        return tensor.detach().amax()
    if is_fake(tensor) or not tensor.numel():  # nobody can tell, and nobody needs to
        return 1.0
    few = tensor.view(-1)[:_FEW_ELEMENTS].tolist() if tensor.is_contiguous() else []
    return float(next(filter(None, few), None) or tensor.amax())


@dataclasses.dataclass(frozen=True)
class Drop:
    """What one operator of a unit made.

    Attributes:
        site: The operator's site.
        slots: Where it is saved.
        recipe: How it is made again; None for the mask of a dropout, which is kept as one byte an element.
        touched: Paths of the modules that made or saved what is dropped or read.
    """

    site: str
    slots: tuple[Slot, ...]
    recipe: Recipe | None
    touched: frozenset[str]

    @functools.cached_property
    def read(self) -> frozenset[int]:
        """Places of the nodes that are read."""
        return frozenset(self.recipe.places() if self.recipe is not None else ())

    def places(self) -> frozenset[int]:
        """Places of the nodes that are rewritten or read."""
        return self.read | {slot.place for slot in self.slots}

    def hooks(self, nodes: Mapping[int, Node]) -> Dropped | type[Packed]:
        """What drops it from the nodes of a step and makes it again."""
        if self.recipe is None:
            return Packed
        return Dropped(self.recipe, {place: nodes[place] for place in self.read})


class Dropped:
    """A tensor that is made again when it is first read, and kept until every slot has been.

    Args:
        recipe: How.
        nodes: The nodes that the recipe reads. None of them may lie after a slot's node, which holds this object.
    """

    __slots__ = ("_nodes", "_pending", "_recipe", "_value")

    def __init__(self, recipe: Recipe, nodes: Mapping[int, Node]) -> None:
        self._recipe = recipe
        self._nodes = nodes
        self._pending = 0
        self._value: Tensor | None = None

    def pack(self, tensor: Tensor) -> Layout:
        """Let the tensor go."""
        self._pending += 1
        return Layout.of(tensor)

    def unpack(self, layout: Layout) -> Tensor:
        """Make it again.

        Where the backward pass makes a graph of its own (``create_graph``), autograd puts what is made at the place of
        what was dropped in the graph: what it was made by is of no interest.
        """
        with torch.no_grad():
            value = made(self._recipe, self._nodes) if self._value is None else self._value
        self._pending -= 1
        self._value = value if self._pending > 0 else None
        return layout.view(value)


class Packed:
    """The mask of a dropout, kept as a ``Mask``."""

    pack = staticmethod(Mask.of)
    unpack = staticmethod(Mask.tensor)


def made(recipe: Recipe, nodes: Mapping[int, Node]) -> Tensor:
    """What a recipe gives, in the types of what it reads. No gradient may be wanted of it."""
    with without_autocast():
        value: Tensor = recipe.read(nodes)
        return value


class Program:
    """All that can be dropped in one unit; a ``Rewriter``.

    Args:
        plan: The graph that the unit makes.
        drops: What can be dropped.
    """

    def __init__(self, plan: Plan, drops: Iterable[Drop]) -> None:
        self.drops = tuple(drops)
        self._plan = plan
        self._arounds: dict[frozenset[str], Rewrite] = {}

    def around(self, sites: frozenset[str]) -> Rewrite:
        """What drops the operators of these sites when it is around the unit."""
        if sites not in self._arounds:
            chosen = [drop for drop in self.drops if drop.site in sites]
            places = {place for drop in chosen for place in drop.places()}
            self._arounds[sites] = Rewrite(Route(self._plan, places), chosen)
        return self._arounds[sites]

    def touched(self, site: str) -> frozenset[str]:
        """Paths of the modules whose operators are read or dropped for the site."""
        return frozenset(path for drop in self.drops if drop.site == site for path in drop.touched)

    def agreeing(self, other: Program) -> Program:
        """What both can drop; nothing where the graphs differ."""
        same = other.drops if self._plan == other._plan else ()
        return Program(self._plan, [drop for drop in self.drops if drop in same])


class Rewrite:
    """Rewrites the graph of a unit after each of its calls; an ``Around`` for it.

    Attributes:
        missed: Calls after which something could not be dropped, since the graph was another one or had hooks already.
            They are trained as without us.
    """

    def __init__(self, route: Route, drops: Iterable[Drop]) -> None:
        self.missed = 0
        self._route = route
        self._drops = [(drop, [(slot.place, f"_raw_saved_{slot.name}") for slot in drop.slots]) for drop in drops]

    def __call__(self, forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """What the unit returns."""
        result = forward(*args, **kwargs)
        if torch.is_grad_enabled():
            try:
                self._drop(self._route.follow(tensors_in(result)))
            except DifferentGraphError:
                self.missed += 1
        return result

    def _drop(self, nodes: Mapping[int, Node]) -> None:
        try:
            for drop, slots in self._drops:
                hooks = drop.hooks(nodes)
                for place, name in slots:
                    getattr(nodes[place], name).register_hooks(hooks.pack, hooks.unpack)
        except RuntimeError:  # the script has hooks of its own, such as save_on_cpu or a checkpoint around the unit
            self.missed += 1
