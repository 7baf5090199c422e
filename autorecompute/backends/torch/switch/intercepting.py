"""Has calls of modules, and of attention, run through something else."""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.nn import Module


Around = Callable[..., Any]
"""Runs a module's forward, or something in its place: ``around(forward, module, *args, **kwargs)``.

The forward is the module's own, bound, or the next of ours that is around it.
"""

_AROUND: WeakIdKeyDictionary = WeakIdKeyDictionary()
_END: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what is done once a module is released or gone
_MODULES: collections.Counter[type] = collections.Counter()


def can_be_intercepted(module: Module) -> bool:
    """Tell whether a call of the module looks its forward up on the class, as the instance has none of its own."""
    return "forward" not in vars(module) and callable(getattr(type(module), "forward", None))


def around_of(module: Module) -> tuple[Around, ...]:
    """Return the wrappers of the module, the outermost first."""
    return tuple(_AROUND.get(module, ()))


def put_around(module: Module, arounds: Iterable[Around]) -> list[Around]:
    """Have every call of the module run through these, the outermost first, in place of what was around it.

    Return the list that decides from then on, until the module is released.
    """
    chain = list(arounds)
    if not chain:
        release(module)
        return chain
    if (known := _AROUND.get(module)) is not None:
        known[:] = chain
        return cast("list[Around]", known)
    kind: Any = type(module)
    _MODULES[kind] += 1
    if not isinstance(vars(kind).get("forward"), _Forward):
        kind.forward = _Forward(kind)
    _END[module] = weakref.finalize(module, _restore, kind)
    _END[module].atexit = False
    _AROUND[module] = chain
    return chain


def plainly(forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
    """Run a module's forward as it is; an ``Around`` for a module that will have another one again."""
    return forward(*args, **kwargs)


def release(module: Module) -> None:
    """Have the module called plainly again."""
    if _AROUND.pop(module, None) is not None:
        _END.pop(module)()


def _restore(kind: Any) -> None:
    _MODULES[kind] -= 1
    ours = vars(kind).get("forward")
    if _MODULES[kind] == 0 and isinstance(ours, _Forward):  # else somebody has replaced it since: what they put stays
        if ours.own is None:
            del kind.forward
        else:
            kind.forward = ours.own


class _Forward:
    """A class's ``forward`` that runs through what is around a module; ``own`` is ``None`` of one that it inherited."""

    def __init__(self, kind: Any) -> None:
        self.own = vars(kind).get("forward")
        self._original = original = kind.forward

        @functools.wraps(original)
        def run(self: Module, *args: Any, **kwargs: Any) -> Any:
            # A subclass that calls super().forward() comes here a second time: it is intercepted on its own class
            # alone.
            arounds = _AROUND.get(self) if type(self) is kind else None
            if arounds is None:
                return original(self, *args, **kwargs)
            call = functools.partial(original, self)
            for around in reversed(arounds):
                call = functools.partial(around, call, self)
            return call(*args, **kwargs)

        self._run = run

    def __get__(self, module: Module | None, kind: type | None = None) -> Callable[..., Any]:
        """Return the class's own function, or the module's bound one."""
        return self._original if module is None else types.MethodType(self._run, module)


ATTENTION = "scaled_dot_product_attention"
ORIGINAL = "__autorecompute_original__"


_ATTENTION = threading.local()
"""Functions of this thread: ``call``, which its calls go through, and ``attend``, which answers in PyTorch's place."""


def around_attention(call: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``forward`` while every call of attention goes through ``call(attention, *args, **kwargs)``."""
    before, _ATTENTION.call = getattr(_ATTENTION, "call", None), call
    try:
        return forward(*args, **kwargs)
    finally:
        _ATTENTION.call = before


@contextlib.contextmanager
def attention_by(attend: Callable[..., Any]) -> Iterator[None]:
    """Have calls of attention in this thread be answered by another function instead of PyTorch's."""
    was_on, before = hasattr(getattr(functional, ATTENTION), ORIGINAL), getattr(_ATTENTION, "attend", None)
    intercept_attention(on=True)
    _ATTENTION.attend = attend
    try:
        yield
    finally:
        _ATTENTION.attend = before
        intercept_attention(on=was_on)


def intercept_attention(*, on: bool) -> None:
    """Have ``torch.nn.functional``'s attention ask what to go through, or outside of :func:`attention_by` be plain."""
    current = getattr(functional, ATTENTION)
    original = getattr(current, ORIGINAL, None)
    if on and original is None:
        setattr(functional, ATTENTION, _asking(current))
    elif not on and original is not None and getattr(_ATTENTION, "attend", None) is None:
        setattr(functional, ATTENTION, original)


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def attention(*args: Any, **kwargs: Any) -> Any:
        call, attend = getattr(_ATTENTION, "call", None), getattr(_ATTENTION, "attend", None) or original
        return attend(*args, **kwargs) if call is None else call(attend, *args, **kwargs)

    setattr(attention, ORIGINAL, original)
    return attention
