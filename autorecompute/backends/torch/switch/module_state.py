"""Puts the state of modules back after a forward pass that must leave no trace."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import random
import sys
import warnings
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.nn.modules import module as torchs
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset
from torch.utils.weak import TensorWeakRef

from autorecompute.backends.torch.check.recompute_check import can_be_summed, checksum
from autorecompute.backends.torch.compiled.forms import may_compile
from autorecompute.backends.torch.switch.script_state import (
    CONTAINERS,
    TORCHS_OWN,
    UNKNOWN,
    Generators,
    attributes_of_all,
    kept,
    kept_weights,
    within_reach,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from torch.nn import Module

    from autorecompute.backends.torch.switch.script_state import Named

    Place = tuple[int, str]  # a module's place in a list, and a tensor's name in it


SMALL = 2**16
"""A tensor of so many bytes is copied before each call; a larger buffer if it was written in an earlier call."""

_FIRST_WRITTEN = (
    "a large buffer of a checkpointed module was first written in a later call than the first one: in this step the "
    "module is made again with what was written. From the next step on it is made again as it was"
)
CHANGED = (
    "{} of a checkpointed module was changed between its forward and its backward pass, so that the module cannot be"
    " run again as it was; leave this module without recompute"
)


def _lost(name: str) -> Tensor:
    """Return what stands for a tensor that cannot be had any more: whatever is done with it is an error."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(CHANGED.format(f"the tensor {name}"))

    kind = type("_Lost", (Tensor,), {"__torch_function__": classmethod(refuse)})
    return torch.empty(0).as_subclass(kind)


def _buffers_of(modules: list[Module]) -> dict[Place, Tensor]:
    return {
        (index, name): buffer
        for index, module in enumerate(modules)
        for name, buffer in module._buffers.items()
        if buffer is not None
    }


def _holder(module: Module, name: str) -> dict[str, Any]:
    buffers: dict[str, Any] = module._buffers
    return buffers if name in buffers else vars(module)


def _can_be_copied(value: Tensor) -> bool:
    """Tell whether an attribute is no more than a few numbers, without a graph that a copy would keep."""
    is_plain = type(value) in {Tensor, FakeTensor} and value.layout is torch.strided and not value.is_nested
    return is_plain and not value.requires_grad and not value.is_inference() and _is_small(value)


def _is_computed_weight(module: Module, name: str) -> bool:
    """Tell whether an attribute is made of parameters in a hook before each call: ``weight`` of ``weight_v``."""
    shape, start = vars(module)[name].shape, f"{name}_"
    parameters = ((other, one) for other, one in module._parameters.items() if one is not None)
    return any(other.startswith(start) and one.shape == shape for other, one in parameters)


def _is_small(value: Tensor) -> bool:
    return bool(value.numel() * value.element_size() <= SMALL)


@contextlib.contextmanager
def without_gradient_hooks(model: Module) -> Iterator[None]:
    """Inside, no backward hook of a module and no hook of a weight is called.

    Where a module has hooks, something stands in the place of each: they make nodes in the graph, which stay. Hooks of
    modules stay in code that may be compiled, as the compiler could keep what stands there for the training.
    """
    own: list[dict[int, Any]] = []
    if not may_compile(model):
        own = [torchs._global_backward_hooks, torchs._global_backward_pre_hooks]
        own += (hooks for module in model.modules() for hooks in (module._backward_hooks, module._backward_pre_hooks))
    both = ((weight._backward_hooks, weight._post_accumulate_grad_hooks) for weight in model.parameters())
    weights = [hooks for hooks in itertools.chain.from_iterable(both) if hooks]
    before = [(hooks, dict(hooks)) for hooks in (*own, *weights)]
    try:
        for hooks in own:
            hooks.update(dict.fromkeys(hooks, lambda *_: None))  # the gradients stay as they are
        for hooks in weights:
            hooks.clear()
        yield
    finally:
        for hooks, kept in before:
            hooks.clear()
            hooks.update(kept)


DEEPEST = 2
"""Objects of the script's lie so deep in one another in a batch; deeper ones are what it was made from."""


