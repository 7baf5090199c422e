"""The exact bytes of all tensors that are alive, as a step runs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.amounts import NOTHING, Amount
from autorecompute.backends.torch.compiled.forms import is_compiling
from autorecompute.backends.torch.storages import Storages, are_spread, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from torch.nn import Module

    from autorecompute.backends.torch.compiled.live import AllocatedLive
    from autorecompute.backends.torch.work import Work

FORWARD, BACKWARD, OUTSIDE = "forward", "backward", "outside"


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a step.

    Attributes:
        phase: ``forward``, ``backward``, or ``outside`` both: the optimizer and what the script does between steps.
        unit: The unit whose forward runs, or whose nodes the backward pass goes through: its place among the units in
            the order of their calls. -1 before the first.
        is_behind: Whether it is what lies behind the unit and before the next one; behind the last one are the head
            and the loss.
        node: The node that the backward pass is in, counted from the first one of the unit; where nothing repeats, that
            which the forward pass makes as well, counted from the model's first. Segments of one unit are equal
            whatever it is.
    """

    phase: str
    unit: int
    is_behind: bool = False
    node: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True)
class Event:
    """A change of the bytes that are alive.

    Attributes:
        segment: When it happened.
        change: Bytes that came, or went where it is negative.
        storage: The number of the storage that they are of, in this step.
    """

    segment: Segment
    change: int
    storage: int


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of tensors' storages; a context around a step, which then takes about a tenth longer.

    Storages that are resized, as ``fully_shard`` does with gathered parameters, are followed.

    Args:
        known: Tensors that are alive already, such as parameters and the optimizer's state.
        segment: Tells which part of the step runs; asked at every change.
        work: Tells the work of every operator.

    Attributes:
        base: Bytes of what was alive already.
        held: The bytes of each storage that was alive already, by its number, in the order of the tensors.
        now: Bytes that are alive.
        peak: The most so far.
        events: All changes, in order.
        work: The work in each part of the step.
    """

    supports_higher_order_operators = True  # what they make is seen as any operator's

    def __init__(
        self, known: Iterable[Tensor] = (), segment: Callable[[], Segment] | None = None, work: Work | None = None
    ) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.events: list[Event] = []
        self.work: dict[Segment, Amount] = collections.defaultdict(Amount)
        self._segment, self._work = segment, work
        self._sizes: dict[int, int] = {}
        self._is_on = False
        self._storages = Storages(self._gone)
        for tensor in known:
            self._see(tensor)
        self.base = self.peak = self.now
        self.held = dict(self._sizes)

    def __enter__(self) -> Self:
        self._is_on = True
        super().__enter__()
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing(self._resize)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(kind, error, traceback)
        self._is_on = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if are_spread(tuple(types)):  # of a higher-order operator it is a list
            return NotImplemented
        return self._follow(function, args, kwargs or {})

    def _follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and see what it makes."""
        result, amount = self._run(function, args, kwargs)
        if self._is_on and self._segment is not None:
            segment = self._segment()
            if amount is not NOTHING:  # most operators are views
                self.work[segment] += amount
        is_older = _gives_what_it_got(function)
        for tensor in tensors_in(result):
            self._see(tensor, is_older=is_older)
        return result

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Amount]:
        """Return what the operator gives, and its work."""
        result = function(*args, **kwargs)
        return result, NOTHING if self._work is None else self._work.of(function, args, kwargs, result)

    @contextlib.contextmanager
    def before_all(self) -> Iterator[None]:
        """Count what comes and stays inside as alive before the events, among which it is not."""
        before, self._is_on = self.now, False
        made = set(self._sizes)
        try:
            yield
        finally:
            self._is_on = True
            self.base += self.now - before
            self.held |= {number: size for number, size in self._sizes.items() if number not in made}

    def numbers_of(self, tensors: Iterable[Tensor]) -> set[int]:
        """Return the numbers of the storages on which tensors stand."""
        return {self._storages.number(tensor) for tensor in tensors}

    def _see(self, tensor: Tensor, *, is_older: bool = False) -> None:
        number, size = self._storages.see(tensor)
        if size and not is_older:  # a view of what was there before, such as a data set, makes nothing
            self._sizes[number] = size
            self._change(size, number)

    def _resizing(self, resize: Callable[..., Any]) -> Callable[..., Any]:
        """Stand in for ``UntypedStorage.resize_``, which no dispatch mode is told of."""

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            number, _ = self._storages.see_storage(storage)
            before, self._sizes[number] = self._sizes.get(number, 0), size
            self._change(size - before, number)
            return result

        return resize_

    def _gone(self, number: int) -> None:
        self._change(-self._sizes.pop(number, 0), number)

    def _change(self, size: int, storage: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        if self._is_on and self._segment is not None and size:
            self.events.append(Event(self._segment(), size, storage))


@functools.cache
def _gives_what_it_got(function: Any) -> bool:
    """Tell whether an operator's result lies on one of its arguments.

    What ``torch.tensor`` makes comes as an argument.
    """
    if function is torch.ops.aten.lift_fresh.default or isinstance(function, HigherOrderOperator):
        return False
    return any(result.alias_info is not None for result in function._schema.returns)


class StepLive:
    """Counts live tensors between two calls that a script lies between.

    Where the script compiles anything, the profiler counts: under a dispatch mode the compiler would go on without its
    code, to the end of the process.

    Args:
        known: Tells the tensors that are alive when a step begins.
    """

    def __init__(self, known: Callable[[], Iterable[Tensor]]) -> None:
        self._known = known
        self._meter: LiveBytes | None = None
        self._profiled: AllocatedLive | None = None

    def start(self) -> None:
        """Begin a step."""
        if is_compiling():
            from autorecompute.backends.torch.compiled.live import AllocatedLive, LeastHeld  # which needs the profiler

            self._profiled = AllocatedLive(self._known, LeastHeld())
            self._profiled.start()
            return
        self._meter = LiveBytes(self._known())
        self._meter.__enter__()

    def stop(self) -> int:
        """Return the most bytes alive beyond those that were at the start."""
        if self._profiled is not None:
            profiled, self._profiled = self._profiled, None
            return profiled.stop()
        meter, self._meter = self._meter, None
        assert meter is not None, "a step that ends has begun"
        meter.__exit__(None, None, None)
        return meter.peak - meter.base

    def held_bytes(self, measured_bytes: int) -> int:
        """Return what was measured: configs leave nothing behind."""
        return measured_bytes


def tensors_of(model: Module, optimizers: Sequence[torch.optim.Optimizer], batch: Any = ()) -> list[Tensor]:
    """Return the tensors that are alive between two steps: parameters and their gradients, buffers, state, a batch."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [*parameters, *gradients, *model.buffers(), *state_of(optimizers), *tensors_in(batch)]


def state_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """Return the tensors that optimizers keep between two steps."""
    return [value for optimizer in optimizers for value in tensors_in(list(optimizer.state.values()))]
