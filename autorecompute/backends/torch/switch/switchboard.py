"""Switches recompute on and off in the calls of modules: checkpoints of a module, or of the attention inside it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn
from torch.utils.weak import WeakIdKeyDictionary

from autorecompute.backends.torch.check.recompute_check import RecomputeCheck, SavedTensors, known_to_torch
from autorecompute.backends.torch.find.own_checkpoints import as_ours
from autorecompute.backends.torch.find.storages import tensors_in, with_leaves
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.forecast.records import DROP, EVERY_2ND, KEEP_MATMUL
from autorecompute.backends.torch.switch.module_state import Before, modes_of
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.check.recompute_check import Watch
    from autorecompute.backends.torch.switch.module_state import Place
    from autorecompute.backends.torch.switch.rewriting import Program
    from autorecompute.backends.torch.switch.script_state import Generators

    Context = contextlib.AbstractContextManager[object]


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
    around: tuple[Around, ...] = _AROUND.get(module, ())
    return around


def put_around(module: Module, arounds: Iterable[Around]) -> None:
    """Have every call of the module run through these, the outermost first, in place of what was around it."""
    chain = tuple(arounds)
    if not chain:
        release(module)
        return
    if module not in _AROUND:
        kind: Any = type(module)
        _MODULES[kind] += 1
        if not isinstance(vars(kind).get("forward"), _Forward):
            kind.forward = _Forward(kind)
        _END[module] = weakref.finalize(module, _restore, kind)
        _END[module].atexit = False
    _AROUND[module] = chain


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

    Raises:
        ValueError: One of them draws random numbers. A kept operator does not run again, so the ones after it would
            draw other numbers than in the forward pass, and the gradients would be wrong without a word.
    """
    kept = list(operators)
    random = [str(operator) for operator in kept if torch.Tag.nondeterministic_seeded in operator.tags]
    if random:
        raise ValueError(f"results of operators that draw random numbers cannot be kept: {', '.join(random)}")

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
    saved = SavedTensors(watch, (*tensors, *weights)) if watch.begins((inputs, modes)) else None
    with known_to_torch(saved) as check:
        known = {**_PAST_HOOKS, "context_fn": context_fn, "determinism_check": check}
        result = checkpoint(as_ours(run), *tensors, use_reentrant=False, **known)
    if saved is not None:
        saved.end()
    return result


class Checkpoint:
    """Checkpoints the calls of one module, but for the results of some operators; an ``Around`` for it.

    The watch compares what is made again, and tells when that is to end.

    Raises:
        ValueError: One of the operators draws random numbers.
    """

    def __init__(self, module: Module, watch: Watch, operators: Iterable[OpOverload] = ()) -> None:
        kept = tuple(operators)
        self._watch = watch
        self._contexts = keeping(kept) if kept else noop_context_fn
        self._modules = [weakref.ref(inner) for inner in module.modules()]  # what is around a module must not keep it
        self._written: set[Place] | None = None  # unknown before the first call
        self._generators: Generators | None = None

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call the module under activation checkpointing."""
        values = (*args, *kwargs.values())
        if not torch.is_grad_enabled() or self._watch.is_taken_back or not can_have_its_own(module, values):
            return forward(*args, **kwargs)
        if has_cache(values):
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


def attention_checkpoint(watch: Watch) -> Callable[..., Any]:
    """Return an ``Around`` that checkpoints the attention that a module calls, compared and ended by its watch."""

    def again(attention: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or watch.is_taken_back:
            return attention(*args, **kwargs)
        return checkpointed(attention, args, kwargs, watch=watch)

    def around(forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        return around_attention(again, forward, *args, **kwargs)

    return around


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


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in a model whose activations can be made again, with all its occurrences.

    Attributes:
        occurrences: Paths of the modules that are switched, in the order of the model. For ``drop`` these are the units
            whose graph is rewritten.
        kept: Operators whose results ``keep_matmul`` keeps.
        attention: True if ``checkpoint`` means the attention that the modules call, not their whole calls.
    """

    name: str
    options: tuple[str, ...]
    occurrences: tuple[str, ...]
    kept: tuple[OpOverload, ...] = MATMULS
    attention: bool = False


class Effect(NamedTuple):
    """Effect of one occurrence of a site: what is done at the module with this path."""

    site: str
    option: str
    path: str


