"""What ORTModule took from the first training call of a module for good, and how a later call differs from it.

ORTModule exports what that call does and runs the graph from then on: the module's Python code runs no more. Which
arguments there were, flags, attributes, weights and parts stay as they were then. Numbers that the graph calculates
with are its inputs, and may change as tensors may.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

NUMBERS = (bool, int, float)
PLAIN = (*NUMBERS, str)
GONE = object()
"""Stands for what a module has not."""

IS_CALLED = "_call_impl"
"""What PyTorch reads of a module whenever it is called."""

PLACES = ("_parameters", "_modules", "_buffers")
"""Where a module has what is not among its own attributes."""

LONGEST_VALUE = 60


class Kind(str):
    """What is compared of an argument that is no plain value."""

    __slots__ = ()


NUMBER = Kind("a number")


class Used(NamedTuple):
    """Something that the module's code has used.

    Attributes:
        name: What users call it.
        read: Reads it again.
        value: What it was at first.
    """

    name: str
    read: Callable[[], Any]
    value: Any

    @property
    def is_unchanged(self) -> bool:
        """Whether it is the same object, or an equal plain value."""
        now = self.read()
        if now is self.value:
            return True
        return type(now) is type(self.value) and isinstance(now, (*PLAIN, tuple)) and bool(now == self.value)


class FirstCall:
    """Follows the first training call of a module, and holds later ones against it.

    Args:
        module: What is called.
    """

    def __init__(self, module: Any) -> None:
        self._name, self._forward = type(module).__name__, inspect.signature(module.forward)
        self._parts = {id(part): (path, part) for path, part in module.named_modules()}
        self._called: set[int] = set()
        self._used: dict[str, Used] = {}
        self._inputs: Collection[str] = ()
        self._arguments: Mapping[str, Any] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Notes meanwhile which attributes, weights and parts the module's code reads."""
        from torch.nn import Module

        read = object.__getattribute__
        own = frozenset(vars(Module())) - {"training"}

        def note_and_read(part: Any, name: str) -> Any:
            if id(part) in self._parts and name not in own:
                self._note(part, name)
            return read(part, name)

        Module.__getattribute__ = note_and_read
        try:
            yield
        finally:
            del Module.__getattribute__

    def keep(self, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Collection[str]) -> None:
        """Ends the first call. What it has changed itself, such as a counter, is not compared.

        Args:
            args: Its arguments.
            kwargs: Its keyword arguments.
            inputs: Names of the graph's inputs.
        """
        for path, part in self._parts.values():
            self._note_children(path, part)
        self._inputs = frozenset(inputs)
        self._arguments = self._describe(args, kwargs)
        self._forget_changes(set(self._used))

    @contextmanager
    def forgiving(self) -> Iterator[None]:
        """Compares nothing any more that the module's own code changes meanwhile, in PyTorch."""
        unchanged = {name for name, used in self._used.items() if used.is_unchanged}
        yield
        self._forget_changes(unchanged)

    def difference(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What is not as it was in the first call, in words; empty where no change is known."""
        before, now = self._arguments, self._describe(args, kwargs)
        if now != before:
            name = next(name for name in (*now, *before) if now.get(name) != before.get(name))
            return self._explain(f"argument '{name}'", before.get(name), now.get(name))
        changed = next((used for used in self._used.values() if not used.is_unchanged), None)
        return "" if changed is None else self._explain(changed.name, changed.value, changed.read())

    def _note(self, part: Any, name: str) -> None:
        if name == IS_CALLED:
            self._called.add(id(part))
            return
        path = _join(self._parts[id(part)][0], name)
        if path not in self._used and _is_compared(value := _read(part, name)):
            self._used[path] = Used(f"'{path}'", partial(_read, part, name), value)

    def _note_children(self, path: str, part: Any) -> None:
        """Parts that were called have been used, however the module's code got hold of them."""
        from torch.nn import ModuleDict, ModuleList, Sequential

        children = part._modules  # noqa: SLF001
        called = [name for name, child in children.items() if id(child) in self._called]
        for name in called:
            self._note(part, name)
        if called and isinstance(part, Sequential | ModuleList | ModuleDict):
            inside = f"what is in '{path}'" if path else "what is in the whole"
            self._used[f"{path}*"] = Used(inside, partial(tuple, children), tuple(children))

    def _forget_changes(self, names: Collection[str]) -> None:
        for name in names:
            if not self._used[name].is_unchanged:
                del self._used[name]

    def _describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What is compared of each argument, under the name that ORTModule gives it."""
        bound = self._forward.bind(*args, **kwargs)
        bound.apply_defaults()
        rest = [one.name for one in self._forward.parameters.values() if one.kind is one.VAR_KEYWORD]
        named = {**bound.arguments, **(bound.arguments[rest[0]] if rest else {})}
        found = [leaf for name, value in named.items() if name not in rest for leaf in _leaves(name, value)]
        return {name: NUMBER if name in self._inputs and isinstance(value, NUMBERS) else value for name, value in found}

    def _explain(self, what: str, before: Any, now: Any) -> str:
        return f"{what} of {self._name} was {_word(before)} in the first training call and is {_word(now, before)} now"


def _read(part: Any, name: str) -> Any:
    """What a module holds under a name: an attribute, a part or a weight."""
    # Read before every step, for all that is compared.
    state = object.__getattribute__(part, "__dict__")
    if name in state:
        return state[name]
    for place in PLACES:
        if name in (held := state.get(place, ())):
            return held[name]
    return GONE


def _is_compared(value: Any) -> bool:
    from torch import Tensor
    from torch.nn import Module

    return value is None or isinstance(value, (*PLAIN, Tensor, Module))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values of an argument; what is ``None`` is none, as what is not given."""
    from torch import Tensor

    if isinstance(value, PLAIN):
        yield name, value
    elif isinstance(value, Tensor):
        yield name, Kind(f"a tensor of {value.dim()} dimensions in {str(value.dtype).removeprefix('torch.')}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}_{key}", item)
    elif isinstance(value, Sequence):
        for place, item in enumerate(value):
            # Plain values in a list, such as names of files, are those of samples.
            if not (isinstance(value, list) and isinstance(item, PLAIN)):
                yield from _leaves(f"{name}_{place}", item)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _word(value: Any, other: Any = GONE) -> str:
    if value is None or isinstance(value, (*PLAIN, tuple)):
        text = str(value) if isinstance(value, Kind) else repr(value)
        return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
    if value is GONE:
        return "gone"
    return f"{'another' if type(value) is type(other) else 'a'} {type(value).__name__}"
