"""Calls of chosen modules run through functions of ours, and the modules themselves stay as they are.

The class of a module gets a ``forward`` that asks a weak table whether this very module is intercepted. Nothing is
written on the module: a copy of it (``copy.deepcopy``, ``torch.save``) is a plain module that trains with its own
weights, where a ``forward`` set on the instance would go on running the original's. A class is put back as it was when
the last of its modules is released, so that with nothing intercepted a step costs what it always cost.

Asked for its ``forward``, the class itself still gives its own: transformers 5 checkpoints a layer only where
``type(self).forward`` is the function that it put there.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.nn import Module


class Around(Protocol):
    """Runs a module's forward, or something in its place."""

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the call of the module returns.

        Args:
            forward: The module's own forward, bound, or the next of ours that is around it.
            module: The module that is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """


_AROUND: WeakIdKeyDictionary = WeakIdKeyDictionary()
_END: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what is done once a module is released or gone
_MODULES: collections.Counter[type] = collections.Counter()


def can_be_intercepted(module: Module) -> bool:
    """Tell whether a call of the module looks its forward up on the class.

    Not where the instance has one of its own.
    """
    return "forward" not in vars(module) and callable(getattr(type(module), "forward", None))


def around_of(module: Module) -> tuple[Around, ...]:
    """Return what is around the module now, the outermost first."""
    around: tuple[Around, ...] = _AROUND.get(module, ())
    return around


def put_around(module: Module, arounds: Iterable[Around]) -> None:
    """Have every call of the module run through these, the outermost first, in place of what was around it."""
    chain = tuple(arounds)
    if not chain:
        release(module)
        return
    if module not in _AROUND:
        _intercept(type(module))
        _END[module] = weakref.finalize(module, _restore, type(module))
        _END[module].atexit = False
    _AROUND[module] = chain


def release(module: Module) -> None:
    """Have the module called plainly again."""
    if _AROUND.pop(module, None) is not None:
        _END.pop(module)()


def _intercept(kind: type) -> None:
    _MODULES[kind] += 1
    if not isinstance(vars(kind).get("forward"), _Forward):
        kind.forward = _Forward(kind)  # type: ignore[attr-defined]


def _restore(kind: type) -> None:
    _MODULES[kind] -= 1
    ours = vars(kind).get("forward")
    if _MODULES[kind] > 0 or not isinstance(ours, _Forward):  # somebody has replaced it since: what they put stays
        return
    if ours.own is None:
        del kind.forward  # type: ignore[attr-defined]
    else:
        kind.forward = ours.own  # type: ignore[attr-defined]


class _Forward:
    """A class's ``forward`` that runs through what is around a module, where a module is asked for it.

    Args:
        kind: The class.

    Attributes:
        own: What the class had; ``None`` where it inherited it.
    """

    def __init__(self, kind: type) -> None:
        self.own = vars(kind).get("forward")
        self._original: Callable[..., Any] = kind.forward  # type: ignore[attr-defined]
        self._run = _forward_of(kind, self._original)

    def __get__(self, module: Module | None, kind: type | None = None) -> Callable[..., Any]:
        """Return the class's own function, or the module's bound one."""
        return self._original if module is None else types.MethodType(self._run, module)


def _forward_of(kind: type, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        # A subclass that calls super().forward() comes here a second time: it is intercepted on its own class alone.
        arounds = _AROUND.get(self) if type(self) is kind else None
        if arounds is None:
            return original(self, *args, **kwargs)
        call = functools.partial(original, self)
        for around in reversed(arounds):
            call = functools.partial(around, call, self)
        return call(*args, **kwargs)

    return forward
