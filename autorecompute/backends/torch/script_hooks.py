"""Hooks of the script on gradients: they are for those of a training step, and for no others."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch.nn.modules import module as torchs

from autorecompute.backends.torch.compiled.forms import may_compile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn import Module


@contextlib.contextmanager
def without_gradient_hooks(model: Module) -> Iterator[None]:
    """Inside, no backward hook of a module and no hook of a weight is called.

    Where a module has hooks, something stands in the place of each: they make nodes in the graph, which stay. Hooks of
    modules stay in code that may be compiled, as the compiler could keep what stands there for the training.
    """
    own = [] if may_compile(model) else _of_modules(model)
    weights = _of_weights(model)
    before = [(hooks, dict(hooks)) for hooks in (*own, *weights)]
    try:
        for hooks in own:
            hooks.update(dict.fromkeys(hooks, _nothing))
        for hooks in weights:
            hooks.clear()
        yield
    finally:
        for hooks, kept in before:
            hooks.clear()
            hooks.update(kept)


def _of_modules(model: Module) -> list[dict[int, Any]]:
    """Return those of all modules of the process, too."""
    found = [hooks for module in model.modules() for hooks in (module._backward_hooks, module._backward_pre_hooks)]
    return [*found, torchs._global_backward_hooks, torchs._global_backward_pre_hooks]


def _of_weights(model: Module) -> list[dict[int, Any]]:
    found = [(weight._backward_hooks, weight._post_accumulate_grad_hooks) for weight in model.parameters()]
    return [hooks for both in found for hooks in both if hooks]


def _nothing(*_given: Any) -> None:
    """Stand in for a hook: the gradients stay as they are."""
