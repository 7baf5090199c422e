"""A process in which no large tensor has data, so that a script trains a model too large for this machine.

Weights, activations and gradients are fake tensors: they have a shape, and nothing is computed with them. What is
small, and integers and masks, are real: samplers, schedules and branches of the model go as they always do.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.nn import Parameter
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from autorecompute.backends.torch.fake_tensors import Fakes, is_fake
from autorecompute.backends.torch.storages import are_spread
from autorecompute.errors import ScriptError
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType

    from torch.nn import Module
    from torch.optim import Optimizer

LARGEST_REAL = MIB
"""Bytes of the largest tensor of floats that has data; smaller ones steer what a script does, such as a schedule."""

LARGEST_INDEX = 256 * MIB
"""The same of integers and booleans: their values decide what runs."""

_OF_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)


class LargeTensorsAreFake(TorchDispatchMode):  # type: ignore[misc]
    """Runs operators on fake tensors wherever a large one takes part, and on real ones elsewhere; a context.

    Args:
        all_weights: Whether small weights are fakes, too: one rank's shares of parameters lie in one buffer together.

    Attributes:
        fakes: The mode of all fake tensors of the process.
        assumed: Lines that looked at a number in a fake tensor: it was taken to be 1.
    """

    def __init__(self, *, all_weights: bool = False) -> None:
        super().__init__()
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self._all_weights = all_weights
        self._weights: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.assumed: dict[str, None] = {}
        self._process = os.getpid()
        self._is_suspended = self._is_looked_at = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if are_spread(types):
            return NotImplemented
        if self._is_suspended:
            return function(*args, **kwargs)
        if os.getpid() != self._process:  # what a worker of a DataLoader makes has to be sent
            return function(*args, **kwargs)
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if any(is_fake(tensor) or _is_large(tensor) for tensor in given):
            return self._on_fakes(function, args, kwargs)
        if all(tensor.device.type == "meta" for tensor in given):  # where to_empty() makes weights, too
            with self.fakes:
                made = function(*args, **kwargs)
            if isinstance(made, Tensor) and (_is_large(made) or (self._is_weight(made, of_form=bool(given)))):
                return made
        return function(*args, **kwargs)

    def _on_fakes(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            self.assumed[calling_line()] = None
            return torch.ones((), dtype=args[0].dtype).tolist()
        try:
            with self.fakes:
                return function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ScriptError(
                f"{calling_line()} looks at values of a tensor ({function}), and on fake tensors there are none. Leave "
                "--fake out, or have what runs depend on shapes alone."
            ) from error
        except RuntimeError as error:
            if function.namespace == "aten" and not isinstance(error, UnsupportedOperatorException):
                raise
            raise ScriptError(
                f"{calling_line()} calls {function}, which has no kernel for fake tensors. Register one with "
                "torch.library.register_fake, or leave --fake out."
            ) from error

    @contextlib.contextmanager
    def everything(self) -> Iterator[FakeTensorMode]:
        """Small tensors are made as fakes, too."""
        self._is_suspended = True
        try:
            with self.fakes:
                yield self.fakes
        finally:
            self._is_suspended = False

    @contextlib.contextmanager
    def small_ones_too(self, model: Module, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """Have the small tensors of a model and of its optimizers be fakes."""
        fakes, self._is_looked_at = Fakes(self.fakes), True
        with fakes.in_model(model), contextlib.ExitStack() as swapped:
            for optimizer in optimizers:
                swapped.enter_context(fakes.in_optimizer(optimizer))
            try:
                yield
            finally:
                self._is_looked_at = False

    def _is_weight(self, made: Tensor, *, of_form: bool) -> bool:
        """Tell whether a new tensor is a small weight that is a fake, too.

        Of a form without data, or one that is gathered.

        Ints are none: branches depend on them. What ``fully_shard`` gathers of several types are bytes.
        """
        is_number = made.is_floating_point() or made.dtype == torch.uint8
        return self._all_weights and _has_data(made) and ((self._is_looked_at and is_number) or of_form)

    def _fake_weight(self, module: Module, name: str, weight: Parameter | None) -> Parameter | None:
        """Return a fake in place of a weight that a module is given; ``None`` where that is none with data."""
        del module, name
        if weight is None or is_fake(weight) or not _has_data(weight) or are_spread((type(weight),)):
            return None
        if weight not in self._weights:
            self._weights[weight] = Parameter(self.fakes.from_tensor(weight.detach()), weight.requires_grad)
        fake: Parameter = self._weights[weight]
        return fake

    def without_floats(self, value: Any) -> Any:
        """Return the same structure with a fake for every tensor of floats; integers and masks keep their values."""

        def fake(tensor: Tensor) -> Tensor:
            return self.fakes.from_tensor(tensor) if tensor.is_floating_point() and not is_fake(tensor) else tensor

        return tree_map_only(Tensor, fake, value)

    def __enter__(self) -> Self:
        global _ACTIVE  # noqa: PLW0603  (a process has one at most)
        _ACTIVE = self
        super().__enter__()
        self._replaced = DataLoader._get_iterator, torch.utils.swap_tensors
        DataLoader._get_iterator = _iterate_here
        torch.utils.swap_tensors = _take_over  # modules put fakes of another type in their parameters' place by it
        self._hook = register_module_parameter_registration_hook(self._fake_weight) if self._all_weights else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _ACTIVE  # noqa: PLW0603
        DataLoader._get_iterator, torch.utils.swap_tensors = self._replaced
        if self._hook is not None:
            self._hook.remove()
        super().__exit__(kind, error, traceback)
        _ACTIVE = None


_ACTIVE: LargeTensorsAreFake | None = None


def on_fakes() -> AbstractContextManager[FakeTensorMode]:
    """Make everything as fakes inside: of the process's own mode where it has one, as two modes do not mix."""
    if _ACTIVE is not None:
        return _ACTIVE.everything()
    # A kernel that is called by address, as Triton's are, would be given 0 as the address of a fake tensor, and run.
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        mode: AbstractContextManager[FakeTensorMode] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode


def calling_line() -> str:
    """Return the innermost line that runs now outside of torch and this package, as ``train.py:12``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OF_TORCH, _OURS)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else "the script"


def _has_data(tensor: Tensor) -> bool:
    """Tell whether a tensor is more than a form: not on the meta device."""
    return bool(tensor.device.type != "meta")


def _is_large(tensor: Tensor) -> bool:
    if not _has_data(tensor):
        return False
    most = LARGEST_REAL if tensor.is_floating_point() or tensor.is_complex() else LARGEST_INDEX
    size: int = tensor.numel() * tensor.element_size()
    return size > most


def _take_over(one: Tensor, other: Tensor) -> None:
    """Do what ``swap_tensors`` does to the first tensor; it refuses those that anybody has a weak reference to."""
    one.data = other.data


_ITERATE = DataLoader._get_iterator


def _iterate_here(loader: Any) -> Any:
    """Return a DataLoader reads in this process: a fake tensor cannot be sent to another one."""
    loader.num_workers = loader.timeout = 0
    return _ITERATE(loader)
