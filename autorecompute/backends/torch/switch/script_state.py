"""Puts the state of a script back: random numbers, objects, and weights that are written in place."""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import functools
import inspect
import numbers
import operator
import random
import sys
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from autorecompute.backends.common import tensors_in
from autorecompute.backends.torch.compiled.forms import may_compile
from autorecompute.backends.torch.find.storages import are_spread, changed_by, storage_of
from autorecompute.backends.torch.find.structure import is_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Named = tuple[str, Tensor]


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
    """Return a getter and a setter of a generator's state; ``None`` for anything else.

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
    """Return the generators of Python and NumPy that functions of classes draw from, or those that these call.

    Reading the state of such a generator takes longer than all else that is kept of a module: only those are read.
    """
    found: dict[int, Any] = {}
    for function, kind in _reached_from(functions):
        found |= {id(value): value for value in _values_in(function, kind) if way_of(value) is not None}
    return list(found.values())


def changing_in(functions: Iterable[tuple[Any, type]]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the holders and names of generators that may be replaced later: globals, and attributes of classes."""
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
        waiting += [(value, kind) for value in called if str(value.__module__).partition(".")[0] not in _OTHERS]


@functools.cache
def names_in(code: CodeType | None) -> frozenset[str]:
    """Return the globals and attributes that a function names, or a function that is written in it."""
    if code is None:
        return frozenset()
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(code.co_names).union(*inner)


def _values_in(function: Any, kind: type) -> Iterator[Any]:
    """Yield what a function's names may mean: globals, what modules hold, methods of a class, imported modules."""
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


def attributes_of(module: Module) -> dict[str, Any]:
    """Return the attributes that a module's own class has given it."""
    return {name: value for name, value in vars(module).items() if name not in TORCHS_OWN}


def attributes_of_all(
    modules: Sequence[Module],
) -> tuple[list[dict[str, Any]], dict[tuple[int, str], Tensor], list[Any]]:
    """Return the attributes of modules beside parameters, buffers and modules, as they are now.

    These are, for each module, its plain values by name, with ``UNKNOWN`` for all else; the tensors, by a module's
    place and their name; and generators of random numbers. Plain values are numbers, text, enums, tuples of such,
    generators, and copies of short containers of such, one of a container that several modules have. To keep more could
    keep a step's graph alive.
    """
    figures: list[dict[str, Any]] = []
    tensors: dict[tuple[int, str], Tensor] = {}
    generators: list[Any] = []
    copies: dict[int, Any] = {}
    for index, module in enumerate(modules):
        own = vars(module)
        plain = {name: own[name] for name in own.keys() - TORCHS_OWN}
        for name, value in plain.items():
            kind: type = type(value)
            if kind in PLAIN:
                continue
            plain[name] = _figure(value, copies)
            if is_generator(kind):
                generators.append(value)
            elif isinstance(value, Tensor):
                tensors[index, name] = value
        figures.append(plain)
    return figures, tensors, generators


def _figure(value: Any, copies: dict[int, Any]) -> Any:
    if type(value) not in CONTAINERS:
        return value if _is_plain(value) else UNKNOWN
    if id(value) not in copies:
        is_plain = len(value) <= MOST_FIGURES and all(map(_is_plain, _entries(value)))
        copies[id(value)] = copy.copy(value) if is_plain else UNKNOWN
    return copies[id(value)]


def _is_plain(value: Any) -> bool:
    kind: type = type(value)
    return kind in PLAIN or _is_fixed(kind) or (isinstance(value, tuple) and all(map(_is_plain, value)))


@functools.cache
def _is_fixed(kind: type) -> bool:
    """Tell whether values of a type refer to nothing else that matters."""
    return is_generator(kind) or issubclass(kind, numbers.Number | str | enum.Enum | torch.dtype | torch.device)


@contextlib.contextmanager
def kept(values: Iterable[Any]) -> Iterator[None]:
    """Put back afterwards what lists, dictionaries and sets among these values, and within them, hold.

    Nobody may go back through the graph of another run, and no figure of it is the training's.
    """
    copies: dict[int, tuple[Any, Any]] = {}
    waiting, entries = list(values), 0
    for value in waiting:
        if type(value) in CONTAINERS and id(value) not in copies and entries + len(value) <= MOST_ENTRIES:
            entries += len(value)
            copies[id(value)] = value, copy.copy(value)
            waiting += value.values() if isinstance(value, dict) else value
    try:
        yield
    finally:
        for container, content in copies.values():
            now, before = _entries(container), _entries(content)
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                container.clear()
                (container.update if isinstance(container, dict | set) else container.extend)(content)


