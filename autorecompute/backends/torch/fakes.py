"""Whole training steps on fake tensors: the peak of any config at any batch, without its memory and without a step.

A fake tensor has a shape and no data. The model's own Python code, autograd and the optimizer run on them as on real
ones, and the same storages come and go. What the model looks at in its tensors was recorded by the probe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autorecompute.backends.common.batches import observe_batch
from autorecompute.backends.torch.fake_mode import on_fakes
from autorecompute.backends.torch.fake_step import FakeStep
from autorecompute.backends.torch.fake_tensors import FakeLiveBytes, Fakes, resized
from autorecompute.backends.torch.interception import around_of, put_around
from autorecompute.backends.torch.live import Timeline, state_of, tensors_of
from autorecompute.backends.torch.repeats import LastResult
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.backends.torch.untouched import out_of_autocast, untouched
from autorecompute.backends.torch.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.nn import Module

    from autorecompute.backends.torch.card_kernels import CardKernels
    from autorecompute.backends.torch.live import LiveBytes
    from autorecompute.backends.torch.speeds import Speeds
    from autorecompute.backends.torch.switchboard import Switchboard
    from autorecompute.backends.torch.values import Values
    from autorecompute.plans import Choice


def returned_loss(result: Any) -> Tensor:
    """The loss in what a model returns: what it calls so, or the first number that gradients go back through.

    Of a model that leaves the loss to the script this is a stand-in, which takes the memory of a cross entropy: one
    tensor of the size of the result is saved, and two are made in the backward pass.
    """
    loss = _loss_in(result)
    if loss is not None:
        return loss
    return torch.stack([_entropy(tensor) for tensor in tensors_in(result) if tensor.requires_grad]).sum()


def _entropy(scores: Tensor) -> Tensor:
    """The cross entropy of scores if each first class were the right one: no labels are needed for it."""
    return -scores.log_softmax(-1)[..., 0].mean() if scores.dim() > 1 else scores.mean()


def is_loss(result: Any) -> bool:
    """Whether a loss is among what a model returns."""
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
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    optimizers: Sequence[Optimizer] = ()
    loss: Callable[[Any], Tensor] = returned_loss
    holds_result: bool = False
    batch: tuple[int, int] | None = None


class FakeSteps:
    """Runs steps of a model on fake tensors.

    Args:
        model: The model.
        units: Paths of its units, which the events tell apart.
        script: What the script does around it.
        values: What modules looked at in the probe.
        kernels: Those of a card; of the device of the fake tensors if ``None``.
    """

    def __init__(
        self,
        model: Module,
        units: Iterable[str],
        script: Script,
        values: Values,
        kernels: CardKernels | None = None,
    ) -> None:
        self._model = model
        self._units = [model.get_submodule(path) for path in units]
        self._script = script
        self._values = values
        self._kernels = kernels
        self._batch = script.batch[1] if script.batch else observe_batch([*script.args, *script.kwargs.values()])
        self.has_loss = False
        """Whether the model of the last step returned a loss, or a number that gradients go back through."""

    def run(self, board: Switchboard, choices: Iterable[Choice]) -> LiveBytes:
        """The bytes of a step under these choices, as of every step after the first.

        Nothing of it is left: the model, the optimizers, the random numbers and what is on in the board are as before.

        Raises:
            UnknownValueError: A value is looked at that the probe has not seen.
            RuntimeError: An operator cannot be run on fake tensors.
        """
        with self._fake(board) as fake:
            self._step(fake)  # makes the optimizers' state
            board.set(choices)
            return self._step(fake)

    @contextlib.contextmanager
    def prepared(self, board: Switchboard, speeds: Speeds | None = None) -> Iterator[Callable[..., FakeStep]]:
        """Makes the optimizers' state, and gives what takes one step after the other; nothing is left of them.

        What takes a step gets the choices that are on in it, and may be told units that are skipped, whether the
        optimizers step in it, and how many times as large its batch is.

        Args:
            board: The switches of the model.
            speeds: Those of the machine whose time is to be estimated; ``None`` for a rule of thumb.

        Raises:
            UnknownValueError: A value is looked at that the probe has not seen.
            RuntimeError: An operator cannot be run on fake tensors.
        """
        work = Work(self._device, speeds)
        with self._fake(board) as fake:
            self._step(fake)

            def take(
                choices: Iterable[Choice], skipped: Collection[str] = (), *, optimizes: bool = False, times: int = 1
            ) -> FakeStep:
                board.set(choices)
                args, kwargs = resized((fake.args, fake.kwargs), self._batch, times * self._batch)
                meter = self._step(_Fake(args, kwargs, fake.timeline), work, skipped, optimizes=optimizes)
                state = meter.held.keys() & meter.numbers_of(state_of(self._script.optimizers))
                return FakeStep(meter.base, tuple(meter.events), meter.work, meter.held, frozenset(state))

            yield take

    @property
    def _device(self) -> str:
        return next((parameter.device.type for parameter in self._model.parameters()), "cpu")

    @contextlib.contextmanager
    def _fake(self, board: Switchboard) -> Iterator[_Fake]:
        """The model with fake parameters, and a batch for it, while nothing is on in the board."""
        before = board.choices
        try:
            board.set([])
            with untouched(self._model), on_fakes() as mode:
                fakes, timeline = Fakes(mode), Timeline()
                args, kwargs = fakes.of((tuple(self._script.args), dict(self._script.kwargs)))
                if self._script.batch is not None:
                    args, kwargs = resized((args, kwargs), *self._script.batch)
                with fakes.in_model(self._model), contextlib.ExitStack() as swapped:
                    for optimizer in self._script.optimizers:
                        swapped.enter_context(fakes.in_optimizer(optimizer))
                    yield _Fake(args, kwargs, timeline)
        finally:
            board.set(before)

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
        try:
            yield
        finally:
            for module, arounds in before.items():
                put_around(module, arounds)

    def _step(
        self, fake: _Fake, work: Work | None = None, skipped: Collection[str] = (), *, optimizes: bool = True
    ) -> LiveBytes:
        fake.timeline.start()
        self._values.rewind()
        optimizers = self._script.optimizers
        known = tensors_of(self._model, optimizers, (fake.args, fake.kwargs))
        meter = FakeLiveBytes(known, fake.timeline.segment, work, self._values)
        del known
        kernels = contextlib.nullcontext() if self._kernels is None else self._kernels.active(optimizers)
        torch.clear_autocast_cache()  # the script's autocast is entered anew for every step
        with torch.enable_grad(), self._followed(fake.timeline, skipped), kernels, meter:
            result = self._model(*fake.args, **fake.kwargs)
            loss = self._script.loss(result)
            self.has_loss = is_loss(result)
            if not self._script.holds_result:
                del result
            with out_of_autocast():
                loss.backward()
                fake.timeline.leave_backward()
                for optimizer in optimizers if optimizes else ():
                    _plain_step(optimizer)
                    optimizer.zero_grad()
                self._model.zero_grad()
        return meter


@dataclasses.dataclass(frozen=True)
class _Fake:
    args: Any
    kwargs: Any
    timeline: Timeline


def _plain_step(optimizer: Optimizer) -> None:
    """One step without the hooks that schedulers, profilers and others put around it."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
