"""The state of modules before a forward, which they have once more when it runs again."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any, Self

import torch

from autorecompute.backends.torch.module_tensors import CHANGED, TensorsBefore
from autorecompute.backends.torch.script_state import (
    CONTAINERS,
    TORCHS_OWN,
    UNKNOWN,
    Generators,
    attributes_of_all,
    kept_contents,
)
from autorecompute.backends.torch.untouched import AUTOCAST_DEVICES

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from types import TracebackType

    from torch.nn import Module

    from autorecompute.backends.torch.module_tensors import Place


def modes_of(module: Module) -> Hashable:
    """Return what a module, all that is in it and autocast may do otherwise in another step."""
    on = (device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device))
    autocast = tuple(torch.get_autocast_dtype(device) for device in on)
    return (*(inner.training for inner in module.modules()), *autocast)


class Before:
    """The state of modules before a forward; a context in which they have it once more.

    In training a module may write its buffers (the running statistics of BatchNorm, the vectors of a spectral norm).
    Made again as they are now, it would write them twice, or compute with what it wrote the first time. Inside the
    context every buffer that the forward wrote is a copy of what it was before, and each module is in the mode it was
    in. It has the parameters that it had, which ``torch.func.functional_call`` sets for one call, and generators of
    random numbers are where they were.

    Plain values among the attributes are what they were before the forward, too: a number of calls that it counts, or
    the size of an image that the script sets before each call. So are tensors, where nobody has written them since.
    Behind the context all attributes, and what lists hold that a forward has at hand, are as they were when it was
    entered.

    Args:
        modules: The modules.
        written: Buffers that are known to be written, as places in ``modules`` with a name; None where nothing is
            known.
        generators: Those that were at hand in an earlier call of the same modules.

    Attributes:
        generators: Those that are at hand.
    """

    def __init__(self, modules: list[Module], written: set[Place] | None, generators: Generators | None) -> None:
        self._modules = modules
        self._training = [module.training for module in modules]
        self._parameters = [dict(module._parameters) for module in modules]
        self._versions = self._versions_now()
        attributes = attributes_of_all(modules)
        self._figures = attributes.figures
        self._tensors = TensorsBefore(modules, attributes.tensors, written)
        if generators is None or not generators.are_all(attributes.generators):
            generators = Generators(modules)
        self.generators = generators
        self._states = self.generators.states()
        self._entered = contextlib.ExitStack()

    def forget_unwritten(self) -> set[Place] | None:
        """Keep copies of the buffers alone that the forward may have written, and of small ones.

        Returns:
            Which were written; None where nobody can tell, as they are fake.
        """
        return self._tensors.forget_unwritten()

    def __enter__(self) -> Self:
        if self._versions_now() != self._versions:
            raise RuntimeError(CHANGED.format("a parameter"))
        self._entered = contextlib.ExitStack()
        self._entered.enter_context(kept_contents(self._modules))
        self._entered.enter_context(self._as_now())
        for module, training, parameters in zip(self._modules, self._training, self._parameters, strict=True):
            module._parameters.update(parameters)
            module.training = training
        self._put_figures()
        self._tensors.put_back()
        self.generators.set(self._states)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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

    @contextlib.contextmanager
    def _as_now(self) -> Iterator[None]:
        """Behind this the modules and generators are as they are now."""
        states = self.generators.states()
        now = [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in self._modules]
        try:
            yield
        finally:
            for module, attributes, parameters, buffers in now:
                vars(module).clear()
                vars(module).update(attributes)  # among them the mode
                module._parameters.update(parameters)
                module._buffers.update(buffers)
            self.generators.set(states)

    def _versions_now(self) -> list[int]:
        return [value._version for own in self._parameters for value in own.values() if value is not None]
