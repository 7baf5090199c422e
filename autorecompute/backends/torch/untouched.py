"""A model run once more, and training goes on as if it had not been."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autorecompute.backends.torch.arguments import exchanged
from autorecompute.backends.torch.script_hooks import without_gradient_hooks
from autorecompute.backends.torch.script_state import Generators, kept_contents
from autorecompute.backends.torch.written_weights import kept_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.nn import Module

    from autorecompute.backends.torch.written_weights import Named


AUTOCAST_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def untouched(model: Module) -> Iterator[Callable[[], Iterator[Named]]]:
    """Whatever happens inside, the random numbers to come, the weights, buffers and modules' attributes are as before.

    So is what lists hold that are modules' or that their forwards and hooks have at hand. The script's hooks on
    gradients see none of what happens inside. Gives what tells weights that were written meanwhile, with their names.
    """
    with (
        _random_numbers(model),
        _attributes(model),
        kept_contents(model.modules()),
        without_gradient_hooks(model),
        kept_weights(model) as written,
    ):
        try:
            yield written
        finally:
            # Weights that autocast has cast inside belong to a graph that nobody goes back through.
            torch.clear_autocast_cache()


@contextlib.contextmanager
def _random_numbers(model: Module) -> Iterator[None]:
    generators = Generators(model.modules())
    states = generators.states()
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), numpy.random.get_state() if numpy else None
    cpu = torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        generators.set(states)
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numpy:
            numpy.random.set_state(arrays)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)


@contextlib.contextmanager
def _attributes(model: Module) -> Iterator[None]:
    kept = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    for module, _, buffers in kept:
        module._buffers.update({name: buffer.clone() for name, buffer in buffers.items() if buffer is not None})
    try:
        yield
    finally:
        for module, attributes, buffers in kept:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)


def without_autocast() -> contextlib.AbstractContextManager[object]:
    """Operators run in the types of what they are given."""
    devices = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    if not devices:
        return contextlib.nullcontext()
    plain = contextlib.ExitStack()
    for device in devices:
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
