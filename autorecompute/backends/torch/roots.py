"""Which modules the optimizers of a process train, and their training calls."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autorecompute.backends.torch.refusals import is_transformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Module


class Watcher(Protocol):
    """Who is told of training calls; what it calls itself is not told to it."""

    def about_to_run(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note that a root is about to be called with these arguments."""

    def has_run(self, root: Module, result: Any) -> None:
        """Note that a root has returned this."""


class Roots:
    """Follows the training calls of roots: of the outermost modules that hold parameters of an optimizer.

    ``DistributedDataParallel`` is none; the module in it is.

    Args:
        watcher: Who is told.
        leaves: Tells modules that are none and hold none, whatever an optimizer has of them.
    """

    def __init__(self, watcher: Watcher, leaves: Callable[[Module], bool] = lambda _module: False) -> None:
        self._watcher, self._leaves = watcher, leaves
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._roots: weakref.WeakSet[Module] = weakref.WeakSet()
        self._others: weakref.WeakSet[Module] = weakref.WeakSet()
        self._is_inside = False
        self._on_failure: Callable[[Exception], None] = lambda _error: None
        self._is_on = False
        self.is_transformed = False
        """Whether a transform of ``torch.func`` has called a module with weights that no optimizer holds."""
        self._put: list[tuple[Any, str, Any, Any]] = []

    def install(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Follow the optimizers that are made from now on, and the calls of all modules.

        Args:
            on_failure: Told what a root raises, before its caller gets that.
        """
        self._on_failure = on_failure or self._on_failure
        call, add = torch.nn.Module.__call__, Optimizer.add_param_group

        @functools.wraps(call)
        def call_and_tell(module: Module, *args: Any, **kwargs: Any) -> Any:
            # First what the compiler takes for settled: it traces this, where nothing may be told and nothing guarded.
            if torch.compiler.is_compiling() or self._is_inside or not module.training:
                return call(module, *args, **kwargs)
            if not self._is_on or not torch.is_grad_enabled() or not self._is_root(module):
                return call(module, *args, **kwargs)
            return self._run(module, functools.partial(call, module), args, kwargs)

        @functools.wraps(add)
        def add_and_note(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            add(optimizer, *args, **kwargs)
            self.note(optimizer)

        self._is_on = True
        self._put = [
            (torch.nn.Module, "__call__", call, call_and_tell),
            (Optimizer, "add_param_group", add, add_and_note),
        ]
        for owner, name, _, ours in self._put:
            setattr(owner, name, ours)

    def uninstall(self) -> None:
        """Follow nothing any more, so that a step costs what it always cost."""
        self._is_on = False
        for owner, name, theirs, ours in self._put:
            if getattr(owner, name) is ours:  # what the script has put there since stays, around ours
                setattr(owner, name, theirs)
        self._put = []

    def note(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has got parameters; a module that was no root may be one now."""
        self._optimizers.add(optimizer)
        self._others.clear()

    def optimizers_of(self, root: Module) -> list[Optimizer]:
        """Return the optimizers that train parameters of a module."""
        own = {id(parameter) for parameter in root.parameters()}
        return [one for one in self._optimizers if not own.isdisjoint(_parameters_of(one))]

    def _is_root(self, module: Module) -> bool:
        if module in self._roots:
            return True
        # What a backward pass runs again is a part of a root.
        if module in self._others or torch._C._current_autograd_node() is not None:
            return False
        trained = {parameter for optimizer in self._optimizers for parameter in _parameters_of(optimizer)}
        if trained.isdisjoint(map(id, module.parameters())) and is_transformed():
            self.is_transformed = True
            return False
        if isinstance(module, DistributedDataParallel) or trained.isdisjoint(map(id, module.parameters())):
            self._others.add(module)
            return False
        if self._leaves(module):
            self._others.update(module.modules())
            self._others.add(module)
            return False
        self._roots.add(module)
        for inner in module.children():
            self._others.update(inner.modules())
        return True

    def _run(self, root: Module, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._is_inside = True
        try:
            self._watcher.about_to_run(root, args, kwargs)
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                self._on_failure(error)
                raise
            self._watcher.has_run(root, result)
        finally:
            self._is_inside = False
        return result


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