def exchanged(value: Any, exchange: Callable[[Tensor], Tensor]) -> Any:
    """Return the same structure in copies of its containers and objects, with other tensors in it.

    Lists, tuples, mappings, dataclasses and other objects that hold data are copied, and what is in two places is one
    object in both. Modules, functions, data sets and what cannot be copied stay themselves.
    """
    copies: dict[int, Any] = {}

    def of(value: Any, depth: int = 0) -> Any:
        return tree_map(lambda leaf: exchange(leaf) if isinstance(leaf, Tensor) else of_leaf(leaf, depth), value)

    def of_leaf(leaf: Any, depth: int) -> Any:
        is_data = isinstance(leaf, MutableMapping | list) or hasattr(type(leaf), "__dataclass_fields__")
        if id(leaf) not in copies and (is_data or (depth < DEEPEST and _holds_data_alone(leaf))):
            copies[id(leaf)] = other = _copy_of(leaf)
            if other is not leaf:
                _fill(leaf, other, functools.partial(of, depth=depth if is_data else depth + 1))
        return copies.get(id(leaf), leaf)

    return of(value)


def _fill(value: Any, other: Any, exchange: Callable[[Any], Any]) -> None:
    """Put copies in place of what a copy shares with what it was made from."""
    own = getattr(other, "__dict__", {})
    for name, part in list(own.items()):
        own[name] = exchange(part)
    for name in getattr(type(value), "__dataclass_fields__", ()):
        if name not in own and hasattr(value, name):  # it lies in a slot
            object.__setattr__(other, name, exchange(getattr(value, name)))  # it may be frozen
    if isinstance(value, MutableMapping | list):
        for key, part in list(value.items() if isinstance(value, MutableMapping) else enumerate(value)):
            other[key] = exchange(part)


def _holds_data_alone(value: Any) -> bool:
    """Tell whether an object holds data alone, as a batch of a class of its own does."""
    if callable(value) or isinstance(value, Dataset | DataLoader | Optimizer) or hasattr(type(value), "__del__"):
        return False
    return bool(getattr(value, "__dict__", None))


def _copy_of(value: Any) -> Any:
    try:
        return copy.copy(value)
    except Exception:  # noqa: BLE001  (its class may refuse that in any way: a lock does, and a file)
        return value


@contextlib.contextmanager
def untouched(model: Module) -> Iterator[Callable[[], Iterator[Named]]]:
    """Whatever happens inside, the random numbers to come, the weights, buffers and modules' attributes are as before.

    So is what lists hold that are modules' or that their forwards and hooks have at hand. The script's hooks on
    gradients see none of what happens inside. Gives what tells weights that were written meanwhile, with their names.
    """
    with (
        _random_numbers(model),
        _as_now(model.modules()),
        kept(within_reach(model.modules())),
        without_gradient_hooks(model),
        kept_weights(model) as written,
    ):
        for module in model.modules():
            module._buffers.update({name: one.clone() for name, one in module._buffers.items() if one is not None})
        try:
            yield written
        finally:
            # Weights that autocast has cast inside belong to a graph that nobody goes back through.
            torch.clear_autocast_cache()


@contextlib.contextmanager
def _random_numbers(model: Module) -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    generators = Generators(model.modules(), (random, numpy.random if numpy else None))
    states = generators.states()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
        try:
            yield
        finally:
            generators.set(states)


@contextlib.contextmanager
def _as_now(modules: Iterable[Module]) -> Iterator[None]:
    """Behind this the modules' attributes and buffers are those that they have now."""
    now = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]
    try:
        yield
    finally:
        for module, attributes, buffers in now:
            vars(module).clear()
            vars(module).update(attributes)  # among them the mode
            module._buffers.clear()
            module._buffers.update(buffers)


def autocast_dtypes() -> dict[str, torch.dtype]:
    """Return the type that autocast casts to, by the devices for which it is on."""
    return {on: torch.get_autocast_dtype(on) for on in ("cpu", "cuda") if torch.is_autocast_enabled(on)}


