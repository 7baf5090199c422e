"""Measures inside the training process."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import sys
import traceback
import weakref
from collections.abc import Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute.errors import first_line
from autorecompute.measurement import Measurement, Outcome
from autorecompute.meters.cuda import Meter, kind_in_use, meter_for
from autorecompute.meters.host import Processors
from autorecompute.plans import Config
from autorecompute.worker import script
from autorecompute.worker.hooks import is_in_backward
from autorecompute.worker.protocol import Beat, Check, Failed, Line, Order, Settings, world_size
from autorecompute.worker.script import STARTED, TRAINS_ELSEWHERE, describe_failure, with_callers
from autorecompute.worker.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.measurement import GradientCheck
    from autorecompute.training_job import Detection


PATIENCE = 3  # steps of other optimizers, after which the one that led has left the training, or never comes


class LoaderOverride:
    """Follows every DataLoader of the process: a training forward shows that the one that served last feeds the model.

    A script may make the same loader again for each epoch, and a later process of the same script certainly does. So
    loaders are known by their origin, the lines of code that made them: one that comes from where the model was fed
    from before gives the target from its first batch on.

    ``batch`` is what the model is to receive, and ``origin`` the place of the call that makes its loader, as an earlier
    process has told; it is empty as long as nobody knows.
    """

    def __init__(self, batch: int, origin: str) -> None:
        from torch.utils.data import BatchSampler
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self._batch, self.origin = batch, origin
        self._latest: Any = None
        self._origins: MutableMapping[Any, str] = weakref.WeakKeyDictionary()
        make, serve = BatchSampler.__init__, _BaseDataLoaderIter.__next__

        @functools.wraps(make)
        def make_and_note(sampler: Any, *args: Any, **kwargs: Any) -> None:
            make(sampler, *args, **kwargs)
            self._origins[sampler] = origin = _origin()
            if self.origin and origin == self.origin:
                sampler.batch_size = self._batch

        @functools.wraps(serve)
        def serve_and_note(iterator: Any) -> Any:
            # The sampler, not its loader: a loop over a nameless loader keeps the first alive and not the second.
            self._latest = iterator._index_sampler  # noqa: SLF001  (nothing public knows who serves)
            return serve(iterator)

        BatchSampler.__init__ = make_and_note
        _BaseDataLoaderIter.__next__ = serve_and_note
        # torch reads the batch size once an epoch; ours reads it for every batch, so that it can change in between.
        BatchSampler.__iter__ = _draw_batches

    @property
    def batch(self) -> int | None:
        """Return the batch that the loader that served last draws; ``None`` where it draws none itself."""
        samplers = list(_nested(self._latest))
        return samplers[-1].batch_size if samplers else None

    @property
    def samples(self) -> float:
        """Return the samples of an epoch of the loader that served last; infinitely many where nothing tells."""
        samplers = list(_nested(self._latest))
        drawn = samplers[-1].sampler if samplers else None
        return len(drawn) if isinstance(drawn, Sized) else math.inf

    def apply(self, batch: int) -> bool:
        """Set the batch of the loader that served last, from its next one on; ``False`` where it draws none itself."""
        self._batch = batch
        samplers = list(_nested(self._latest))
        if not samplers:
            return False
        for sampler in samplers:
            sampler.batch_size = batch
        origin = self._origins.get(samplers[-1], "")
        # Loaders for training and evaluation may come from one loop; then its lines do not tell them apart.
        self.origin = origin if list(self._origins.values()).count(origin) == 1 else ""
        return True


def _nested(sampler: Any) -> Iterator[Any]:
    """Yield the batch sampler with those inside of it: Accelerate wraps one for each rank, and asks both for sizes."""
    from torch.utils.data import BatchSampler

    while isinstance(sampler, BatchSampler):
        yield sampler
        sampler = getattr(sampler, "batch_sampler", None)


def _origin() -> str:
    """Return the stack of the caller's caller in lines of code, the same in every process of one script."""
    stack = traceback.walk_stack(sys._getframe(2))  # noqa: SLF001  (a stack with source lines would read files)
    lines = "".join(f"{frame.f_code.co_filename}:{line}\n" for frame, line in stack)
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def _draw_batches(sampler: Any) -> Iterator[list[Any]]:
    indices = iter(sampler.sampler)
    while batch := list(itertools.islice(indices, sampler.batch_size)):
        if sampler.drop_last and len(batch) < sampler.batch_size:
            return
        yield batch


