"""Where random numbers come from in Python: generators of a script's own, and those that Python and NumPy have."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import sys
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

MOST_FUNCTIONS = 200
"""So many functions are read to see whether a forward comes to draw: what is longer is no part of a forward."""

_OTHERS = frozenset({"torch", "numpy", *sys.stdlib_module_names})
"""Packages whose functions are not read."""


@functools.cache
def is_generator(kind: type) -> bool:
    """Tell whether values of a type are generators of random numbers."""
    numpy = sys.modules.get("numpy")
    others = (numpy.random.RandomState, numpy.random.Generator) if numpy else ()
    return issubclass(kind, (torch.Generator, random.Random, *others)) and not issubclass(kind, random.SystemRandom)


def way_of(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """Return how the state of a generator is read and written; ``None`` for anything else.

    A function that draws, such as ``random.random``, stands for its generator, and so do the modules ``random`` and
    ``numpy.random``.
    """
    if isinstance(value, BuiltinMethodType | MethodType):
        value = value.__self__
    numpy = sys.modules.get("numpy")
    if value is random or (isinstance(value, random.Random) and not isinstance(value, random.SystemRandom)):
        return value.getstate, value.setstate
    if isinstance(value, torch.Generator) or (
        numpy and (value is numpy.random or isinstance(value, numpy.random.RandomState))
    ):
        return value.get_state, value.set_state
    if numpy and isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return lambda: copy.deepcopy(bits.state), lambda state: setattr(bits, "state", state)
    return None


def streams_in(functions: Iterable[tuple[Any, type]]) -> list[Any]:
    """Return what draws random numbers of Python and NumPy themselves in functions of classes, and in what these call.

    To read the state of such a generator takes longer than all else that is kept of a module, so it is to be done where
    a forward names it, or a function of the script that the forward calls.
    """
    found: dict[int, Any] = {}
    for function, kind in _reached_from(functions):
        found |= {id(value): value for value in _values_in(function, kind) if way_of(value) is not None}
    return list(found.values())


def changing_in(functions: Iterable[tuple[Any, type]]) -> list[tuple[Mapping[str, Any], str]]:
    """Return where generators stand, and under which names, that may be other ones later.

    Those are globals, and attributes of classes, that functions name or those that these call.
    """
    found: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = {}
    for function, kind in _reached_from(functions):
        names = names_in(function.__code__)
        holders = [(function.__globals__, function.__globals__), *((base, vars(base)) for base in kind.__mro__)]
        for owner, holder in holders:
            for name in names & holder.keys():
                if holder[name] is None or way_of(holder[name]) is not None:
                    found[id(owner), name] = holder, name
    return list(found.values())


def _reached_from(functions: Iterable[tuple[Any, type]]) -> Iterator[tuple[FunctionType, type]]:
    """Give functions of classes, and those of the script that they call."""
    waiting, seen = list(functions), set[tuple[CodeType, type]]()
    for wrapped, kind in waiting:
        function = inspect.unwrap(wrapped)
        code = getattr(function, "__code__", None)
        if code is None or (code, kind) in seen or len(seen) == MOST_FUNCTIONS:
            continue
        seen.add((code, kind))
        yield function, kind
        called = (value for value in _values_in(function, kind) if isinstance(value, FunctionType))
        waiting += [(value, kind) for value in called if not _is_of_others(value)]


@functools.cache
def names_in(code: CodeType | None) -> frozenset[str]:
    """Return the globals and attributes that a function names, or a function that is written in it."""
    if code is None:
        return frozenset()
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(code.co_names).union(*inner)


def _values_in(function: Any, kind: type) -> Iterator[Any]:
    """Yield what a function's names may mean.

    Globals, what modules hold, methods of a class, modules imported inside.
    """
    names = names_in(function.__code__)
    values = [function.__globals__[name] for name in names & function.__globals__.keys()]
    # Imported inside of a function; or another thing of that name, and then a state too much is read.
    values += [sys.modules[name] for name in names & {"random", "numpy"} & sys.modules.keys()]
    numpy = sys.modules.get("numpy")
    for value in values:
        yield value
        if numpy and value is numpy:
            yield numpy.random if "random" in names else None
        elif isinstance(value, ModuleType) and value not in (random, torch):
            yield from (vars(value)[name] for name in names & vars(value).keys())
    for base in kind.__mro__:
        yield from (vars(base)[name] for name in names & vars(base).keys())


def _is_of_others(function: FunctionType) -> bool:
    return str(function.__module__).partition(".")[0] in _OTHERS
