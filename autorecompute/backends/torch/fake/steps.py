"""Runs the script's training step on fake tensors."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import functools
import gc
import inspect
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import _get_sequence_nr
from torch.nn import functional
from torch.optim import Optimizer

from autorecompute.backends.common import observe_batch, tensors_in
from autorecompute.backends.torch.fake.live import (
    BACKWARD,
    FORWARD,
    OUTSIDE,
    ROUGH,
    Segment,
    state_of,
    tensors_of,
    work_of,
)
from autorecompute.backends.torch.fake.repeats import last_result
from autorecompute.backends.torch.fake.tensors import (
    FakeLiveBytes,
    FakeOperators,
    as_fakes,
    in_fakes,
    on_fakes,
    quietly,
    resized,
    taken_for_real,
)
from autorecompute.backends.torch.find.graphs import kept_gradients
from autorecompute.backends.torch.find.source import keeps_for_backward, replica_around
from autorecompute.backends.torch.find.structure import is_sharded
from autorecompute.backends.torch.switch.intercepting import around_of, put_around
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.backends.torch.switch.module_state import exchanged, out_of_autocast, untouched, without_collection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import Module, Parameter

    from autorecompute.backends.torch.find.storages import Values
    from autorecompute.backends.torch.switch.switchboard import Switchboard
    from autorecompute.memory import Machine
    from autorecompute.plans import Choice

    Call = tuple[tuple[Any, ...], dict[str, Any]]
    Take = Callable[..., FakeLiveBytes]


class Timeline:
    """Tells which part of a step runs, from the calls of units and from the node that autograd is at.

    Put ``around`` around each unit and all that is around it already: what a unit drops when it returns belongs to it.

    Args:
        repeats: True if there are units. Where there are none, each pass is told apart by the graph's nodes alone.
    """

    def __init__(self, *, repeats: bool = True) -> None:
        self._repeats, self._first, self._made = repeats, 0, 0
        self._calls: list[tuple[int, int]] = []
        self._phase = FORWARD
        self._last = self._forward = Segment(FORWARD, -1)

    def start(self) -> None:
        """Begin a step."""
        self._calls.clear()
        self._phase, self._forward, self._first = FORWARD, Segment(FORWARD, -1), _get_sequence_nr()

    def enter_backward(self) -> None:
        """Begin the backward pass. Gradients that the forward pass computes belong to that."""
        self._phase, self._made = BACKWARD, _get_sequence_nr()

    def leave_backward(self) -> None:
        """End the backward pass: the optimizer is next."""
        self._phase = OUTSIDE

    def around(self, forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Follow one unit's call; an ``Around``."""
        is_forward = self._phase != BACKWARD and torch._C._current_autograd_node() is None
        if not is_forward or not keeps_for_backward():
            return forward(*args, **kwargs)
        first, place = _get_sequence_nr(), len(self._calls)
        self._forward = Segment(FORWARD, place)
        try:
            return forward(*args, **kwargs)
        finally:
            self._calls.append((first, _get_sequence_nr()))
            self._forward = Segment(FORWARD, place, is_behind=True)

    def segment(self) -> Segment:
        """Return the part that runs now."""
        node = torch._C._current_autograd_node()
        if self._phase == FORWARD:
            made = _get_sequence_nr() - self._first
            self._last = self._forward if self._repeats else Segment(FORWARD, -1, node=made)
        elif self._phase == OUTSIDE:
            self._last = Segment(OUTSIDE, -1)
        elif node is not None:
            self._last = self._going_through(node._sequence_nr())
        return self._last

    def _going_through(self, number: int) -> Segment:
        if number >= 1 << 62:  # gradients are put where they belong by nodes without a number
            is_first = self._last.phase != BACKWARD
            return Segment(BACKWARD, len(self._calls) - 1, is_behind=True) if is_first else self._last
        if number >= self._made and self._last.phase == BACKWARD:  # a checkpoint that reenters autograd made it
            return self._last
        unit = bisect.bisect_right(self._calls, number, key=operator.itemgetter(0)) - 1
        if unit < 0:
            return Segment(BACKWARD, -1, node=0 if self._repeats else number - self._first)
        first, end = self._calls[unit]
        is_behind = number >= end
        return Segment(BACKWARD, unit, is_behind, number - (end if is_behind else first))