def without_autocast() -> contextlib.AbstractContextManager[object]:
    """Operators run in the types of what they are given."""
    plain = contextlib.ExitStack()
    for device in autocast_dtypes():
        plain.enter_context(torch.autocast(device, enabled=False))
    return plain


@contextlib.contextmanager
def out_of_autocast() -> Iterator[None]:
    """Run as a script's backward pass runs, behind the end of its autocast.

    Weights that autocast has cast are gone. Those that a recompute casts go when it ends: autocast drops them where its
    outermost context ends.
    """
    with without_autocast():
        depth = torch.autocast_increment_nesting() - 1
        for _ in range(depth + 1):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            for _ in range(depth):
                torch.autocast_increment_nesting()


def copies_of(value: Any) -> Any:
    """Arguments with copies of their tensors and of what holds them, equal ones where they were the same."""
    copies: dict[int, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    return exchanged(value, copy)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage but by ``gc.collect()``, which looks at what was made inside alone.

    Collecting takes as long as a step on fake tensors, and comes at another moment each time.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def modes_of(module: Module) -> Hashable:
    """Return the modes of a module, of all in it and of autocast, which may change between steps."""
    return (*(inner.training for inner in module.modules()), *autocast_dtypes().values())


class Before:
    """The state of modules before a forward; a context in which they have it once more.

    In training a module may write its buffers (the running statistics of BatchNorm, the vectors of a spectral norm).
    Run again with them as they are now, it would write them twice, or compute with what it wrote the first time. Inside
    the context every buffer that the forward wrote is a copy of what it was before, and so are plain values and tensors
    among the attributes, modes, parameters (``torch.func.functional_call`` sets others for one call) and generators of
    random numbers. Behind it all attributes, and what lists hold that a forward has at hand, are as they were when it
    was entered.

    Copies are kept of those tensors that the forward writes, and of small ones, which others may write before it runs
    again. A version tells of no write through ``.data``, nor of those of torch's own fused observers: copies are
    compared by value, and large buffers by the sum of their bits. Weights that were computed before the call, as the
    old ``weight_norm`` does, are kept alive. Of all else nothing is: where it is gone by then, or written, the first
    use of it is an error.

    Args:
        modules: The module that is called, and all within it.
        written: Buffers that are known to be written; None where nothing is known.
        generators: Generators at hand in an earlier call of the same modules; the attribute has those of this one.

    Attributes:
        once: A context that is entered with this the first time alone: products that were kept are used up then, and
            another backward pass through the same graph computes them again.
    """

    def __init__(self, modules: list[Module], written: set[Place] | None, generators: Generators | None) -> None:
        self._modules = modules
        self._training = [module.training for module in modules]
        self._parameters = [dict(module._parameters) for module in modules]
        self._versions = self._versions_now()
        self._figures, attributes, own = attributes_of_all(modules)
        self._note_tensors(attributes, written)
        if generators is None or not generators.are_all(own):
            generators = Generators(modules)
        self.generators = generators
        self._states = self.generators.states()
        self.once: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        self._entered = contextlib.ExitStack()

    def _note_tensors(self, attributes: dict[Place, Tensor], written: set[Place] | None) -> None:
        self._is_first = written is None
        self._held = _buffers_of(self._modules)  # until the forward is over
        others: dict[Place, Tensor] = {}
        for place, value in attributes.items():
            (self._held if _can_be_copied(value) else others)[place] = value
        self._seen = {
            place: (TensorWeakRef(value), value._version)
            for place, value in (*self._held.items(), *others.items())
            if not value.is_inference()
        }
        self._computed = [value for (at, name), value in others.items() if _is_computed_weight(self._modules[at], name)]
        self._copies = {
            place: value.clone()
            for place, value in self._held.items()
            if written is None or place in written or _is_small(value)
        }
        self._sums = {
            place: checksum(value)
            for place, value in self._held.items()
            if place not in self._copies and place in self._seen and value.device.type == "cpu" and can_be_summed(value)
        }
        self._written: set[Place] = set()

    def __enter__(self) -> Self:
        if self._versions_now() != self._versions:
            raise RuntimeError(CHANGED.format("a parameter"))
        with contextlib.ExitStack() as entered:
            entered.enter_context(kept(within_reach(self._modules)))
            entered.callback(self.generators.set, self.generators.states())
            for module in self._modules:
                entered.callback(module._parameters.update, dict(module._parameters))
            entered.enter_context(_as_now(self._modules))
            for module, training, parameters in zip(self._modules, self._training, self._parameters, strict=True):
                module._parameters.update(parameters)
                module.training = training
            self._put_figures()
            self._put_tensors()
            self.generators.set(self._states)
            once, self.once = self.once, contextlib.nullcontext()
            entered.enter_context(once)
            self._entered = entered.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.close()

    def _put_figures(self) -> None:
        """Attributes are what they were; those that came since are gone. A list is a new one, one for all of them."""
        fresh: dict[int, Any] = {}
        for module, figures in zip(self._modules, self._figures, strict=True):
            own = vars(module)
            for name in own.keys() - TORCHS_OWN - figures.keys():
                del own[name]
            for name, value in figures.items():
                if type(value) in CONTAINERS:
                    own[name] = fresh.setdefault(id(value), copy.copy(value))
                elif value is not UNKNOWN:
                    own[name] = value

    def _versions_now(self) -> list[int]:
        return [value._version for own in self._parameters for value in own.values() if value is not None]

    def forget_unwritten(self) -> set[Place] | None:
        """Keep copies of those alone that the forward may have written, and of small ones; return which were written.

        Return ``None`` where nobody can tell, as they are fake.
        """
        is_told = not any(map(is_fake, self._held.values()))
        attributes = {(at, name): _holder(self._modules[at], name).get(name) for at, name in self._seen}
        now = {**attributes, **_buffers_of(self._modules)}
        self._written = {place for place, value in now.items() if self._is_written(place, value)}
        small = {place: copy for place, copy in self._copies.items() if _is_small(copy)}
        # Large tensors with a graph are not held in attributes, nor copied: nobody knows what was there.
        known = [place for place in self._written if place in self._held or place not in self._seen]
        self._copies = small | {place: self._before(place, now[place]) for place in known}
        self._held = {}
        return self._written if is_told else None

    def _put_tensors(self) -> None:
        """They are as they were. Not to be had any more are those that others have written, or let go."""
        for place in self._copies.keys() | self._seen.keys():
            index, name = place
            if place in self._written and place not in self._copies:
                continue  # what a forward leaves in an attribute it does not read, or gradients are found to differ
            _holder(self._modules[index], name)[name] = self._again(place)

    def _again(self, place: Place) -> Tensor:
        same, copy = self._same(place), self._copies.get(place)
        if place not in self._written and same is not None and (copy is None or self._holds(same, copy)):
            return same
        if copy is not None:
            return copy.clone()
        return _lost(place[1])

    def _same(self, place: Place) -> Tensor | None:
        """Return the tensor itself where it is alive, and nobody has written it."""
        reference, version = self._seen[place]
        value = reference()
        return value if value is not None and value._version == version else None

    def _before(self, place: Place, now: Tensor) -> Tensor:
        """Return a tensor as it was; as it is where it was first written over and nobody has a copy."""
        if place in self._copies:
            return self._copies[place]
        before = self._held.get(place, now)  # where the forward made it, it is as it was made
        if place in self._seen:
            has_other_bits = place in self._sums and self._sums[place] != checksum(before)
            if before._version != self._seen[place][1] or has_other_bits:
                warnings.warn(_FIRST_WRITTEN, stacklevel=2)
        return before.clone()

    def _is_written(self, place: Place, now: Any) -> bool:
        # Kernels of normalization write the statistics without a new version.
        if place not in self._seen or self._same(place) is not now or isinstance(self._modules[place[0]], _NormBase):
            return True
        if place in self._sums:
            return self._sums[place] != checksum(now)
        return place in self._copies and not self._holds(now, self._copies[place])

    def _holds(self, value: Tensor, copy: Tensor) -> bool:
        """Tell whether a tensor is as it was copied. On a card nobody waits to know, but for the first call."""
        if is_fake(copy):
            return True
        return bool((self._is_first or value.device.type == "cpu") and torch.equal(copy, value))
