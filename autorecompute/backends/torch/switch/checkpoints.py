"""Checkpoints calls of modules, and of the attention inside of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from autorecompute.backends.common import tensors_in, with_leaves
from autorecompute.backends.torch.check.recompute_check import comparing
from autorecompute.backends.torch.find.own_checkpoints import as_ours
from autorecompute.backends.torch.switch.intercepting import around_attention
from autorecompute.backends.torch.switch.module_state import Before, modes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch._ops import OpOverload
    from torch.nn import Module

    from autorecompute.backends.torch.check.recompute_check import Watch
    from autorecompute.backends.torch.switch.module_state import Place
    from autorecompute.backends.torch.switch.script_state import Generators

    Context = contextlib.AbstractContextManager[object]


GROWING, PAIR = "DynamicCache", "EncoderDecoderCache"
"""Classes of Transformers: one that begins empty and grows, and two of them for a decoder that reads an encoder. Other
caches hold their memory from the start, or move it, and are left alone."""

PARTS = ("self_attention_cache", "cross_attention_cache")
INDEX = "layer_idx"
"""Under this name an attention of Transformers knows its place in a cache."""


def has_cache(values: Iterable[Any]) -> bool:
    """Tell whether a key-value cache is among these arguments."""
    return any(map(_is_cache, values))


def can_have_its_own(module: Module, values: Iterable[Any]) -> bool:
    """Tell whether the module may write to another cache than those among its arguments, if there are any.

    It may where they grow and hold nothing of its layers yet: what it reads is then what it wrote in the same call.
    """
    caches = [part for value in values if _is_cache(value) for part in _parts_of(value)]
    if not caches:
        return True
    places = {getattr(inner, INDEX, None) for inner in module.modules()} - {None}
    is_growing = all(type(cache).__name__ == GROWING for cache in caches)
    return bool(places) and is_growing and not any(cache.get_seq_length(at) for cache in caches for at in places)


def with_its_own(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a forward that writes to empty caches, new ones in each call, and its arguments without those given."""
    if not has_cache((*args, *kwargs.values())):
        return forward, tuple(args), dict(kwargs)

    @functools.wraps(forward)
    def run(*given: Any, **named: Any) -> Any:
        return forward(*map(_emptied, given), **{name: _emptied(value) for name, value in named.items()})

    return run, tuple(map(_emptied, args)), {name: _emptied(value) for name, value in kwargs.items()}


def _is_cache(value: Any) -> bool:
    if value is None or isinstance(value, Tensor):
        return False
    return any("Cache" in kind.__name__ for kind in type(value).__mro__)


def _parts_of(cache: Any) -> list[Any]:
    return [getattr(cache, part) for part in PARTS] if type(cache).__name__ == PAIR else [cache]


def _emptied(value: Any) -> Any:
    """Return an empty cache of the same kind; what is none stays itself."""
    if not _is_cache(value):
        return value
    return type(value)(*map(_emptied, _parts_of(value))) if type(value).__name__ == PAIR else type(value)()


_ATEN = torch.ops.aten
MATMULS = (_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN.convolution.default)

_PAST_HOOKS: dict[str, Any] = dict.fromkeys(
    {"respect_saved_tensors_hooks"} & inspect.signature(checkpoint).parameters.keys(), False
)
"""Lets a block's kept tensors bypass the script's own hooks, as before torch 2.14, which warns if nobody says so."""


def keeping(operators: Iterable[OpOverload]) -> Callable[[], tuple[Context, Context]]:
    """Return a ``context_fn`` for ``checkpoint`` under which the results of these operators are kept.

    None may draw random numbers: it does not run again, and those after it would draw others than in the forward pass.
    """
    kept = list(operators)

    def contexts() -> tuple[Context, Context]:
        first, second = create_selective_checkpoint_contexts(kept)
        for mode in (first, second):  # where torch has made them: versions differ in what its modes are made of
            mode.__class__ = _uncast(type(mode))  # type: ignore[arg-type]
        return first, second

    return contexts


