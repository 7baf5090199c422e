"""A process in which no large tensor has data, so that a script trains a model that no memory here holds.

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
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader

from autorecompute.backends.torch.fake_tensors import Fakes
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

    Attributes:
        fakes: The mode of all fake tensors of the process.
        assumed: Lines that looked at a number in a fake tensor: it was taken to be 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.assumed: dict[str, None] = {}
        self._process = os.getpid()
        self._is_suspended = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_suspended:
            return function(*args, **kwargs)
        if os.getpid() != self._process:  # what a worker of a DataLoader makes has to be sent
            return function(*args, **kwargs)
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if any(is_fake(tensor) or _is_large(tensor) for tensor in given):
            return self._on_fakes(function, args, kwargs)
        if not given:
            with self.fakes:
                made = function(*args, **kwargs)
            if isinstance(made, Tensor) and _is_large(made):
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
        fakes = Fakes(self.fakes)
        with fakes.in_model(model), contextlib.ExitStack() as swapped:
            for optimizer in optimizers:
                swapped.enter_context(fakes.in_optimizer(optimizer))
            yield

    def without_floats(self, value: Any) -> Any:
        """The same structure with a fake for every tensor of floats; integers and masks keep their values."""

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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _ACTIVE  # noqa: PLW0603
        DataLoader._get_iterator, torch.utils.swap_tensors = self._replaced
        super().__exit__(kind, error, traceback)
        _ACTIVE = None


_ACTIVE: LargeTensorsAreFake | None = None


def on_fakes() -> AbstractContextManager[FakeTensorMode]:
    """Everything is made as fakes inside: of the process's own mode where it has one, as two modes do not mix."""
    return FakeTensorMode(allow_non_fake_inputs=True) if _ACTIVE is None else _ACTIVE.everything()


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has no data."""
    return isinstance(tensor, FakeTensor)


def calling_line() -> str:
    """The innermost line that runs now outside of torch and this package, as ``train.py:12``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OF_TORCH, _OURS)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else "the script"


def _is_large(tensor: Tensor) -> bool:
    if tensor.device.type == "meta":
        return False
    most = LARGEST_REAL if tensor.is_floating_point() or tensor.is_complex() else LARGEST_INDEX
    size: int = tensor.numel() * tensor.element_size()
    return size > most


def _take_over(one: Tensor, other: Tensor) -> None:
    """What ``swap_tensors`` does to the first tensor; it refuses those that anybody has a weak reference to."""
    one.data = other.data


_ITERATE = DataLoader._get_iterator


def _iterate_here(loader: Any) -> Any:
    """A DataLoader reads in this process: a fake tensor cannot be sent to another one."""
    loader.num_workers = loader.timeout = 0
    return _ITERATE(loader)
