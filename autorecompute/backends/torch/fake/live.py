"""Counts the bytes that are alive in a step, and the work that it does."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from autorecompute.backends.common import tensors_in
from autorecompute.backends.torch.compiled.forms import AllocatedLive, is_compiling
from autorecompute.backends.torch.find.storages import Storages, are_spread, storage_of
from autorecompute.backends.torch.forecast.cards import FLOAT, TF32
from autorecompute.backends.torch.forecast.records import NOTHING, Amount
from autorecompute.memory import Machine
from autorecompute.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module


REPEATS = 5
LONG_ENOUGH_SECONDS = 0.005
"""A product that takes this long is large enough to tell the speed, and small enough where a type is slow."""

SMALLEST, LARGEST = 256, 8192  # rows of the matrices that are multiplied
COPIED = {"cpu": 64 * MIB, "cuda": GIB}  # bytes that are read and written: more than caches hold


class _Multiplying(dict[str, float]):
    """Speeds of matrix products on this machine by type of numbers, each measured when it is first asked for."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, kind: str) -> float:
        if kind == TF32:  # what is measured is what the script has switched on
            return self[FLOAT]
        rows, seconds = SMALLEST // 2, 0.0
        while seconds < LONG_ENOUGH_SECONDS and rows < LARGEST:
            rows *= 2
            # Fake tensors are made of everything around, and a fake takes no time.
            with _disable_current_modes(), torch.no_grad():
                one = torch.ones(rows, rows, dtype=getattr(torch, kind), device=self._device)
                seconds = _best(functools.partial(torch.mm, one, one.clone(), out=torch.empty_like(one)), self._device)
        self[kind] = speed = 2 * rows**3 / seconds
        return speed


def this_machine(device: str) -> Machine:
    """Return what is measured here, in some milliseconds for the memory and for each type of numbers."""
    size = COPIED.get(device, COPIED["cpu"])
    with _disable_current_modes(), torch.no_grad():
        source = torch.ones(size, dtype=torch.uint8, device=device)
        seconds = _best(functools.partial(torch.zeros_like(source).copy_, source), device)
    return Machine(
        name="this machine",
        source=f"measured on {device}: the best of {REPEATS} matrix products, and of {REPEATS} copies",
        is_measured=True,
        operations_per_second=_Multiplying(device),
        bytes_per_second=2 * size / seconds,
    )


def _best(call: Callable[[], object], device: str) -> float:
    """Return the shortest time of some calls: others on the machine make them longer, nothing makes them shorter."""
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(1 + REPEATS):
        settle()
        begin = time.perf_counter()
        call()
        settle()
        seconds.append(max(time.perf_counter() - begin, 1e-9))
    return min(seconds[1:])


ROUGH = {
    device: Machine(name=device, source="", is_measured=False, operations_per_second={FLOAT: speed}, bytes_per_second=1)
    for device, speed in (("cpu", 10.0), ("cuda", 100.0))
}
"""In place of speeds the multiplications and additions in the time in which a device reads or writes a byte: they order
configs before a step of any has run. Trials correct them."""

_ATEN = torch.ops.aten
_CONVOLUTIONS = {_ATEN.convolution, _ATEN._convolution, _ATEN.convolution_backward}
_LOOKUPS = {_ATEN.embedding, _ATEN.index_select, _ATEN.gather, _ATEN.index}
"""They read as much of their table as they give."""

_IDLE = {_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided}
"""They reserve memory and neither read nor write it."""


def work_of(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, *, machine: Machine
) -> Amount:
    """Return the work of one operator, and its time on a machine."""
    packet = getattr(function, "overloadpacket", None)
    if getattr(function, "is_view", False) or packet in _IDLE:
        return NOTHING
    given = [*tensors_in(args), *tensors_in(kwargs)]
    written = list(tensors_in(args[0] if result is None and args else result))  # or else the lists that it changes
    read = written if packet in _LOOKUPS else given
    moved = float(sum(math.prod(tensor.shape) * tensor.element_size() for tensor in (*read, *written)))
    count = _OWN_COUNTS.get(packet) or flop_registry.get(packet)
    operations = float(count(*args, **kwargs, out_val=result)) if count is not None else 0.0
    cost = moved / machine.bytes_per_second
    if operations:
        cost = max(cost, operations / _speed(machine, packet, given[0]))
    return Amount(operations=operations, moved_bytes=moved, cost=cost)


def _speed(machine: Machine, packet: Any, tensor: Tensor) -> float:
    """Return the operations a second of an operator; a type that a card has no figure for is as float32."""
    kind, speeds = str(tensor.dtype).removeprefix("torch."), machine.operations_per_second
    # Only a card has a speed of its own for it, and torch refuses to tell of settings that differ.
    kind = TF32 if kind == FLOAT and TF32 in speeds and takes_tf32(packet) else kind
    return speeds[kind if machine.is_measured or kind in speeds else FLOAT]


def takes_tf32(packet: Any = None) -> bool:
    """Tell whether the script lets a card's tensor cores round float32 for an operator: a matrix product by default."""
    if packet in _CONVOLUTIONS:
        try:
            return bool(torch.backends.cudnn.allow_tf32)
        except RuntimeError:  # convolutions and recurrent layers differ, as they can since torch 2.9
            return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # since torch 2.9, which does not tell the older setting in every case
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **_kwargs: Any) -> int:
    """Return a product for the scores, and one for the result; a mask spares nothing, as in torch's counter."""
    return 2 * _scores(query, key) * int(query.shape[-1] + value.shape[-1])


