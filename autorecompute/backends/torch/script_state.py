"""What a forward pass may change beside tensors: lists that it appends to, generators that it draws from."""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import functools
import inspect
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from autorecompute.backends.torch.random_streams import changing_in, is_generator, names_in, streams_in, way_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CONTAINERS = frozenset({list, dict, set, collections.deque, collections.defaultdict, collections.OrderedDict})
MOST_ENTRIES = 10_000
"""So many entries are looked at in all: what holds more is data, and not what forward passes leave."""

TORCHS_OWN = frozenset(vars(Module()))
"""Attributes that every module has: parameters, buffers, modules and hooks."""

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
UNKNOWN = object()
"""In place of an attribute of which no more is known than that it was there."""

MOST_FIGURES = 64
"""So many entries of a list are plain values that a forward may go by: a longer one is data, or a log."""


def is_torchs(module: Module) -> bool:
    """Tell whether its class is one of PyTorch's, whose forwards change no attribute."""
    return type(module).__module__.startswith("torch.")


def attributes_of(module: Module) -> dict[str, Any]:
    """Return the attributes that a module's own class has given it."""
    return {name: value for name, value in vars(module).items() if name not in TORCHS_OWN}


class Attributes(NamedTuple):
    """What modules have beside parameters, buffers and modules."""

    figures: list[dict[str, Any]]
    """For each module the plain values, by name; ``UNKNOWN`` for all else."""
    tensors: dict[tuple[int, str], Tensor]
    """The tensors, by a module's place and their name."""
    generators: list[Any]
    """Those of random numbers, which are among the plain values, too."""


def attributes_of_all(modules: Sequence[Module]) -> Attributes:
    """Return the attributes of modules, as they are now.

    Plain values are numbers, text, enums, tuples of such, generators of random numbers, and short lists, dictionaries
    and sets of such, which are copied. To keep more could keep a step's graph alive. A list that several modules have
    is one copy.
    """
    found = Attributes([], {}, [])
    copies: dict[int, Any] = {}
    for index, module in enumerate(modules):
        own = vars(module)
        plain = {name: own[name] for name in own.keys() - TORCHS_OWN}
        for name, value in plain.items():
            if type(value) not in PLAIN:
                plain[name] = _figure(value, copies)
                _sort((index, name), value, found)
        found.figures.append(plain)
    return found


def _sort(place: tuple[int, str], value: Any, found: Attributes) -> None:
    kind: type = type(value)
    if is_generator(kind):
        found.generators.append(value)
    elif _is_tensors(kind):
        found.tensors[place] = value


@functools.cache
def _is_tensors(kind: type) -> bool:
    return issubclass(kind, Tensor)


def _figure(value: Any, copies: dict[int, Any]) -> Any:
    if type(value) not in CONTAINERS:
        return value if _is_plain(value) else UNKNOWN
    if id(value) not in copies:
        copies[id(value)] = copy.copy(value) if len(value) <= MOST_FIGURES and _is_all_plain(value) else UNKNOWN
    return copies[id(value)]


def _is_all_plain(container: Any) -> bool:
    return all(map(_is_plain, (*container, *container.values()) if isinstance(container, dict) else container))


def _is_plain(value: Any) -> bool:
    kind: type = type(value)
    return kind in PLAIN or _is_fixed(kind) or (isinstance(value, tuple) and all(map(_is_plain, value)))


@functools.cache
def _is_fixed(kind: type) -> bool:
    """Tell whether values of a type refer to nothing else that matters."""
    return is_generator(kind) or issubclass(kind, numbers.Number | str | enum.Enum | torch.dtype | torch.device)


@contextlib.contextmanager
def kept_contents(modules: Iterable[Module]) -> Iterator[None]:
    """Put back afterwards what lists, dictionaries and sets hold.

    Those are meant that are attributes of modules, or that a forward or a hook of a module has at hand, and those
    within them. Nobody may go back through the graph of another run, and no figure of it is the training's.
    """
    with kept(_within_reach(list(modules))):
        yield


@contextlib.contextmanager
def kept(values: Iterable[Any]) -> Iterator[None]:
    """Put back afterwards what lists, dictionaries and sets among these values, and within them, hold."""
    copies = _copies(values)
    try:
        yield
    finally:
        for container, content in copies.values():
            _refill(container, content)


def _functions_of(module: Module) -> list[tuple[Any, type]]:
    """Return its forward, if it is the script's, and its hooks, each with the class whose methods it may call."""
    forwards = [] if is_torchs(module) else [type(module).forward]
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    own = [(inspect.unwrap(forward), type(module)) for forward in forwards]
    return [*own, *((hook, type(getattr(hook, "__self__", None))) for hook in hooks)]


class Generators:
    """Generators of random numbers that a forward or a hook of a model has at hand.

    Those are meant that a script made itself, and Python's and NumPy's own where a forward, or what it calls, names
    them.

    Args:
        modules: The model's modules.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        modules = list(modules)
        functions = [pair for module in modules for pair in _functions_of(module)]
        known = {id(value): value for value in (*_within_reach(modules), *streams_in(functions))}
        self._known = {key: value for key, value in known.items() if way_of(value) is not None}
        self._ways = [way for value in self._known.values() if (way := way_of(value)) is not None]
        self._changing = changing_in(functions)

    def are_all(self, own: Iterable[Any]) -> bool:
        """Tell whether there is no other one among the modules' own, which are given, and what functions name."""
        now = [holder.get(name) for holder, name in self._changing]
        return all(id(value) in self._known for value in (*own, *now) if way_of(value) is not None)

    def states(self) -> list[Any]:
        """Return where each of them is."""
        return [tell() for tell, _ in self._ways]

    def set(self, states: list[Any]) -> None:
        """Put them back there."""
        for (_, put), state in zip(self._ways, states, strict=True):
            put(state)


def _within_reach(modules: Sequence[Module]) -> Iterator[Any]:
    """Yield what forwards and hooks of modules find without being given it: attributes, globals, closures.

    Not all globals of the script: others may be in use by another thread at this moment, such as one that loads data.
    """
    for module in modules:
        yield from attributes_of(module).values()
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        # Where a module is intercepted, its class has a forward of ours around the script's.
        own = [] if is_torchs(module) else [inspect.unwrap(type(module).forward)]
        for function in (*own, *hooks):
            yield from getattr(getattr(function, "__self__", None), "__dict__", {}).values()
            for name in names_in(getattr(function, "__code__", None)):
                yield getattr(function, "__globals__", {}).get(name)
            for cell in getattr(function, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # a cell that is empty yet
                    yield cell.cell_contents


def _copies(values: Iterable[Any]) -> dict[int, tuple[Any, Any]]:
    """Return each container among the values, and within them, with a copy of what it holds."""
    found: dict[int, tuple[Any, Any]] = {}
    waiting, entries = list(values), 0
    for value in waiting:
        if type(value) in CONTAINERS and id(value) not in found and entries + len(value) <= MOST_ENTRIES:
            entries += len(value)
            found[id(value)] = value, copy.copy(value)
            waiting += value.values() if isinstance(value, dict) else value
    return found


def _refill(container: Any, content: Any) -> None:
    if len(container) == len(content) and all(map(_is_same, _entries(container), _entries(content))):
        return
    container.clear()
    (container.update if isinstance(container, dict | set) else container.extend)(content)


def _entries(container: Any) -> list[Any]:
    return list(container.items() if isinstance(container, dict) else container)


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(first is second for first, second in zip(one, other, strict=True))
    return one is other
