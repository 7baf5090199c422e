"""Whole training steps on fake tensors: the peak of any config at any batch, without its memory and without a step.

A fake tensor has a shape and no data. The model's own Python code, autograd and the optimizer run on them as on real
ones, and the same storages come and go. What the model looks at in its tensors was recorded by the probe.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from autorecompute.backends.common.batches import observe_batch
from autorecompute.backends.torch.arguments import exchanged
from autorecompute.backends.torch.backward import kept_gradients
from autorecompute.backends.torch.collectives import Buckets, Collectives
from autorecompute.backends.torch.compiled.forms import eagerly
from autorecompute.backends.torch.fake_mode import on_fakes
from autorecompute.backends.torch.fake_operators import FakeOperators
from autorecompute.backends.torch.fake_step import FakeStep
from autorecompute.backends.torch.fake_tensors import FakeLiveBytes, Fakes, quietly, resized
from autorecompute.backends.torch.interception import around_of, put_around
from autorecompute.backends.torch.live import state_of, tensors_of
from autorecompute.backends.torch.repeats import LastResult
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.backends.torch.timeline import Timeline
from autorecompute.backends.torch.untouched import out_of_autocast, untouched, without_collection
from autorecompute.backends.torch.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.nn import Module

    from autorecompute.backends.torch.live import LiveBytes
    from autorecompute.backends.torch.speeds import Speeds
    from autorecompute.backends.torch.switchboard import Switchboard
    from autorecompute.backends.torch.values import Values
    from autorecompute.plans import Choice


def returned_loss(result: Any) -> Tensor:
    """Return the loss in what a model returns: what it calls so, or the first number that gradients go back through.

    Of a model that leaves the loss to the script this is a stand-in, which takes the memory of a cross entropy: one
    tensor of the size of the result is saved, and two are made in the backward pass.
    """
    loss = _loss_in(result)
    if loss is not None:
        return loss
    return torch.stack([_entropy(tensor) for tensor in tensors_in(result) if tensor.requires_grad]).sum()


def _entropy(scores: Tensor) -> Tensor:
    """Return the cross entropy of scores if each first class were the right one: no labels are needed for it."""
    return -scores.log_softmax(-1)[..., 0].mean() if scores.dim() > 1 else scores.mean()


def is_loss(result: Any) -> bool:
    """Tell whether a loss is among what a model returns."""
    return _loss_in(result) is not None


def _loss_in(result: Any) -> Tensor | None:
    named = result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None)
    if isinstance(named, Tensor):
        return named
    return next((tensor for tensor in tensors_in(result) if tensor.requires_grad and tensor.dim() == 0), None)


@dataclasses.dataclass(frozen=True)
class Script:
    """What a script does around its model in one step.

    Attributes:
        args: The positional arguments of the model's call.
        kwargs: Its keyword arguments.
        optimizers: The optimizers that step after the backward pass.
        loss: Gets from what the model returns to the loss.
        holds_result: Whether what the model returns is still held when the backward pass begins.
        batch: The samples in the arguments, and as many as a step is to have; ``None`` for those in the arguments.
        keeps_gradients: Whether those of the last step are held until the next forward pass is through.
        accumulates: Whether gradients of batches before it are held all through it.
        buckets: Those of ``DistributedDataParallel`` around the model; ``None`` where there is none.
        calls: How often the model is called, with as much each time, before the backward pass through all calls.
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
        model: The model.
        units: Paths of its units, which the events tell apart.
        script: What the script does around it.
        values: What modules looked at in the probe.
    """

    def __init__(self, model: Module, units: Iterable[str], script: Script, values: Values) -> None:
        self._model, self._redirection = model, vars(model).get("forward")
        self._units = [model.get_submodule(path) for path in units]
        self._script = script
        self._values = values
        self._batch = script.batch[1] if script.batch else observe_batch([*script.args, *script.kwargs.values()])
        self.has_loss = False
        """Whether the model of the last step returned a loss, or a number that gradients go back through."""

    def run(self, board: Switchboard, choices: Iterable[Choice]) -> LiveBytes:
        """Return the bytes of a step under these choices, as of every step after the first.

        Nothing of it is left: the model, the optimizers, the random numbers and what is on in the board are as before.

        Raises:
            UnknownValueError: A value is looked at that the probe has not seen.
            RuntimeError: An operator cannot be run on fake tensors.
        """
        with self._fake(board) as fake:
            operators = FakeOperators(fake.mode)
            self._step(fake, operators)  # makes the optimizers' state
            board.set(choices)
            return self._step(fake, operators)

    @contextlib.contextmanager
    def prepared(
        self, board: Switchboard, speeds: Speeds | None = None
    ) -> Iterator[tuple[FakeStep, Callable[..., FakeStep]]]:
        """Take a step with nothing on, and give it with what takes others after it, as :meth:`taking` does."""
        with self.taking(board, speeds) as take:
            if self._script.begins_with_gradients:
                take(())
            yield take((), optimizes=True, makes_state=True), take

    @contextlib.contextmanager
    def taking(self, board: Switchboard, speeds: Speeds | None = None) -> Iterator[Callable[..., FakeStep]]:
        """Give what takes one step after the other; nothing is left of them.

        What takes a step gets the choices that are on in it, and may be told units that are skipped, whether the
        optimizers step in it, whether they have made their state before it, and how many times as large its batch is.

        Args:
            board: The switches of the model.
            speeds: Those of the machine whose time is to be estimated; ``None`` for a rule of thumb.

        Raises:
            UnknownValueError: A value is looked at that the probe has not seen.
            RuntimeError: An operator cannot be run on fake tensors.
        """
        with self._fake(board) as fake:
            operators = FakeOperators(fake.mode, Work(self._device, speeds))

            def take(
                choices: Iterable[Choice],
                skipped: Collection[str] = (),
                *,
                optimizes: bool = False,
                makes_state: bool = False,
                times: int = 1,
            ) -> FakeStep:
                board.set(choices)
                args, kwargs = resized((fake.args, fake.kwargs), self._batch, times * self._batch)
                batch = dataclasses.replace(fake, args=args, kwargs=kwargs)
                gc.collect()  # else the process would go on holding what steps leave behind
                meter = self._step(batch, operators, skipped, optimizes=optimizes, makes_state=makes_state)
                state = meter.held.keys() & meter.numbers_of(state_of(self._script.optimizers))
                return FakeStep(meter.base, tuple(meter.events), meter.work, meter.held, frozenset(state), meter.kinds)

            yield take

    @property
    def _device(self) -> str:
        return next((parameter.device.type for parameter in self._model.parameters()), "cpu")

    @contextlib.contextmanager
    def _fake(self, board: Switchboard) -> Iterator[_Fake]:
        """Give the model fake parameters, and a batch, while nothing is on in the board."""
        with (
            board.trying(),
            eagerly(),
            kept_gradients(),
            without_collection(),
            untouched(self._model),
            quietly(),
            on_fakes() as mode,
        ):
            board.set([])
            fakes, timeline = Fakes(mode), Timeline(repeats=bool(self._units))
            args, kwargs = fakes.of((tuple(self._script.args), dict(self._script.kwargs)))
            if self._script.batch is not None:
                args, kwargs = resized((args, kwargs), *self._script.batch)
            with fakes.in_model(self._model), contextlib.ExitStack() as swapped:
                for optimizer in self._script.optimizers:
                    swapped.enter_context(fakes.in_optimizer(optimizer))
                yield _Fake(args, kwargs, timeline, mode)

    @contextlib.contextmanager
    def _followed(self, timeline: Timeline, skipped: Collection[str]) -> Iterator[None]:
        """Tell values inside what makes a module run again, and follow units outside what drops their operators."""
        watchers = {self._model.get_submodule(path): self._values.around(path) for path in self._values.paths}
        left_out, last = {self._model.get_submodule(path) for path in skipped}, LastResult()
        before = {module: around_of(module) for module in {*self._units, *watchers}}
        for module, arounds in before.items():
            outer = [last.keep, timeline.around] if module in self._units else []
            inner = [watchers[module]] if module in watchers else []
            put_around(module, [last.give] if module in left_out else [*outer, *arounds, *inner])
        hooks = {module: (module._forward_pre_hooks, module._forward_hooks) for module in left_out}
        for module in left_out:  # with them fully_shard gathers parameters
            module._forward_pre_hooks, module._forward_hooks = collections.OrderedDict(), collections.OrderedDict()
        try:
            yield
        finally:
            for module, arounds in before.items():
                put_around(module, arounds)
            for module, (pre_hooks, forward_hooks) in hooks.items():
                module._forward_pre_hooks, module._forward_hooks = pre_hooks, forward_hooks

    def _step(
        self,
        fake: _Fake,
        operators: FakeOperators,
        skipped: Collection[str] = (),
        *,
        optimizes: bool = True,
        makes_state: bool = False,
    ) -> FakeLiveBytes:
        fake.timeline.start()
        optimizers, buckets = self._script.optimizers, self._script.buckets
        known = tensors_of(self._model, optimizers, (fake.args, fake.kwargs))
        known += buckets.tensors if buckets is not None else []
        meter = FakeLiveBytes(known, fake.timeline.segment, operators, self._values)
        collectives = Collectives(self._model, meter, buckets)
        del known
        torch.clear_autocast_cache()  # the script's autocast is entered anew for every step
        with torch.enable_grad(), self._followed(fake.timeline, skipped), meter, collectives.followed():
            results = [self._call(fake) for _ in range(self._script.calls)]
            loss = sum(self._script.loss(result) for result in results)
            self.has_loss = all(map(is_loss, results))
            if not self._script.holds_result:
                results.clear()
            if self._script.keeps_gradients and not self._script.accumulates:
                self._model.zero_grad()
            with out_of_autocast():
                loss.backward()
                fake.timeline.leave_backward()
                collectives.note_gradients()
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
        meter.kinds = collectives.kinds
        return meter

    def _call(self, fake: _Fake) -> Any:
        """Call the model once, so that it looks at the values that the probe's first call has seen."""
        self._values.rewind()
        if self._redirection is not None:  # Lightning's, under DDP, which holds for one call
            self._model.forward = self._redirection
        args, kwargs = exchanged((fake.args, fake.kwargs), lambda one: one)  # the forward may write to them
        return self._model(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _Fake:
    args: Any
    kwargs: Any
    timeline: Timeline
    mode: FakeTensorMode


def _plain_step(optimizer: Optimizer) -> None:
    """Take one step without the hooks that schedulers, profilers and others put around it."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