def _attention_backward(_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **_kwargs: Any) -> int:
    """Return the scores once more, and products for the gradients of query, key, scores and value."""
    return 2 * _scores(query, key) * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: Tensor, key: Tensor) -> int:
    return int(math.prod(query.shape[:-1]) * key.shape[-2])


_OWN_COUNTS: Mapping[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Operators that torch's counter leaves out: attention of a CPU."""


FORWARD, BACKWARD, OUTSIDE = "forward", "backward", "outside"


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a step.

    Attributes:
        phase: ``forward``, ``backward``, or ``outside`` both: the optimizer and what the script does between steps.
        unit: The unit whose forward runs, or whose nodes the backward pass goes through: its place among the units in
            the order of their calls. -1 before the first.
        is_behind: True for what lies behind the unit and before the next one; behind the last one are the head and the
            loss.
        node: The node that the backward pass is in, counted from the first one of the unit; where nothing repeats, that
            which the forward pass makes as well, counted from the model's first. Segments are equal whatever it is.
    """

    phase: str
    unit: int
    is_behind: bool = False
    node: int = dataclasses.field(default=0, compare=False)


class Event(NamedTuple):
    """A change of the bytes that are alive: those of a storage, by its number in this step, came or went."""

    segment: Segment
    change: int
    storage: int


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of tensors' storages; a context around a step, which then takes about a tenth longer.

    Storages that are resized, as ``fully_shard`` does with gathered parameters, are followed.

    Args:
        known: Tensors that are alive already, such as parameters and the optimizer's state.
        segment: Returns the part of the step that runs; asked at every change.

    Attributes:
        base: Bytes of what was alive already.
        held: The bytes of each storage that was alive already, by its number, in the order of the tensors.
    """

    supports_higher_order_operators = True  # what they make is seen as any operator's

    def __init__(self, known: Iterable[Tensor] = (), segment: Callable[[], Segment] | None = None) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.events: list[Event] = []
        self.work: dict[Segment, Amount] = collections.defaultdict(Amount)
        self._segment = segment
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

    def __exit__(self, *exception: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*exception)
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
        is_older = gives_what_it_got(function)
        for tensor in tensors_in(result):
            self._see(tensor, is_older=is_older)
        return result

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Amount]:
        """Return an operator's result and its work, which nobody asks for here."""
        return function(*args, **kwargs), NOTHING

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
        # A view of what was there before, such as a data set, makes nothing, and neither does a shape alone.
        if size and not is_older and tensor.device.type != "meta":
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
def gives_what_it_got(function: Any) -> bool:
    """Tell whether an operator's result lies on one of its arguments; what ``torch.tensor`` makes comes as one."""
    if function is torch.ops.aten.lift_fresh.default or isinstance(function, HigherOrderOperator):
        return False
    return any(result.alias_info is not None for result in function._schema.returns)


class StepLive:
    """Counts live tensors between two calls that a script lies between.

    Where the script compiles anything, the profiler counts: under a dispatch mode the compiler would go on without its
    code, to the end of the process.

    Args:
        known: Tells the tensors that are alive between two steps.
        later: Forecasts of a later step, which trains more, the most bytes that it adds and those that lie between two
            of them beside the model.
    """

    def __init__(
        self, known: Callable[[], Iterable[Tensor]], later: Callable[[], tuple[int, int]] = lambda: (0, 0)
    ) -> None:
        self._known, self._later = known, later
        self._meter: AllocatedLive | LiveBytes | None = None

    def start(self) -> None:
        """Begin a step."""
        if is_compiling():
            self._meter = AllocatedLive(self._known)
            self._meter.start()
        else:
            self._meter = LiveBytes(self._known()).__enter__()

    def stop(self) -> int:
        """Return the most bytes alive beyond those that were at the start, in this step or in a later one."""
        meter, self._meter = self._meter, None
        assert meter is not None, "a step that ends has begun"
        later_bytes, _ = self._later()
        if isinstance(meter, AllocatedLive):
            return max(meter.stop(), later_bytes)
        meter.__exit__(None, None, None)
        return max(meter.peak - meter.base, later_bytes)

    def held_bytes(self, measured_bytes: int) -> int:
        """Return the measured bytes, with what the optimizer's state will have grown by before a later step."""
        _, wanted_bytes = self._later()
        if not wanted_bytes:
            return measured_bytes
        there = [one for one in self._known() if not isinstance(one, torch.nn.Parameter)]
        there_bytes: int = sum(one.nbytes if one.layout is torch.strided else storage_of(one).nbytes() for one in there)
        return measured_bytes + max(0, wanted_bytes - there_bytes)


def tensors_of(model: Module, optimizers: Sequence[torch.optim.Optimizer], batch: Any = ()) -> list[Tensor]:
    """Return the tensors that are alive between two steps: parameters and their gradients, buffers, state, a batch."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [*parameters, *gradients, *model.buffers(), *state_of(optimizers), *tensors_in(batch)]


def state_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """Return the tensors that optimizers keep between two steps."""
    return [value for optimizer in optimizers for value in tensors_in(list(optimizer.state.values()))]
