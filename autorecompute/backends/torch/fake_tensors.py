"""Fake tensors in place of a model's, an optimizer's and a batch's, and the operators that run on them."""

from __future__ import annotations

import collections
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autorecompute.backends.torch.amounts import NOTHING
from autorecompute.backends.torch.arguments import exchanged
from autorecompute.backends.torch.live import LiveBytes
from autorecompute.backends.torch.script_state import kept
from autorecompute.backends.torch.storages import are_spread
from autorecompute.backends.torch.values import looks_at_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.backends.torch.amounts import Amount
    from autorecompute.backends.torch.fake_operators import FakeOperators
    from autorecompute.backends.torch.live import Segment
    from autorecompute.backends.torch.values import Values

_LOG_OF_TORCH = logging.getLogger("torch._subclasses.fake_tensor")
_DEVICE = torch.ops.prim.device.default


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Torch logs no error where an operator cannot be run on fake tensors: whoever runs it is told by an exception."""
    before = _LOG_OF_TORCH.level
    _LOG_OF_TORCH.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _LOG_OF_TORCH.setLevel(before)


def is_fake(tensor: Tensor) -> bool:
    """Tell whether a tensor, or this rank's part of one, has no data."""
    return isinstance(getattr(tensor, "_local_tensor", tensor), FakeTensor)


def is_same(made_again: Tensor, tensor: Tensor) -> bool:
    """Tell whether two tensors are equal bit for bit; of fake ones nobody can tell, and the form has to do."""
    return is_fake(tensor) or torch.equal(made_again, tensor)


class FakeLiveBytes(LiveBytes):
    """Counts the bytes of fake tensors, and tells their values where they were recorded.

    Args:
        known: Tensors that are alive already.
        segment: Tells which part of the step runs.
        operators: Runs them.
        values: What modules looked at in the probe.

    Attributes:
        kinds: Of which kind a storage's bytes are, by its number, where whoever takes the step has found out.
    """

    def __init__(
        self, known: Iterable[Tensor], segment: Callable[[], Segment], operators: FakeOperators, values: Values
    ) -> None:
        super().__init__(known, segment)
        self._operators, self._values = operators, values
        self.kinds: dict[int, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to tell the compiler so at each operator takes its time

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is _DEVICE:  # autograd asks for it more often than for all else
            return args[0].fake_device
        if are_spread(tuple(types)):  # of a higher-order operator it is a list
            return NotImplemented
        return self._follow(function, args, kwargs or {})

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Amount]:
        if isinstance(function, HigherOrderOperator):
            return function(*args, **kwargs), NOTHING
        if looks_at_values(function, args):
            result = self._values.next(function)
            return result, self._operators.work_of(function, args, kwargs, result)
        return self._operators.run(function, args, kwargs)


class Fakes:
    """Fake tensors in place of real ones; the same for the same, and fake ones as they are.

    Args:
        mode: What they are made in.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._parameters: dict[int, torch.nn.Parameter] = {}

    def of(self, value: Any) -> Any:
        """Return the value with fake tensors in it; what holds them are copies."""
        return exchanged(value, self._fake)

    def _fake(self, tensor: Tensor) -> Tensor:
        return tensor if is_fake(tensor) else self._mode.from_tensor(tensor)

    def _parameter(self, real: torch.nn.Parameter) -> torch.nn.Parameter:
        if id(real) not in self._parameters:
            fake = (
                real if is_fake(real) else torch.nn.Parameter(self._mode.from_tensor(real.detach()), real.requires_grad)
            )
            self._parameters[id(real)] = fake
        return self._parameters[id(real)]

    @contextlib.contextmanager
    def in_model(self, model: Module) -> Iterator[None]:
        """Have the model's parameters and buffers be fakes."""
        real = [(module, dict(module._parameters), dict(module._buffers)) for module in model.modules()]
        for module, parameters, buffers in real:
            module._parameters.update(
                {name: self._parameter(one) for name, one in parameters.items() if one is not None}
            )
            module._buffers.update({name: self.of(one) for name, one in buffers.items() if one is not None})
        try:
            yield
        finally:
            for module, parameters, buffers in real:
                module._parameters.update(parameters)
                module._buffers.update(buffers)

    @contextlib.contextmanager
    def in_optimizer(self, optimizer: Optimizer) -> Iterator[None]:
        """Have an optimizer step the fakes; what it writes in itself and in its groups meanwhile is gone."""
        attributes = dict(vars(optimizer))
        faked = {self._parameter(real): self.of(values) for real, values in optimizer.state.items()}
        groups = [(group, group["params"]) for group in optimizer.param_groups]
        with kept(value for name, value in attributes.items() if name != "state"):
            optimizer.state = collections.defaultdict(dict, faked)
            for group, parameters in groups:
                group["params"] = [self._parameter(real) for real in parameters]
            try:
                yield
            finally:
                vars(optimizer).clear()
                vars(optimizer).update(attributes)
                for group, parameters in groups:
                    group["params"] = parameters


def resized(value: Any, batch: int, target: int) -> Any:
    """Return the same structure with every tensor of ``batch`` samples as one of ``target``, of unknown values."""

    def resize(tensor: Tensor) -> Tensor:
        if target != batch and tensor.dim() and tensor.shape[0] == batch:
            return tensor.new_empty((target, *tensor.shape[1:])).requires_grad_(tensor.requires_grad)
        return tensor

    return exchanged(value, resize)