@functools.cache
def _uncast(kind: type) -> type:
    """Return a mode that keeps results, and sees no casts.

    Autocast casts a weight once for several calls of a model: the block's second call finds it cast, and has to cast it
    again when it is run again.
    """

    def dispatch(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _ATEN._to_copy.default:
            return function(*args, **(kwargs or {}))
        return kind.__torch_dispatch__(self, function, types, args, kwargs)  # type: ignore[attr-defined]

    return type(kind.__name__, (kind,), {"__torch_dispatch__": dispatch})


def checkpointed(  # noqa: PLR0913  (a call, and what is known of it)
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    context_fn: Callable[[], tuple[Context, Context]] = noop_context_fn,
    *,
    watch: Watch,
    module: Module | None = None,
) -> Any:
    """Call a function under activation checkpointing: only the tensors in its arguments are kept for the backward pass.

    Those in lists, mappings and dataclasses are given to ``checkpoint`` one by one, too: it looks for the device whose
    random numbers it has to draw again at tensors that it is given by position alone.

    A tensor that is given twice is the same object in both places when the call runs again. Code asks for that:
    ``multi_head_attention_forward`` takes another path where ``query is key``. Lists are as they were at the call,
    whatever was appended to them since.

    The contexts are those of the first run and of the later ones. Where a module is called, it is given, too.
    """
    tensors = list({id(tensor): tensor for tensor in tensors_in((args, kwargs))}.values())
    marks = {id(tensor): object() for tensor in tensors}  # in place of the tensors, which only ``checkpoint`` keeps
    given = [(tuple(args), kwargs)]  # for the first run, which may write to what it is given
    pattern = with_leaves(given[0], lambda leaf: marks.get(id(leaf), leaf))

    def run(*kept: Tensor) -> Any:
        if given:
            positional, named = given.pop()
        else:
            marked = dict(zip(map(id, marks.values()), kept, strict=True))
            positional, named = with_leaves(pattern, lambda leaf: marked.get(id(leaf), leaf))
        return call(*positional, **named)

    weights = [] if module is None else list(module.parameters())
    # Frozen layers, other modes, types or sizes: what a call has not had before is compared in that call.
    inputs = tuple([(one.requires_grad, one.dtype, one.shape) for one in tensors])
    modes = None if module is None else (modes_of(module), tuple([one.requires_grad for one in weights]))
    is_compared = watch.begins((inputs, modes))
    with comparing(watch, (*tensors, *weights)) if is_compared else contextlib.nullcontext("default") as check:
        known = {**_PAST_HOOKS, "context_fn": context_fn, "determinism_check": check}
        return checkpoint(as_ours(run), *tensors, use_reentrant=False, **known)


class Checkpoint:
    """Checkpoints the calls of one module, but for the results of some operators; an ``Around`` for it.

    The watch compares what is made again, and tells when that is to end.
    """

    def __init__(self, module: Module, watch: Watch, operators: Sequence[OpOverload] = ()) -> None:
        self._watch = watch
        self._contexts = keeping(operators) if operators else noop_context_fn
        self._modules = [weakref.ref(inner) for inner in module.modules()]  # what is around a module must not keep it
        self._written: set[Place] | None = None  # unknown before the first call
        self._generators: Generators | None = None

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call the module under activation checkpointing."""
        is_plain = not torch.is_grad_enabled() or self._watch.is_taken_back
        if is_plain or not can_have_its_own(module, (*args, *kwargs.values())):
            return forward(*args, **kwargs)
        forward, args, kwargs = with_its_own(forward, args, kwargs)
        before = Before(self._modules_of(module), self._written, self._generators)
        self._generators = before.generators

        def contexts() -> tuple[Context, Context]:
            first, before.once = self._contexts()
            return first, before

        result = checkpointed(forward, args, kwargs, contexts, watch=self._watch, module=module)
        if (written := before.forget_unwritten()) is not None:
            self._written = written | (self._written or set())
        return result

    def _modules_of(self, module: Module) -> list[Module]:
        """Return all within it; of others than in its last call nothing is known."""
        modules = list(module.modules())
        if [reference() for reference in self._modules] != modules:
            self._modules = [weakref.ref(inner) for inner in modules]
            self._written = self._generators = None
        return modules


def attention_checkpoint(watch: Watch) -> Callable[..., Any]:
    """Return an ``Around`` that checkpoints the attention that a module calls, compared and ended by its watch."""

    def again(attention: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or watch.is_taken_back:
            return attention(*args, **kwargs)
        return checkpointed(attention, args, kwargs, watch=watch)

    def around(forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        return around_attention(again, forward, *args, **kwargs)

    return around
