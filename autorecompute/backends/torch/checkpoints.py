"""Module calls that keep their inputs alone and run again in the backward pass, to the same bits."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from autorecompute.backends.torch.key_values import can_have_its_own, has_cache, with_its_own
from autorecompute.backends.torch.script_state import MISSING, Generators, figures_of, is_torchs, kept_contents
from autorecompute.backends.torch.storages import tensors_in, with_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from torch import Tensor
    from torch.nn import Module

    Context = contextlib.AbstractContextManager[object]
    _Place = tuple[int, str]  # a module's place in a list, and a buffer's name in it

_ATEN = torch.ops.aten
MATMULS = (_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN.convolution.default)

SMALL = 2**16
"""A buffer of so many bytes is copied before each call; a larger one if it was written in an earlier call."""

_FIRST_WRITTEN = (
    "a large buffer of a checkpointed module was first written in a later call than the first one: in this step the "
    "module is made again with what was written. From the next step on it is made again as it was"
)


def keeping(operators: Iterable[torch._ops.OpOverload]) -> Callable[[], tuple[Context, Context]]:
    """A ``context_fn`` for ``checkpoint`` under which the results of these operators are kept.

    Raises:
        ValueError: One of them draws random numbers. A kept operator does not run again, so the ones after it would
            draw other numbers than in the forward pass, and the gradients would be wrong without a word.
    """
    kept = list(operators)
    random = [str(operator) for operator in kept if torch.Tag.nondeterministic_seeded in operator.tags]
    if random:
        raise ValueError(f"results of operators that draw random numbers cannot be kept: {', '.join(random)}")
    return functools.partial(create_selective_checkpoint_contexts, kept)


def checkpointed(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    context_fn: Callable[[], tuple[Context, Context]] = noop_context_fn,
) -> Any:
    """What the call returns; of what it saves for the backward pass only the tensors in its arguments are kept.

    Those in lists, mappings and dataclasses are given to ``checkpoint`` one by one, too: it looks for the device whose
    random numbers it has to draw again at tensors that it is given by position alone.

    A tensor that is given twice is the same object in both places when the call runs again. Code asks for that:
    ``multi_head_attention_forward`` takes another path where ``query is key``. Lists are as they were at the call,
    whatever was appended to them since.
    """
    tensors = list({id(tensor): tensor for tensor in tensors_in((args, kwargs))}.values())
    slots = {id(tensor): _Slot(place) for place, tensor in enumerate(tensors)}
    given = [(tuple(args), kwargs)]  # for the first run, which may write to what it is given
    pattern = with_leaves(given[0], lambda leaf: slots.get(id(leaf), leaf))

    def run(*kept: Tensor) -> Any:
        def filled(leaf: Any) -> Any:
            return kept[leaf.place] if isinstance(leaf, _Slot) else leaf

        positional, named = given.pop() if given else with_leaves(pattern, filled)
        return call(*positional, **named)

    return checkpoint(run, *tensors, use_reentrant=False, context_fn=context_fn)


class _Slot:
    """In place of a tensor among arguments: which one of those that were given."""

    def __init__(self, place: int) -> None:
        self.place = place


class Checkpoint:
    """Checkpoints the calls of one module; an ``Around`` for it.

    Args:
        module: The module that is intercepted.
        operators: Operators whose results are kept.

    Raises:
        ValueError: One of the operators draws random numbers.
    """

    def __init__(self, module: Module, operators: Iterable[torch._ops.OpOverload] = ()) -> None:
        kept = tuple(operators)
        self._contexts = keeping(kept) if kept else noop_context_fn
        self._modules = [weakref.ref(inner) for inner in module.modules()]  # what is around a module must not keep it
        self._written: set[_Place] | None = None  # unknown before the first call
        self._generators: Generators | None = None

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        values = (*args, *kwargs.values())
        if not torch.is_grad_enabled() or not can_have_its_own(module, values):
            return forward(*args, **kwargs)
        if has_cache(values):
            forward, args, kwargs = with_its_own(forward, args, kwargs)
        modules = [inner for reference in self._modules if (inner := reference()) is not None]
        self._generators = self._generators or Generators(modules)
        before = _Before(modules, self._written, self._generators)

        def contexts() -> tuple[Context, Context]:
            first, second = self._contexts()
            return first, _InTurn((before, _Once(second)))

        result = checkpointed(forward, args, kwargs, contexts)
        self._written = before.forget_unwritten() | (self._written or set())
        return result


class _Before:
    """The state of modules before a forward; a context in which they have it once more.

    In training a module may write its buffers (the running statistics of BatchNorm, the vectors of a spectral norm).
    Made again as they are now, it would write them twice, or compute with what it wrote the first time. Inside the
    context every buffer that the forward wrote is a copy of what it was before, and each module is in the mode it was
    in. It has the parameters that it had, which ``torch.func.functional_call`` sets for one call, and generators of
    random numbers are where they were.

    Plain values among the attributes that the forward changed, such as a number of calls, are what they were before it.
    Behind the context all attributes, and what lists hold that a forward has at hand, are as they were when it was
    entered.

    Args:
        modules: The modules.
        written: Buffers that are known to be written, as places in ``modules`` with a name; None where nothing is
            known.
        generators: The script's own generators.
    """

    def __init__(self, modules: list[Module], written: set[_Place] | None, generators: Generators) -> None:
        self._modules = modules
        self._training = [module.training for module in modules]
        self._parameters = [dict(module._parameters) for module in modules]
        self._versions = self._versions_now()
        self._figures = [(module, figures_of(module)) for module in modules if not is_torchs(module)]
        self._generators, self._states = generators, generators.states()
        buffers = _buffers_of(modules)
        self._state = {place: (buffer, buffer._version) for place, buffer in buffers.items()}
        self._is_first = written is None
        self._values = {
            place: buffer.clone()
            for place, buffer in buffers.items()
            if written is None or place in written or buffer.numel() * buffer.element_size() <= SMALL
        }
        self._entered = contextlib.ExitStack()

    def forget_unwritten(self) -> set[_Place]:
        """Keep copies of the buffers alone that the forward may have written, and say which."""
        buffers = _buffers_of(self._modules)
        written = {place for place, buffer in buffers.items() if self._is_written(place, buffer)}
        self._values = {place: self._before(place, buffers[place]) for place in written}
        self._state = {}
        self._figures = [(module, _changed(before, figures_of(module))) for module, before in self._figures]
        return written

    def _before(self, place: _Place, now: Tensor) -> Tensor:
        """What a buffer was; what it is where it was written over for the first time, and nobody has a copy."""
        if place in self._values:
            return self._values[place]
        before, version = self._state.get(place, (now, now._version))  # where the forward made it, it is as it was made
        if before._version != version:
            warnings.warn(_FIRST_WRITTEN, stacklevel=2)
        return before.clone()

    def _is_written(self, place: _Place, buffer: Tensor) -> bool:
        before, version = self._state.get(place, (None, 0))
        # Kernels of normalization write the statistics without a new version.
        if before is not buffer or version != buffer._version or isinstance(self._modules[place[0]], _NormBase):
            return True
        return self._is_first and not is_fake(buffer) and not torch.equal(self._values[place], buffer)

    def __enter__(self) -> Self:
        if self._versions_now() != self._versions:
            raise RuntimeError(
                "a parameter of a checkpointed module was changed between its forward and its backward pass, so that"
                " the module cannot be run again as it was; leave this module without recompute"
            )
        self._entered = contextlib.ExitStack()
        self._entered.enter_context(kept_contents(self._modules))
        self._entered.enter_context(self._as_now())
        for module, training, parameters in zip(self._modules, self._training, self._parameters, strict=True):
            module._parameters.update(parameters)
            module.training = training
        for module, figures in self._figures:
            for name, value in figures.items():
                vars(module).pop(name, None)
                if value is not MISSING:
                    vars(module)[name] = value
        for (index, name), value in self._values.items():
            self._modules[index]._buffers[name] = value.clone()
        self._generators.set(self._states)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.close()

    @contextlib.contextmanager
    def _as_now(self) -> Iterator[None]:
        """Behind this the modules and generators are as they are now."""
        states = self._generators.states()
        attributes = [(module, dict(vars(module))) for module, _ in self._figures]
        now = [(module, module.training, dict(module._parameters), dict(module._buffers)) for module in self._modules]
        try:
            yield
        finally:
            for module, before in attributes:
                vars(module).clear()
                vars(module).update(before)
            for module, training, parameters, buffers in now:
                module.training = training
                module._parameters.update(parameters)
                module._buffers.update(buffers)
            self._generators.set(states)

    def _versions_now(self) -> list[int]:
        return [value._version for own in self._parameters for value in own.values() if value is not None]


def _buffers_of(modules: list[Module]) -> dict[_Place, Tensor]:
    return {
        (index, name): buffer
        for index, module in enumerate(modules)
        for name, buffer in module._buffers.items()
        if buffer is not None
    }


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What was before of that which is otherwise now."""
    if before == now:
        return {}
    return {name: before.get(name, MISSING) for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


class _Once:
    """A context that does nothing when it is entered again.

    What was kept of products is used up when a block has run again. In another backward pass through the same graph
    they are computed with all else.
    """

    def __init__(self, context: Context) -> None:
        self._context: Context | None = context
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> None:
        if self._context is not None:
            self._entered.enter_context(self._context)
            self._context = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        entered, self._entered = self._entered, contextlib.ExitStack()
        return entered.__exit__(kind, error, traceback)


class _InTurn:
    """Contexts as one, which can be entered again: a graph that is kept is gone through once for each backward pass."""

    def __init__(self, contexts: tuple[Context, ...]) -> None:
        self._contexts = contexts
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context)
            self._entered = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._entered.__exit__(kind, error, traceback)
