"""Calls of chosen modules run through functions of ours, and the modules themselves stay as they are.

The class of a module gets a ``forward`` that asks a weak table whether this very module is intercepted. Nothing is
written on the module: a copy of it (``copy.deepcopy``, ``torch.save``) is a plain module that trains with its own
weights, where a ``forward`` set on the instance would go on running the original's. A class is put back as it was when
the last of its modules is released, so that with nothing intercepted a step costs what it always cost.
"""

from __future__ import annotations

import collections
import functools
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.nn import Module

ORIGINAL = "__autorecompute_original__"


class Around(Protocol):
    """Runs a module's forward, or something in its place."""

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """What the call of the module returns.

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
    """Whether a call of the module looks its forward up on the class: not where the instance has one of its own."""
    return "forward" not in vars(module) and callable(getattr(type(module), "forward", None))


def around_of(module: Module) -> tuple[Around, ...]:
    """What is around the module now, the outermost first."""
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
    if _is_ours(vars(kind).get("forward")):
        return
    original = kind.forward  # type: ignore[attr-defined]
    replacement = _forward_of(kind, getattr(original, ORIGINAL, original))
    vars(replacement)["is_inherited"] = "forward" not in vars(kind)
    kind.forward = replacement  # type: ignore[attr-defined]


def _restore(kind: type) -> None:
    _MODULES[kind] -= 1
    ours = vars(kind).get("forward")
    if _MODULES[kind] > 0 or not _is_ours(ours):  # somebody has replaced it since: what they put there stays
        return
    if vars(ours)["is_inherited"]:
        del kind.forward  # type: ignore[attr-defined]
    else:
        kind.forward = getattr(ours, ORIGINAL)  # type: ignore[attr-defined]


def _is_ours(forward: object) -> bool:
    return hasattr(forward, ORIGINAL)


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

    setattr(forward, ORIGINAL, original)
    return forward