class Switchboard:
    """All that can be switched in one model.

    Where choices meet, the outermost checkpoint wins: with 3 of 12 blocks checkpointed and all their MLPs too, the MLPs
    of the other 9 are. What an operator's site would drop inside a checkpointed module is kept as it is.

    Nothing is written on the model or on its modules. For each unit that has operators to drop, its program is given.

    Attributes:
        is_exact: True if gradients on a CPU are those without recompute bit for bit.
        check: Holds what is made again against what it replaces.
    """

    is_exact = True

    def __init__(self, model: Module, sites: Iterable[Site], rewriters: Mapping[str, Program] | None = None) -> None:
        self.sites: Mapping[str, Site] = {site.name: site for site in sites}
        self._rewriters = rewriters or {}
        paths = {path for site in self.sites.values() for path in site.occurrences}
        # Whoever keeps the switches must not keep the model with them.
        self._modules = {path: weakref.ref(model.get_submodule(path)) for path in sorted(paths)}
        self._checkpoints: dict[tuple[str, str], Checkpoint] = {}
        self.check = RecomputeCheck(model)
        self._on: list[str] = []
        self.choices: frozenset[Choice] = frozenset()
        self.effects: frozenset[Effect] = frozenset()

    def resolve(self, choices: Iterable[Choice]) -> frozenset[Effect]:
        """Return the effects of the choices; equal for choices that do the same.

        Raises:
            ValueError: A choice names an unknown site or option, or two choices are for one site.
        """
        chosen = sorted(choices, key=str)
        repeated = [site for site, times in collections.Counter(choice.site for choice in chosen).items() if times > 1]
        if repeated:
            raise ValueError(f"there are two choices for {repeated[0]}")
        for choice in chosen:
            site = self.sites.get(choice.site)
            if site is None:
                raise ValueError(f"the model has no site {choice.site}")
            if choice.option not in site.options:
                raise ValueError(f"{site.name} has no option {choice.option}; it has {', '.join(site.options)}")
        effects = [Effect(choice.site, choice.option, path) for choice in chosen for path in self.paths(choice)]
        return frozenset(effect for effect in effects if not any(self._hides(other, effect) for other in effects))

    def paths(self, choice: Choice) -> list[str]:
        """Paths of the modules at which a choice is on, whatever covers them."""
        paths = self.sites[choice.site].occurrences[: choice.count]
        return list(paths[::2] if choice.option == EVERY_2ND else paths)

    def _hides(self, winner: Effect, effect: Effect) -> bool:
        """Tell whether one effect leaves nothing to do for the other."""
        if winner is effect or winner.option == DROP:
            return False
        if effect.option == DROP:
            inside = winner.site.replace(winner.site.partition("/")[0], winner.path, 1)
            return any(is_within(path, inside) for path in self._rewriters[effect.path].touched(effect.site))
        is_deeper = effect.path != winner.path or self.sites[effect.site].attention
        return is_deeper and not self.sites[winner.site].attention and is_within(effect.path, winner.path)

    def overlaps(self) -> frozenset[tuple[tuple[str, str], tuple[str, str]]]:
        """Pairs of a site with its option, of which the first leaves nothing of the second where both are."""
        wholes = [Choice(name, option) for name, site in self.sites.items() for option in site.options]
        pairs = ((one, other) for one in wholes for other in wholes if one.site != other.site)
        return frozenset(
            ((one.site, one.option), (other.site, other.option))
            for one, other in pairs
            if not any(effect.site == other.site for effect in self.resolve((one, other)))
        )

    def set(self, choices: Iterable[Choice]) -> None:
        """Have the next forward pass do what these choices say and nothing else.

        Call it between two steps: a graph that exists already is gone through as it was made.

        Raises:
            ValueError: The choices make no sense; what was on stays on.
        """
        chosen = frozenset(choices)
        effects = self.resolve(chosen)
        for path in self._on:
            if (module := self._modules[path]()) is not None:
                release(module)
        intercept_attention(on=any(self.sites[effect.site].attention for effect in effects))
        arounds = self._arounds(effects)
        for path, chain in arounds.items():
            if (module := self._modules[path]()) is not None:
                put_around(module, chain)
        self._on = list(arounds)
        self.choices, self.effects = chosen, effects
        self.check.switch(chosen)

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Have inside what is set on, for runs that are no steps of the training, and behind it what was on before."""
        before = self.choices
        with self.check.paused():
            try:
                yield
            finally:
                self.set(before)

    def _arounds(self, effects: Iterable[Effect]) -> dict[str, list[Around]]:
        """Return the wrappers of each module, the outermost first."""
        dropped: dict[str, set[str]] = collections.defaultdict(set)
        inner: dict[str, list[Around]] = collections.defaultdict(list)
        for effect in effects:
            if effect.option == DROP:
                dropped[effect.path].add(effect.site)
            elif self.sites[effect.site].attention:
                inner[effect.path].append(attention_checkpoint(self.check.watch(effect.site, effect.path)))
            else:
                inner[effect.path].insert(0, self._checkpoint(effect))
        outer = {
            path: self._rewriters[path].around({site: self.check.watch(site, path) for site in sorted(sites)})
            for path, sites in dropped.items()
        }
        return {path: [*([outer[path]] if path in outer else []), *inner[path]] for path in {*outer, *inner}}

    def _checkpoint(self, effect: Effect) -> Checkpoint:
        key = (effect.path, effect.option)
        if key not in self._checkpoints:
            operators = self.sites[effect.site].kept if effect.option == KEEP_MATMUL else ()
            module = self._modules[effect.path]()
            assert module is not None, "a model that is gone has nothing to switch"
            self._checkpoints[key] = Checkpoint(module, self.check.watch(effect.site, effect.path), operators)
        return self._checkpoints[key]
