"""Fake tensors, and the operators that run on them."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import operator
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch.nn import Parameter
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from autorecompute.backends.torch.fake.live import LiveBytes
from autorecompute.backends.torch.find.source import calling_frame
from autorecompute.backends.torch.find.storages import WITH_FAKES, are_spread, looks_at_values
from autorecompute.backends.torch.forecast.records import NOTHING, Amount
from autorecompute.backends.torch.switch.module_state import exchanged
from autorecompute.backends.torch.switch.script_state import kept
from autorecompute.errors import ScriptError
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.backends.torch.fake.live import Segment
    from autorecompute.backends.torch.find.storages import Values

    _Remake = Callable[[Sequence[FakeTensor]], Any]


_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_GROUPED_PRODUCT: Any = torch.ops.aten._grouped_mm.default if hasattr(torch.ops.aten, "_grouped_mm") else None
_MATRIX = 2
_NEVER_THE_SAME = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_CONSTANTS = {bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}


class FakeOperators:
    """Runs operators on fake tensors of a mode; ``work_of`` tells the work of one, by its arguments and its result."""

    def __init__(self, mode: FakeTensorMode, work_of: Callable[..., Amount]) -> None:
        self._mode, self.work_of = mode, work_of
        self._answers: dict[Any, tuple[_Remake, Amount]] = {}

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Amount]:
        """Return an operator's result and its work."""
        if _is_view(function) and not kwargs and type(args[0]) is FakeTensor:
            result = _view(function, args)
            return result, NOTHING if function is not _UNSAFE_VIEW else self.work_of(function, args, kwargs, result)
        parts: list[Any] = [function, torch.get_default_dtype()]
        tensors: list[FakeTensor] = []
        is_known = _is_told_by_forms(function) and _add((args, tuple(kwargs.items())), parts, tensors)
        key = tuple(parts) if is_known else None
        if key is not None and (answer := self._answers.get(key)) is not None:
            remake, work = answer
            return remake(tensors), work
        result = _result_of(function, args, kwargs)
        work = self.work_of(function, args, kwargs, result)
        if key is not None:
            taken = {tensor.untyped_storage()._cdata for tensor in tensors}
            if (new := self._remake_of(result, tensors, taken)) is not None:
                self._answers[key] = new, work
        return result, work

    def _remake_of(self, result: Any, given: Sequence[FakeTensor], taken: set[int]) -> _Remake | None:
        """Return what makes such a result from tensors of the same forms; ``None`` where forms do not tell it all.

        That is so where a tensor lies on a part of a storage, or on one that is taken, which those of the result join.
        """
        kind = type(result)
        if kind is FakeTensor:
            place = next((place for place, tensor in enumerate(given) if tensor is result), None)
            return operator.itemgetter(place) if place is not None else self._remake_of_new(result, taken)
        if kind in {tuple, list}:
            parts = [self._remake_of(one, given, taken) for one in result]
            known = [part for part in parts if part is not None]
            return (lambda given: kind(part(given) for part in known)) if len(known) == len(parts) else None
        return (lambda _: result) if kind in _CONSTANTS else None

    def _remake_of_new(self, tensor: FakeTensor, taken: set[int]) -> _Remake | None:
        size, stride, dtype, device = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device
        last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        whole = 0 if 0 in size else (last + 1) * dtype.itemsize
        storage = tensor.untyped_storage()
        is_whole = storage.nbytes() == whole and tensor.storage_offset() == 0 and tensor.constant is None
        if not is_whole or storage._cdata in taken:
            return None
        taken.add(storage._cdata)

        def remake(_given: Sequence[FakeTensor]) -> FakeTensor:
            with torch._C._DisableTorchDispatch():
                made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
            return FakeTensor(self._mode, made, device)

        return remake


def _result_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on fake tensors, which refuse grouped products of other types than bfloat16; a CPU makes them."""
    if function is not _GROUPED_PRODUCT or args[0].dtype is torch.bfloat16:
        return function(*args, **kwargs)
    first, second = args[:2]
    offsets: Any = args[2] if len(args) > 2 else kwargs.get("offs")  # noqa: PLR2004
    groups: tuple[int, ...] = ()
    if first.dim() == second.dim():
        groups = tuple(offsets.shape if first.dim() == _MATRIX else first.shape[:1])
    return first.new_empty((*groups, first.shape[-2], second.shape[-1]))


@functools.cache
def _is_view(function: Any) -> bool:
    """Tell whether an operator only looks at its first argument in another way."""
    return function is _UNSAFE_VIEW or getattr(function, "is_view", False)


def _view(function: Any, args: tuple[Any, ...]) -> Any:
    """Return the view that ``FakeTensorMode`` gives, in less time."""
    mode, device = args[0].fake_mode, args[0].fake_device
    with in_kernel_invocation_manager(mode):
        result = function(*args)
    if isinstance(result, Tensor):
        return FakeTensor(mode, result, device)
    return [FakeTensor(mode, tensor, device) for tensor in result]


@functools.cache
def _is_told_by_forms(function: Any) -> bool:
    """Tell whether the forms of an operator's arguments tell that of its result."""
    is_plain = isinstance(function, OpOverload) and function.namespace in {"aten", "prims"}
    return is_plain and _NEVER_THE_SAME.isdisjoint(function.tags)