PARAMETERS, GRADIENTS, GATHERED = "parameters", "gradients", "gathered"
"""Kinds of bytes: parameters and buffers of the model; gradients; what comes from other ranks or goes to them."""

GATHERS = ("unshard", "wait_for_unshard")
REDUCES = "post_backward"
"""The method of ``fully_shard`` that reduces the gradients of a parameter group; private to torch."""


@contextlib.contextmanager
def told_apart(model: Module, meter: FakeLiveBytes, buckets: Buckets | None) -> Iterator[Callable[[], None]]:
    """Follow what ``fully_shard`` gathers and reduces in a step, and tell the kinds of its storages in ``meter.kinds``.

    Gives what is to be called at the end of the backward pass: what the parameters have then are gradients.
    """
    held = meter.numbers_of([*model.parameters(), *model.buffers()])
    gathered, gradients = set[int](), set[int]()
    if buckets is not None:
        (gradients if buckets.are_gradients else gathered).update(meter.numbers_of(buckets.tensors))

    def note_gradients() -> None:
        gradients.update(meter.numbers_of(one.grad for one in model.parameters() if one.grad is not None))

    def following(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if original.__name__ == REDUCES:
                gradients.update(meter.numbers_of(_unsharded_gradients(group)))
            begin = len(meter.events)
            result = original(group, *args, **kwargs)
            gathered.update(event.storage for event in meter.events[begin:] if event.change > 0)
            return result

        return call

    with contextlib.ExitStack() as followed:
        if buckets is not None:
            followed.enter_context(buckets.in_use())
        if is_sharded(model):
            from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

            for name in (*GATHERS, REDUCES):
                original = getattr(FSDPParamGroup, name)
                followed.callback(setattr, FSDPParamGroup, name, original)
                setattr(FSDPParamGroup, name, following(original))
        yield note_gradients
    kinds = ((gathered, GATHERED), (gradients, GRADIENTS), (held, PARAMETERS))  # the last one decides
    meter.kinds = {number: kind for numbers, kind in kinds for number in numbers}


def _unsharded_gradients(group: Any) -> Iterator[Tensor]:
    for one in group.fsdp_params:
        whole = getattr(one, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad
        if one.unsharded_accumulated_grad is not None:
            yield one.unsharded_accumulated_grad


class Buckets:
    """The buckets in which ``DistributedDataParallel`` has gradients summed over ranks, for as long as it lives.

    Args:
        are_gradients: True if the gradients lie in them (``gradient_as_bucket_view``), and not beside them.

    Attributes:
        tensors: Their parts, one for each parameter that is trained.
    """

    def __init__(self, parameters: Iterable[Parameter], *, are_gradients: bool) -> None:
        trained = dict.fromkeys(one for one in parameters if one.requires_grad)
        self._buckets = {one: torch.empty_like(one, requires_grad=False) for one in trained}
        self.tensors, self.are_gradients = list(self._buckets.values()), are_gradients

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have gradients that come inside lie where they would."""
        if not self.are_gradients:
            yield
            return

        def put(parameter: Tensor) -> None:
            parameter.grad = self._buckets[parameter]

        hooks = [one.register_post_accumulate_grad_hook(put) for one in self._buckets]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def buckets_around(module: Module) -> Buckets | None:
    """Return those of the ``DistributedDataParallel`` that is calling the module now; ``None`` where there is none."""
    replica = replica_around(module)
    if replica is None:
        return None
    return Buckets(module.parameters(), are_gradients=replica.gradient_as_bucket_view)


def returned_loss(result: Any) -> Tensor:
    """Return the loss in what a model returns: what it calls so, or the first number that gradients go back through.

    Of a model that leaves the loss to the script this is a stand-in, which takes the memory of a cross entropy: one
    tensor of the size of the result is saved, and two are made in the backward pass.
    """
    if (loss := loss_in(result)) is not None:
        return loss
    # Each first class is the right one: no labels are needed for that.
    scores = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    return torch.stack([_loss_of(one) for one in scores]).sum()


def _loss_of(scores: Tensor) -> Tensor:
    if isinstance(scores, Logits):
        rows = scores.flatten(0, -2)
        return functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device))
    return -scores.log_softmax(-1)[..., 0].mean() if scores.dim() > 1 else scores.mean()


def loss_in(result: Any) -> Tensor | None:
    """Return the loss among what a model returns; ``None`` where there is none."""
    named = result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None)
    if isinstance(named, Tensor):
        return named
    return next((tensor for tensor in tensors_in(result) if tensor.requires_grad and tensor.dim() == 0), None)


@dataclasses.dataclass(frozen=True)
class Script:
    """Work of a script around its model in one step.

    Attributes:
        loss: Returns the loss in what the model returns.
        holds_result: True if what the model returns is still held when the backward pass begins.
        batch: The samples in the arguments, and as many as a step is to have; ``None`` for those in the arguments.
        keeps_gradients: True if those of the last step are held until the next forward pass is through.
        accumulates: True if gradients of batches before it are held all through it.
        buckets: Buckets of the ``DistributedDataParallel`` around the model; ``None`` where there is none.
        calls: Number of calls of the model, with as much each time, before the backward pass through all of them.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    optimizers: Sequence[Optimizer] = ()
    loss: Callable[[Any], Tensor] = returned_loss
    holds_result: bool = False
    batch: tuple[int, int] | None = None
    keeps_gradients: bool = False
    accumulates: bool = False
    buckets: Buckets | None = None
    calls: int = 1

    @property
    def begins_with_gradients(self) -> bool:
        """Tell whether gradients are there when a step begins."""
        return self.keeps_gradients or self.accumulates


class FakeSteps:
    """Runs steps of a model on fake tensors.

    Args:
        units: Paths of the model's units, which the events tell apart.
        values: Values that modules looked at in the probe.

    Attributes:
        has_loss: True if the model of the last step returned a loss, or a number with a gradient.
    """

    def __init__(self, model: Module, units: Iterable[str], script: Script, values: Values) -> None:
        self._model, self._redirection = model, vars(model).get("forward")
        self._units = [model.get_submodule(path) for path in units]
        self._timeline = Timeline(repeats=bool(self._units))
        self._script = script
        self._values = values
        self._batch = script.batch[1] if script.batch else observe_batch([*script.args, *script.kwargs.values()])
        self.has_loss = False

    def run(self, board: Switchboard, choices: Iterable[Choice]) -> FakeLiveBytes:
        """Return the bytes of a step under these choices, as of every step after the first."""
        with self.taking(board) as take:
            take((), optimizes=True)  # makes the optimizers' state
            return take(choices, optimizes=True)

    @contextlib.contextmanager
    def prepared(self, board: Switchboard, machine: Machine | None = None) -> Iterator[tuple[FakeLiveBytes, Take]]:
        """Take a step with nothing on, and give it with what takes others after it, as :meth:`taking` does."""
        with self.taking(board, machine) as take:
            if self._script.begins_with_gradients:
                take(())
            yield take((), optimizes=True, makes_state=True), take

    @contextlib.contextmanager
    def taking(self, board: Switchboard, machine: Machine | None = None) -> Iterator[Take]:
        """Give what takes one step after the other.

        Nothing is left of them: the model, the optimizers, the random numbers and what is on in the board are as
        before. What takes a step gets the choices that are on in it, and may be told units that are skipped, whether
        the optimizers step in it, whether they have made their state before it, and how many times as large its batch
        is.

        Raises:
            LookupError: A value is looked at that the probe has not seen.
            RuntimeError: An operator cannot be run on fake tensors.
        """
        device = next((parameter.device.type for parameter in self._model.parameters()), "cpu")
        machine = machine or ROUGH.get(device, ROUGH["cpu"])
        on_card = updated_at_once(self._script.optimizers) if device == "cuda" else contextlib.nullcontext()
        with on_card, self._fake(board) as (call, mode):
            operators = FakeOperators(mode, functools.partial(work_of, machine=machine))

            def take(
                choices: Iterable[Choice],
                skipped: Collection[str] = (),
                *,
                optimizes: bool = False,
                makes_state: bool = False,
                times: int = 1,
            ) -> FakeLiveBytes:
                board.set(choices)
                batch = resized(call, self._batch, times * self._batch)
                gc.collect()  # else the process would go on holding what steps leave behind
                meter = self._step(batch, operators, skipped, optimizes=optimizes, makes_state=makes_state)
                meter.state = meter.held.keys() & meter.numbers_of(state_of(self._script.optimizers))
                return meter

            yield take

    @contextlib.contextmanager
    def _fake(self, board: Switchboard) -> Iterator[tuple[Call, FakeTensorMode]]:
        with (
            board.trying(),
            torch.compiler.set_stance("force_eager"),
            kept_gradients(),
            without_collection(),
            untouched(self._model),
            quietly(),
            taken_for_real(),
            on_fakes() as mode,
        ):
            board.set([])
            call = as_fakes((tuple(self._script.args), dict(self._script.kwargs)), mode)
            if self._script.batch is not None:
                call = resized(call, *self._script.batch)
            with in_fakes(mode, self._model, self._script.optimizers):
                yield call, mode

    @contextlib.contextmanager
    def _followed(self, skipped: Collection[str]) -> Iterator[None]:
        """Tell values inside what makes a module run again, and follow units outside what drops their operators."""
        watchers = {self._model.get_submodule(path): self._values.around(path) for path in self._values.paths}
        left_out, (keep, give) = {self._model.get_submodule(path) for path in skipped}, last_result()
        with contextlib.ExitStack() as undone:
            for module in {*self._units, *watchers}:
                arounds = around_of(module)
                undone.callback(put_around, module, arounds)
                outer = [keep, self._timeline.around] if module in self._units else []
                inner = [watchers[module]] if module in watchers else []
                put_around(module, [give] if module in left_out else [*outer, *arounds, *inner])
            for module, hooks in itertools.product(left_out, ("_forward_pre_hooks", "_forward_hooks")):
                undone.callback(setattr, module, hooks, getattr(module, hooks))
                setattr(module, hooks, collections.OrderedDict())  # with them fully_shard gathers parameters
            yield

    def _step(
        self, call: Call, operators: FakeOperators, skipped: Collection[str], *, optimizes: bool, makes_state: bool
    ) -> FakeLiveBytes:
        self._timeline.start()
        optimizers, buckets = self._script.optimizers, self._script.buckets
        known = tensors_of(self._model, optimizers, call)
        known += buckets.tensors if buckets is not None else []
        meter = FakeLiveBytes(known, self._timeline.segment, operators, self._values)
        del known
        torch.clear_autocast_cache()  # the script's autocast is entered anew for every step
        followed, told = self._followed(skipped), told_apart(self._model, meter, buckets)
        with torch.enable_grad(), followed, meter, told as note_gradients:
            results = [self._call(call) for _ in range(self._script.calls)]
            loss = sum(self._script.loss(result) for result in results)
            self.has_loss = all(loss_in(result) is not None for result in results)
            if not self._script.holds_result:
                results.clear()
            if self._script.keeps_gradients and not self._script.accumulates:
                self._model.zero_grad()
            with out_of_autocast():
                self._timeline.enter_backward()
                loss.backward()
                self._timeline.leave_backward()
                note_gradients()
                if makes_state:  # in a step before this one, which has the same gradients
                    with meter.before_all():
                        for optimizer in optimizers:
                            _plain_step(optimizer)
                for optimizer in optimizers if optimizes else ():
                    _plain_step(optimizer)
                    if not self._script.begins_with_gradients:
                        optimizer.zero_grad()
                if not self._script.begins_with_gradients:
                    self._model.zero_grad()
        return meter

    def _call(self, call: Call) -> Any:
        """Call the model once, so that it looks at the values that the probe's first call has seen."""
        self._values.rewind()
        if self._redirection is not None:  # Lightning's, under DDP, which holds for one call
            self._model.forward = self._redirection
        args, kwargs = exchanged(call, lambda one: one)  # the forward may write to them
        return self._model(*args, **kwargs)


@contextlib.contextmanager
def updated_at_once(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Have optimizers update all weights at once, as they do on a card where nothing else was asked for.

    ``_default_to_fused_or_foreach`` in ``torch/optim/optimizer.py`` asks for the type of each parameter, and fake ones
    have none of those that it knows.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups if _is_open(group)]
    for group in groups:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in groups:
            group["foreach"] = None


def _is_open(group: Mapping[str, Any]) -> bool:
    """Tell whether it is PyTorch that decides how an optimizer updates the weights, and it would do so at once."""
    is_asked = group.get("fused") or group.get("differentiable")
    # Adam takes them one by one then, and raises where it is told not to.
    is_apart = isinstance(group.get("lr"), Tensor) and not group.get("capturable", True)
    return "foreach" in group and group["foreach"] is None and not is_asked and not is_apart


def _plain_step(optimizer: Optimizer) -> None:
    """Take one step without the hooks that schedulers, profilers and others put around it."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
