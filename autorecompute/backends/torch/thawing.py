"""Parameters that are frozen now, and that an optimizer holds: a later step trains them, and takes more memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torch.nn import Parameter

from autorecompute.backends.torch.compiled.forms import has_compiled
from autorecompute.backends.torch.sharded import is_sharded
from autorecompute.backends.torch.structure import structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.backends.interface import LiveMeter


def frozen_in(model: Module, optimizers: Iterable[Optimizer] | None) -> list[Parameter]:
    """Return the parameters that an optimizer would train, were they not frozen; all frozen ones for ``None``.

    Who thaws later freezes whole layers. Where each layer trains something, as with LoRA and other adapters, nothing is
    thawed. A sharded model, and one that is compiled, are taken as they are: what surrounds their parameters was made
    for that.
    """
    if is_sharded(model) or has_compiled(model):
        return []
    frozen = [one for one in model.parameters() if not one.requires_grad and one.dtype.is_floating_point]
    if optimizers is None:
        return frozen
    if (units := structure_of(model).units) and not any(_is_frozen(model.get_submodule(unit)) for unit in units):
        return []
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group}
    return [parameter for parameter in frozen if id(parameter) in held]


def _is_frozen(layer: Module) -> bool:
    trains = [one.requires_grad for one in layer.parameters()]
    return bool(trains) and not any(trains)


def thaw(parameters: Iterable[Parameter], *, on: bool = True) -> None:
    """Have parameters trained, or not."""
    for parameter in parameters:
        parameter.requires_grad_(on)


@contextlib.contextmanager
def thawed(frozen: Collection[Parameter]) -> Iterator[None]:
    """Inside, parameters are trained that are frozen."""
    thaw(frozen)
    try:
        yield
    finally:
        thaw(frozen, on=False)


class LaterLive:
    """Counts live tensors in a step, and tells at least what a later step takes; a ``LiveMeter``.

    Args:
        meter: Counts those of the step.
        later: Forecasts the bytes that are alive in the later step beyond those before it, and those beyond the model
            before it.
        known: Tells the tensors that are alive between two steps.
    """

    def __init__(
        self, meter: LiveMeter, later: Callable[[], tuple[int, int]], known: Callable[[], Iterable[Tensor]]
    ) -> None:
        self._meter, self._later, self._known = meter, later, known

    def start(self) -> None:
        """Begin a step."""
        self._meter.start()

    def stop(self) -> int:
        """Return the most bytes alive beyond those that were at the start, in this step or in the later one."""
        live_bytes, _ = self._later()
        return max(self._meter.stop(), live_bytes)

    def held_bytes(self, measured_bytes: int) -> int:
        """Return the bytes held before the later step: the optimizer has made its state for all parameters."""
        _, wanted_bytes = self._later()
        there_bytes: int = sum(one.nbytes for one in self._known() if not isinstance(one, Parameter))
        return self._meter.held_bytes(measured_bytes) + max(0, wanted_bytes - there_bytes)