def _add(value: Any, parts: list[Any], tensors: list[FakeTensor]) -> bool:
    """Add the form of a value, and the tensors in it; tell whether that tells all about it."""
    if type(value) is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided or value.dtype.is_complex:
            return False
        tensors.append(value)
        parts += (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device)
        return True
    if isinstance(value, (tuple, list)):
        parts.append(len(value))
        return all(_add(one, parts, tensors) for one in value)
    parts += (type(value), value)  # 1, 1.0 and True are equal
    return type(value) in _CONSTANTS


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


@contextlib.contextmanager
def taken_for_real() -> Iterator[None]:
    """Have transformers take fake tensors for real ones (``is_tracing`` in ``transformers/utils/import_utils.py``).

    Where it believes to be traced, it makes masks of (batch, 1, length, length) that no training has.
    """
    utilities: Any = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(utilities, "is_fake_tensor"):  # before transformers 5
        yield
        return
    before = utilities.is_fake_tensor
    utilities.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        utilities.is_fake_tensor = before


def is_fake(tensor: Tensor) -> bool:
    """Tell whether a tensor, or this rank's part of one, has no data."""
    return isinstance(getattr(tensor, "_local_tensor", tensor), FakeTensor)


def is_same(made_again: Tensor, tensor: Tensor) -> bool:
    """Tell whether two tensors are equal bit for bit; of fake ones nobody can tell, and the form has to do."""
    return is_fake(tensor) or torch.equal(made_again, tensor)


class FakeLiveBytes(LiveBytes):
    """Counts the bytes of fake tensors, and tells their values where they were recorded.

    Attributes:
        state: Numbers of the storages that an optimizer makes in its first step.
        kinds: The kind of a storage's bytes, by its number (``steps.told_apart``); activations have none.
    """

    def __init__(
        self, known: Iterable[Tensor], segment: Callable[[], Segment], operators: FakeOperators, values: Values
    ) -> None:
        super().__init__(known, segment)
        self._operators, self._values = operators, values
        self.state: set[int] = set()
        self.kinds: dict[int, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to tell the compiler so at each operator takes its time

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is _DEVICE:  # autograd asks for it more often than for all else
            return args[0].fake_device
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Amount]:
        if isinstance(function, HigherOrderOperator):
            return function(*args, **kwargs), NOTHING
        if looks_at_values(function, args):
            result = self._values.next(function)
            return result, self._operators.work_of(function, args, kwargs, result)
        try:
            return self._operators.run(function, args, kwargs)
        except RuntimeError:
            if function.namespace in WITH_FAKES:
                raise
            # It has a kernel, and nothing that tells the form of what that gives.
            result = self._values.of_form(function, (args, kwargs))
            return result, self._operators.work_of(function, args, kwargs, result)