def _entries(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _functions_of(module: Module) -> list[tuple[Any, type]]:
    """Return its forward, if it is the script's, and its hooks, each with the class whose methods it may call."""
    kind = type(module)
    # Where a module is intercepted, its class has a forward of ours around the script's. PyTorch's change no attribute.
    own = [] if kind.__module__.startswith("torch.") else [(inspect.unwrap(kind.forward), kind)]
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return [*own, *((hook, type(getattr(hook, "__self__", None))) for hook in hooks)]


class Generators:
    """Generators of random numbers that a forward or a hook of a model has at hand, and others that are given.

    Python's and NumPy's own are among them where a forward, or what it calls, names them.
    """

    def __init__(self, modules: Iterable[Module], others: Iterable[Any] = ()) -> None:
        modules = list(modules)
        functions = [pair for module in modules for pair in _functions_of(module)]
        values = (*within_reach(modules), *streams_in(functions), *others)
        known = {id(value): (value, way_of(value)) for value in values}
        self._known = {key: value for key, (value, way) in known.items() if way is not None}
        self._ways = [way for _, way in known.values() if way is not None]
        self._changing = changing_in(functions)

    def are_all(self, own: Iterable[Any]) -> bool:
        """Tell whether there is no other one among the modules' own, which are given, and what functions name."""
        now = [holder.get(name) for holder, name in self._changing]
        return all(id(value) in self._known for value in (*own, *now) if way_of(value) is not None)

    def states(self) -> list[Any]:
        """Return the state of each generator."""
        return [tell() for tell, _ in self._ways]

    def set(self, states: list[Any]) -> None:
        """Put them back there."""
        for (_, put), state in zip(self._ways, states, strict=True):
            put(state)


def within_reach(modules: Iterable[Module]) -> Iterator[Any]:
    """Yield what forwards and hooks of modules find without being given it: attributes, globals, closures.

    Not all globals of the script: others may be in use by another thread at this moment, such as one that loads data.
    """
    for module in modules:
        yield from attributes_of(module).values()
        for function, _ in _functions_of(module):
            yield from getattr(getattr(function, "__self__", None), "__dict__", {}).values()
            for name in names_in(getattr(function, "__code__", None)):
                yield getattr(function, "__globals__", {}).get(name)
            for cell in getattr(function, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # a cell that is empty yet
                    yield cell.cell_contents


@contextlib.contextmanager
def kept_weights(model: Module) -> Iterator[Callable[[], Iterator[Named]]]:
    """Parameters, and tensors in attributes, are afterwards as they were, whatever a forward has put or written there.

    Gives what tells those that were put or written, with their names. Of a model that ``fully_shard`` shards they stay
    as they are left: they are gathered and let go inside.
    """
    if is_sharded(model):
        yield lambda: iter(())
        return
    named = [(module, dict(module._parameters)) for module in model.modules()]
    data = [(name, tensor, tensor.detach()) for name, tensor in _tensors_of(model)]
    # The compiler would leave what it meets under a mode as it is. Fake steps write to real tensors where no fake takes
    # part: a mean in an attribute that is scaled.
    copies = _Copies(data)

    def changed() -> Iterator[Named]:
        known = {id(tensor) for _, tensor, _ in data}
        yield from ((name, tensor.data) for name, tensor in model.named_parameters() if id(tensor) not in known)
        for name, tensor, before in data:
            if name in copies.written or _place_of(tensor) != _place_of(before):
                yield name, tensor.data

    try:
        with copies if not may_compile(model) else contextlib.nullcontext():
            yield changed
    finally:
        for module, parameters in named:
            module._parameters.clear()
            module._parameters.update(parameters)
        for _, tensor, before in data:
            if _place_of(tensor) != _place_of(before):
                tensor.data = before


class _Copies(TorchDispatchMode):  # type: ignore[misc]
    """Copies tensors right before something is written to them, notes their names, and writes the copies back at last.

    Each is given as its name, the tensor, and another tensor on the same numbers.
    """

    supports_higher_order_operators = True

    def __init__(self, data: Iterable[tuple[str, Tensor, Tensor]]) -> None:
        super().__init__()
        self.written: set[str] = set()
        self._known: dict[int, list[tuple[str, Tensor, Tensor]]] = collections.defaultdict(list)
        for one in data:
            self._known[storage_of(one[-1])._cdata].append(one)
        self._restoring = contextlib.ExitStack()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if are_spread(tuple(types)):  # of a higher-order operator it is a list
            return NotImplemented
        if not isinstance(function, HigherOrderOperator) and function._schema.is_mutable:
            for written in changed_by(function, args, kwargs or {}):
                for one in self._known.pop(storage_of(written)._cdata, ()):
                    self._keep(*one)
        return function(*args, **(kwargs or {}))

    def _keep(self, name: str, tensor: Tensor, same: Tensor) -> None:
        self.written.add(name)
        if not tensor.is_inference():  # a graph of the script's that has saved it finds the numbers that it saved
            self._restoring.push(_unsafe_preserve_version_counter(tensor))
        with _disable_current_modes():  # a fake step's would make a fake of the copy
            self._restoring.callback(same.copy_, same.clone())

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        with torch.no_grad(), self._restoring:
            pass


def _tensors_of(model: Module) -> list[Named]:
    """Return the plain ones among parameters, and tensors in attributes or in containers there."""
    found = list(model.named_parameters())
    for path, module in model.named_modules():
        for name, value in attributes_of(module).items():
            if isinstance(value, Tensor) or (type(value) in {*CONTAINERS, tuple} and len(value) <= MOST_ENTRIES):
                found += ((f"{path}.{name}", tensor) for tensor in tensors_in(value))
    return [
        (name, one)
        for name, one in {id(tensor): (name, tensor) for name, tensor in found}.values()
        if type(one) in {Tensor, Parameter} and one.layout is torch.strided
    ]


def _place_of(tensor: Tensor) -> tuple[object, ...]:
    storage = storage_of(tensor)._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
