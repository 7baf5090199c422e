"""What a forward pass may change beside tensors: lists that it appends to, generators that it draws from."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import random
import sys
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

CONTAINERS = frozenset({list, dict, set, collections.deque, collections.defaultdict, collections.OrderedDict})
MOST_ENTRIES = 10_000
"""So many entries are looked at in all: what holds more is data, and not what forward passes leave."""

TORCHS_OWN = frozenset(vars(Module()))
"""Attributes that every module has: parameters, buffers, modules and hooks."""

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
MISSING = object()


def is_torchs(module: Module) -> bool:
    """Whether its class is one of PyTorch's, whose forwards change no attribute."""
    return type(module).__module__.startswith("torch.")


def attributes_of(module: Module) -> dict[str, Any]:
    """The attributes that a module's own class has given it."""
    return {name: value for name, value in vars(module).items() if name not in TORCHS_OWN}


def figures_of(module: Module) -> dict[str, Any]:
    """Those of them that are plain values, such as a number of calls: to keep more could keep a step's graph alive."""
    return {name: value for name, value in vars(module).items() if type(value) in PLAIN and name not in TORCHS_OWN}


@contextlib.contextmanager
def kept_contents(modules: Iterable[Module]) -> Iterator[None]:
    """What lists, dictionaries and sets hold is afterwards as it was.

    Those are meant that are attributes of modules, or that a forward or a hook of a module has at hand, and those
    within them. Nobody may go back through the graph of another run, and no figure of it is the training's.
    """
    with kept(_within_reach(list(modules))):
        yield


@contextlib.contextmanager
def kept(values: Iterable[Any]) -> Iterator[None]:
    """What lists, dictionaries and sets among these values, and within them, hold is afterwards as it was."""
    copies = _copies(values)
    try:
        yield
    finally:
        for container, content in copies.values():
            _refill(container, content)


class Generators:
    """Generators of random numbers that a script made itself, and that a forward or a hook of its model has at hand.

    Args:
        modules: The model's modules.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        known = {id(value): value for value in _within_reach(list(modules))}
        self._ways = [way for value in known.values() if (way := _way_of(value)) is not None]

    def states(self) -> list[Any]:
        """Where each of them is."""
        return [tell() for tell, _ in self._ways]

    def set(self, states: list[Any]) -> None:
        """Puts them back there."""
        for (_, put), state in zip(self._ways, states, strict=True):
            put(state)


def _way_of(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """How the state of a generator is read and written; ``None`` for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return lambda: copy.deepcopy(bits.state), lambda state: setattr(bits, "state", state)
    return None


def _within_reach(modules: Sequence[Module]) -> Iterator[Any]:
    """What forwards and hooks of modules find without being given it: attributes, globals, closures.

    Not all globals of the script: others may be in use by another thread at this moment, such as one that loads data.
    """
    for module in modules:
        yield from attributes_of(module).values()
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        # Where a module is intercepted, its class has a forward of ours around the script's.
        own = [] if is_torchs(module) else [inspect.unwrap(type(module).forward)]
        for function in (*own, *hooks):
            yield from getattr(getattr(function, "__self__", None), "__dict__", {}).values()
            for name in _names_in(getattr(function, "__code__", None)):
                yield getattr(function, "__globals__", {}).get(name)
            for cell in getattr(function, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # a cell that is empty yet
                    yield cell.cell_contents


@functools.cache
def _names_in(code: CodeType | None) -> frozenset[str]:
    """The globals and attributes that a function names, or a function that is written in it."""
    if code is None:
        return frozenset()
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(code.co_names).union(*inner)


def _copies(values: Iterable[Any]) -> dict[int, tuple[Any, Any]]:
    """Each container among the values, and within them, with a copy of what it holds."""
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