class Abandon(BaseException):
    """Leaves the user's script; its own ``except Exception`` must not hold it back."""


class Agent:
    """Listens to the backend and to torch, and measures what the controller orders, one window after another.

    A round of all optimizers counts as one step, so that every measured step does the same work. One optimizer leads: a
    training step ends with its step, and holds what the others did since its last one. It is the first to step while
    every forward has had its backward. A generator's forward, for instance, waits until the discriminator has stepped,
    and no session can be rebuilt meanwhile.

    Ranks that train together (not ``is_alone``) must all end a window at the same step: one that waits for an order
    keeps the others waiting for its gradients.

    Attributes:
        target_batch: Samples that a forward is to receive; ``None`` until the first one tells.
        script: The script's file; empty before it runs.
        has_children: Tells whether the script has started processes.
        process: The one that trains. What it forks has a copy of all this, and is not followed.
    """

    is_trial = True

    def __init__(self, line: Line, backend: WorkerBackend, settings: Settings, *, is_alone: bool = True) -> None:
        self.line, self.backend, self.settings, self.is_alone = line, backend, settings, is_alone
        self.target_batch, self._loader = settings.target_batch, None
        # Elsewhere nobody will give the model another batch than the script does.
        if settings.target_batch is not None and (settings.override_loader or settings.watch is None):
            self._loader = LoaderOverride(settings.target_batch, settings.loader)
        self._is_given_batch = settings.override_loader and self._loader is not None
        self.fake_card = settings.card if settings.fakes else None
        self.fake_ranks, self.replaces_checkpointing = settings.ranks, settings.replaces_checkpointing
        self.is_surveyed = settings.is_surveyed
        self.is_exact = settings.is_exact
        self.longest = self._length = settings.longest
        self._mixed = iter(settings.watch.mixed if settings.watch is not None else ())
        self._first_batch: int | None = None
        self._meter: Meter | None = None
        self._does_cpu_work, self._left_bytes, self._before_bytes = False, 0, 0
        self._window: Window | None = None
        self._measured: dict[tuple[Config, int | None], Measurement] = {}
        self._leader: Callable[[], Any] = lambda: None
        self._others_since = 0
        self._batches: list[int] = []
        self._loss: Any = None
        self._follows_samples = self._is_over_batch = False
        self._missed = self._skips = self._foreign_steps = self._backwards = 0
        self._has_skipped = self._has_run_beside = self._has_optimizer = False
        self._check: Check | None = None
        self._first_check: Callable[..., GradientCheck] | None = None
        self._fitting: Config | None = None  # the last one that had room
        self._postponed: Order | None = None
        self._awaited: Order | None = None
        self._warnings: tuple[str, ...] = ()
        self.process, self.steps, self.script = os.getpid(), 0, ""
        self.has_children: Callable[[], bool] = lambda: False

    @property
    def advice(self) -> str:
        """Return why a script may never come to training, and what to do about it, in sentences."""
        if self._backwards and not self._has_optimizer:
            return script.NO_OPTIMIZER
        return self.backend.why_nothing_trained() + f" {STARTED}" * self.has_children()

    @property
    def has_trained(self) -> bool:
        """Tell whether this process has begun to train."""
        return self._window is not None or bool(self._batches) or self.steps > 0

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Tell what was detected and begin with the config that the controller answers."""
        self._require_own_process()
        if self.settings.watch is not None:
            self._before_bytes = self._use_meter(kind_in_use()).read().peak_bytes or 0
            return Config()
        try:
            detection = detect() if self.settings.fakes else self._weighed(detect())
            assert self.target_batch is not None, "a session is created in a forward"
            origin = self._loader.origin if self._loader is not None and self.settings.override_loader else ""
            self.line.send(replace(detection, batch=self.target_batch, loader=origin))
            order = self._receive_first()
            self._fitting = order.config
        finally:
            self._first_check = None  # it holds the batch
        self._change_batch(order)
        self._change_length(order)
        # The first step of a process also builds the optimizer's state: it warms up beyond what was ordered.
        self._window = self._open(Order(config=order.config, warmup=order.warmup + 1, steps=order.steps))
        self._follows_samples = order.looks_at_loss and self.backend.follow_samples()
        # This session exists, and only one to come can be profiled.
        self._postponed = order if order.profiles else None
        return order.config

    def _weighed(self, detection: Detection) -> Detection:
        meter = self._use_meter(detection.device.kind)
        meter.release()
        self._left_bytes = detection.left_bytes
        resting_bytes = meter.held_bytes() - self._left_bytes
        return replace(detection, resting_bytes=resting_bytes, outside_bytes=meter.outside_bytes())

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Note the batch of one training forward, look at a config on it if that was ordered, and make sure of room."""
        if not self.has_trained and self.settings.watch is None:
            self._first_check = check
        while self._check is not None or self._lacks_memory(batch):
            wanted, self._check = self._check, None
            if wanted is not None:
                self._look_at(wanted, check)
        self._batches.append(batch)
        self.target_batch, self._first_batch = self.target_batch or batch, self._first_batch or batch
        is_missed = batch != self.target_batch and self._is_given_batch
        # At every miss: a script may make a loader anew for each epoch.
        if is_missed and self._loader is not None and not self._loader.apply(self.target_batch):
            self._give_up_batch(batch)

    def _lacks_memory(self, batch: int) -> bool:
        """Tell whether the config that is on runs out of memory beside the training; then it is not on any more."""
        # Ranks would wait for one that does not train on.
        if (
            self._window is None
            or not self.is_alone
            or self.settings.watch is not None
            or self.backend.has_open_forward
        ):
            return False
        if batch != self.target_batch or self._awaited is not None:
            return False
        config = self._window.order.config
        lacks = self.backend.lacking_memory(config)
        self._has_run_beside |= lacks is not None
        if not lacks:
            self._fitting = config
            return False
        # Batches that were drawn before an order's still come, and fit under what was on before.
        self._fitting = None if self._fitting == config else self._fitting
        self.backend.switch(self._fitting or Config())
        self._answer(Measurement(outcome=Outcome.OOM, message=lacks))
        return True

    def on_several_models(self) -> None:
        """Do nothing: the first one is tuned beside the others."""

    def on_fault(self, error: Exception) -> None:
        """End the script: a trial of it would say nothing."""
        self._end(error)

    def on_failure(self, error: Exception) -> None:
        """End the script where memory ran out, which it may catch and skip; anything else it raises is its own."""
        if self.backend.classify(error)[0] is Outcome.OOM:
            self._end(error)

    def on_optimizer(self) -> None:
        """Note that the script has made an optimizer."""
        self._has_optimizer = True

    def on_loss(self, loss: Any, value: Any) -> None:
        """Keep the value that backward starts from; it is read only if the step is timed."""
        self._loss = value
        if self._follows_samples:
            self._follows_samples = False
            self._is_over_batch = self.backend.mixes_samples(loss)
        self._backwards += 1
        if not self._has_optimizer and self._backwards >= script.BACKWARDS_WITHOUT_OPTIMIZER:
            self._fail(Outcome.SCRIPT_ERROR, script.NO_OPTIMIZER)

    def on_fallback(self, message: str) -> None:
        """End the script: its steps would say nothing about recompute."""
        self._fail(Outcome.FELL_BACK, f"{script.FELL_BACK} {message}")

    def on_step(self, optimizer: Any) -> None:
        """End a training step; an optimizer that steps without a new forward belongs to the step before."""
        self._require_own_process()
        if is_in_backward():
            self._fail(Outcome.SCRIPT_ERROR, script.STEPS_IN_BACKWARD)
        self._has_optimizer = True
        if self._batches:
            if self._leads(optimizer):
                self._end_step()
            return
        self._foreign_steps += 1
        if not self.has_trained and self._foreign_steps >= script.STEPS_WITHOUT_SESSION:
            self._fail(Outcome.SCRIPT_ERROR, f"{script.NO_SESSION} {self.advice}")

    def on_skip(self, optimizer: Any) -> None:
        """End a training step in which a GradScaler found no finite gradients, and kept the optimizer back."""
        self._has_skipped = True
        self.on_step(optimizer)

    def _leads(self, optimizer: Any) -> bool:
        leader = self._leader()
        if optimizer is leader:
            self._others_since = 0
            return True
        self._others_since += 1
        if self._others_since <= PATIENCE and (leader is not None or self.backend.has_open_forward):
            return False
        # A leader that the script has dropped must be free to go.
        self._leader, self._others_since = weakref.ref(optimizer), 0
        return True

    def _end_step(self) -> None:
        self.steps += 1
        batches, self._batches = self._batches, []
        window, has_skipped = self._window or self._begin_watching(), self._has_skipped
        has_run_beside = self._has_run_beside
        self._has_skipped = self._has_run_beside = False
        window.observe()
        compile_seconds = self.backend.take_compile_seconds()
        give_up = self._misfit(batches)
        if compile_seconds:
            window.start_over(compile_seconds)
            if window.restarts > script.COMPILATIONS:
                self._fail(Outcome.SCRIPT_ERROR, script.COMPILES_ON)
        elif has_skipped:
            window.discard_step()
            self._skips += 1
            if self._skips > script.SKIPPED_STEPS:
                self._fail(Outcome.DIVERGED, script.SKIPS_ON)
        elif give_up is not None:
            window.discard_step()
            self._missed += 1
            if self._missed > script.MISSED_STEPS:
                give_up()
        elif has_run_beside and window.is_timing:
            window.discard_step()  # a batch longer than those before it came in it
        elif self._awaited is not None:
            self._missed = self._skips = 0
            window = self._begin(self._awaited)
        else:
            self._missed = self._skips = 0
            loss, self._loss = self._loss, None
            # A script may go on to compute in this very tensor.
            window.end_step(sum(batches), loss.detach().clone() if loss is not None and window.is_timing else None)
        self._warnings = self.backend.end_step()
        self._mix_lengths()
        self.line.send(Beat(step=self.steps))
        if window.is_complete and self._awaited is None:
            self._report(window)

    def _mix_lengths(self) -> None:
        """Have a watched process train with other lengths before its timed steps."""
        watch = self.settings.watch
        if watch is not None and watch.mixed and self.longest is not None:
            self.backend.give_length(next(self._mixed, self.longest))

    def _misfit(self, batches: list[int]) -> Callable[[], None] | None:
        """Return what ends a script whose steps are all like this one; ``None`` for one as it should be.

        A DataLoader's last batch is smaller, and an epoch that ends within a step of several passes has fewer of them.
        """
        wrong = next((batch for batch in batches if batch != self.target_batch), None)
        if wrong is not None:
            return functools.partial(self._give_up_batch, wrong)
        wanted, world = self.settings.step_samples, world_size()
        if wanted is None or sum(batches) * world == wanted:
            return None
        samples = (self._loader.samples if self._loader is not None else math.inf) * world
        if samples < wanted:
            text = script.SHORT_EPOCH.format(samples=samples, wanted=wanted)
            return functools.partial(self._fail, Outcome.WRONG_BATCH, text)
        told = {"passes": len(batches), "batch": batches[0], "wanted": wanted // (batches[0] * world)}
        return functools.partial(self._fail, Outcome.WRONG_BATCH, script.OTHER_PASSES.format(**told))

    def _begin_watching(self) -> Window:
        assert self.settings.watch is not None, "only a watched run has steps before a window"
        if self._meter is None:
            self._use_meter(kind_in_use())
        # The step that ends now is its first one: it has gone by untimed, and warms up.
        self._window = self._open(self.settings.watch)
        return self._window

    def _use_meter(self, kind: str) -> Meter:
        self._meter, self._does_cpu_work = meter_for(kind), kind == "cpu"
        if self.settings.limit_bytes is not None:
            self._meter.limit(self.settings.limit_bytes)
        return self._meter

    def _open(self, order: Order) -> Window:
        assert self._meter is not None, "a window needs a meter"
        return Window(
            self._meter,
            order,
            whole_life=self.settings.watch is not None,
            extends_itself=self.is_alone,
            live=self.backend.live_meter() if self.settings.watch is None else None,
            known=self._measured.get((order.config, self.target_batch)) if order.warmup == 0 else None,
            left_bytes=self._left_bytes,
            before_bytes=self._before_bytes,
            processors=Processors(self.settings.tuner, do_the_work=self._does_cpu_work),
        )

    def _receive_first(self) -> Order:
        """Return the first order to measure that there is room for; a session begins in a forward."""
        while True:
            order = self.line.receive_order()
            if isinstance(order, Check):
                assert self._first_check is not None, "a session begins in a forward"
                self.line.send(self._look(order, self._first_check))
            elif self.is_alone and (lacks := self.backend.lacking_memory(order.config)):
                self.line.send(Measurement(outcome=Outcome.OOM, message=lacks))
            else:
                return order

    def _look(self, wanted: Check, check: Callable[..., GradientCheck]) -> GradientCheck:
        return check(wanted.config, compares=wanted.compares)

    def _look_at(self, wanted: Check, check: Callable[..., GradientCheck]) -> None:
        self.line.send(self._look(wanted, check))
        self._obey(self.line.receive_order())

    def _report(self, window: Window) -> None:
        assert self.target_batch is not None, "a window has seen a batch"
        if self._postponed is not None:
            order, self._postponed = self._postponed, None
            self._obey(order)
            return
        measurement = replace(window.measurement(self.target_batch), warnings=self._warnings)
        if wrong := self.backend.wrong_recompute():
            measurement = Measurement(outcome=Outcome.WRONG_GRADIENT, message=wrong, warnings=self._warnings)
        measurement = replace(measurement, is_over_batch=self._is_over_batch)
        if window.order.profiles:
            measurement = replace(measurement, profile=self.backend.take_profile())
        self._keep(window.order.config, measurement)
        self._answer(measurement)

    def _keep(self, config: Config, measurement: Measurement) -> None:
        """Keep what a config takes of memory; where batches differ in length the longest one decides."""
        before = self._measured.setdefault((config, measurement.batch), measurement)
        if (measurement.peak_bytes or 0) > (before.peak_bytes or 0):
            self._measured[config, measurement.batch] = measurement

    def _answer(self, measurement: Measurement) -> None:
        self.line.send(measurement)
        self._obey(self.line.receive_order())

    def _obey(self, order: Order | Check) -> None:
        if isinstance(order, Check):
            self._check = order
            return
        before = self.target_batch
        if not self._change_batch(order):
            self._answer(Measurement(outcome=Outcome.WRONG_BATCH, message=script.NO_OTHER_BATCH))
            return
        is_shorter = self._change_length(order)
        has_fewer = before is not None and self.target_batch is not None and self.target_batch < before
        if is_shorter or has_fewer:
            # What was drawn before the change still comes, and fits under the config that is on.
            self._awaited = order
        else:
            self._begin(order)

    def _change_length(self, order: Order) -> bool:
        """Have models receive batches of the order's length, from the next one on; tell whether they are shorter."""
        before, self._length = self._length, order.length or self._length
        if self._length is None or self._length == before:
            return False
        self.backend.give_length(self._length)
        return before is not None and self._length < before

    def _begin(self, order: Order) -> Window:
        assert self._meter is not None, "an order to measure comes after a detection"
        self._awaited = None
        self.backend.switch(order.config, profiles=order.profiles)
        self._follows_samples = order.looks_at_loss and self.backend.follow_samples()
        self._window = self._open(order)
        return self._window

    def _change_batch(self, order: Order) -> bool:
        """Have the model get the batch of an order, from the next one on; ``False`` where nothing here can do that."""
        if order.batch is None or order.batch == self.target_batch:
            return True
        # Without a DataLoader that draws what the script was started with, nobody knows what its batch is made of.
        drawn = self._loader.batch if self._loader is not None else None
        if self._loader is None or drawn is None or not (self._is_given_batch or drawn == self.target_batch):
            is_given = self.backend.give_batch(order.batch)
            self.target_batch = order.batch if is_given else self.target_batch
            return is_given
        self.target_batch, self._is_given_batch = order.batch, True
        self._loader.apply(order.batch)
        return True

    def _give_up_batch(self, batch: int) -> None:
        text = script.OTHER_BATCHES if self._first_batch == self.target_batch else script.OTHER_BATCH
        self._fail(Outcome.WRONG_BATCH, text.format(batch=batch, target=self.target_batch))

    def _require_own_process(self) -> None:
        if os.getpid() != self.process:
            self._fail(Outcome.SCRIPT_ERROR, TRAINS_ELSEWHERE)

    def _end(self, error: Exception) -> None:
        # At once, not when it has ended the script: many a loop goes on after any exception.
        self.line.send(describe_failure(with_callers(error), self.backend, self.script))
        raise Abandon(first_line(error)) from error

    def _fail(self, outcome: Outcome, message: str) -> None:
        self.line.send(Failed(outcome=outcome, message=message))
        raise Abandon(message)