@contextlib.contextmanager
def in_fakes(mode: FakeTensorMode, model: Module, optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Have the parameters and buffers of a model, and what its optimizers step and keep, be fakes.

    What an optimizer writes in itself and in its groups meanwhile is gone.
    """
    made: dict[int, Parameter] = {}

    def fake(real: Parameter) -> Parameter:
        if id(real) not in made:
            made[id(real)] = real if is_fake(real) else Parameter(mode.from_tensor(real.detach()), real.requires_grad)
        return made[id(real)]

    with contextlib.ExitStack() as undone:
        for module in model.modules():
            parameters, buffers = dict(module._parameters), dict(module._buffers)
            undone.callback(module._parameters.update, parameters)
            undone.callback(module._buffers.update, buffers)
            module._parameters.update({name: fake(one) for name, one in parameters.items() if one is not None})
            module._buffers.update({name: as_fakes(one, mode) for name, one in buffers.items() if one is not None})
        for optimizer in optimizers:
            undone.enter_context(_optimizer_in_fakes(optimizer, fake, mode))
        yield


@contextlib.contextmanager
def _optimizer_in_fakes(
    optimizer: Optimizer, fake: Callable[[Parameter], Parameter], mode: FakeTensorMode
) -> Iterator[None]:
    attributes = dict(vars(optimizer))
    faked = {fake(real): as_fakes(values, mode) for real, values in optimizer.state.items()}
    groups = [(group, group["params"]) for group in optimizer.param_groups]
    with kept(value for name, value in attributes.items() if name != "state"):
        optimizer.state = collections.defaultdict(dict, faked)
        for group, parameters in groups:
            group["params"] = [fake(real) for real in parameters]
        try:
            yield
        finally:
            vars(optimizer).clear()
            vars(optimizer).update(attributes)
            for group, parameters in groups:
                group["params"] = parameters


def as_fakes(value: Any, mode: FakeTensorMode) -> Any:
    """Return the value with fake tensors in it; what holds them are copies."""
    return exchanged(value, lambda tensor: tensor if is_fake(tensor) else mode.from_tensor(tensor))


def resized(value: Any, batch: int, target: int) -> Any:
    """Return the same structure with every tensor of ``batch`` samples as one of ``target``, of unknown values."""

    def resize(tensor: Tensor) -> Tensor:
        if target != batch and tensor.dim() and tensor.shape[0] == batch:
            return tensor.new_empty((target, *tensor.shape[1:])).requires_grad_(tensor.requires_grad)
        return tensor

    return exchanged(value, resize)


LARGEST_REAL = MIB
"""Bytes of the largest tensor of floats that has data; smaller ones steer what a script does, such as a schedule."""

LARGEST_INDEX = 256 * MIB  # the same of integers and booleans: their values decide what runs


class LargeTensorsAreFake(TorchDispatchMode):  # type: ignore[misc]
    """Runs operators on fake tensors wherever a large one takes part, and on real ones elsewhere; a context.

    Args:
        all_weights: True if small weights are fakes, too: one rank's shares of parameters lie in one buffer together.

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
        # What a worker of a DataLoader makes has to be sent.
        if self._is_suspended or os.getpid() != self._process:
            return function(*args, **kwargs)
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if any(is_fake(tensor) or _is_large(tensor) for tensor in given):
            return self._on_fakes(function, args, kwargs)
        if all(tensor.device.type == "meta" for tensor in given):  # where to_empty() makes weights, too
            with self.fakes:
                made = function(*args, **kwargs)
            if isinstance(made, Tensor) and (_is_large(made) or self._is_weight(made, of_form=bool(given))):
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
        """Make small tensors as fakes, too."""
        self._is_suspended = True
        try:
            with self.fakes:
                yield self.fakes
        finally:
            self._is_suspended = False

    @contextlib.contextmanager
    def small_ones_too(self, model: Module, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """Have the small tensors of a model and of its optimizers be fakes."""
        self._is_looked_at = True
        try:
            with in_fakes(self.fakes, model, optimizers):
                yield
        finally:
            self._is_looked_at = False

    def _is_weight(self, made: Tensor, *, of_form: bool) -> bool:
        """Tell whether a new tensor is a small weight that is a fake, too: of a form without data, or gathered.

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
        use(self.everything)
        super().__enter__()
        self._replaced = DataLoader._get_iterator, torch.utils.swap_tensors
        DataLoader._get_iterator = _iterate_here
        torch.utils.swap_tensors = _take_over  # modules put fakes of another type in their parameters' place by it
        self._hook = register_module_parameter_registration_hook(self._fake_weight) if self._all_weights else None
        return self

    def __exit__(self, *exception: object) -> None:
        DataLoader._get_iterator, torch.utils.swap_tensors = self._replaced
        if self._hook is not None:
            self._hook.remove()
        super().__exit__(*exception)
        use(None)


_in_use: Callable[[], AbstractContextManager[FakeTensorMode]] | None = None


def use(everything: Callable[[], AbstractContextManager[FakeTensorMode]] | None) -> None:
    """Have :func:`on_fakes` make fakes as a mode does that this process is under, or by none."""
    global _in_use  # noqa: PLW0603  (a process has one at most)
    _in_use = everything


def on_fakes() -> AbstractContextManager[FakeTensorMode]:
    """Make everything as fakes inside: of the process's own mode where it has one, as two modes do not mix."""
    if _in_use is not None:
        return _in_use()
    # A kernel that is called by address, as Triton's are, would be given 0 as the address of a fake tensor, and run.
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        mode: AbstractContextManager[FakeTensorMode] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode


def calling_line() -> str:
    """Return the innermost line that runs now outside of torch and this package, as ``train.py:12``."""
    frame = calling_frame()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else "the script"


def _has_data(tensor: Tensor) -> bool:
    return bool(tensor.device.type != "meta")


def _is_large(tensor: Tensor) -> bool:
    most = LARGEST_REAL if tensor.is_floating_point() or tensor.is_complex() else LARGEST_INDEX
    return _has_data(tensor) and bool(tensor.numel() * tensor.element_size() > most)


def _take_over(one: Tensor, other: Tensor) -> None:
    """Do what ``swap_tensors`` does to the first tensor; it refuses those that anybody has a weak reference to."""
    one.data = other.data


_ITERATE = DataLoader._get_iterator


def _iterate_here(loader: Any) -> Any:
    """Have a DataLoader read in this process: a fake tensor cannot be sent to another one."""
    loader.num_workers = loader.timeout = 0
    return _ITERATE(loader)
