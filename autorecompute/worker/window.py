"""The steps in which one config is measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute.measurement import Measurement, Outcome
from autorecompute.ranges import SHORTEST_SECONDS

if TYPE_CHECKING:
    from autorecompute.backends.interface import LiveMeter
    from autorecompute.meters.cuda import Meter
    from autorecompute.meters.host import Processors
    from autorecompute.worker.protocol import Order


class Window:
    """Warm-up steps, a reset of the peak, timed steps.

    Where an allocator keeps what tensors have left, as that of a CPU does, the peak of a process tells what it went
    through before rather than what a config needs. There one more step is observed before the timed ones, and the peak
    is what was held at its start and the tensors that it had alive at its most.

    Args:
        meter: The device's memory.
        order: Its numbers of steps.
        whole_life: True if the peak is that of the process since its birth: nothing is released and nothing reset.
        extends_itself: True if a discarded step is made up for by a further one.
        live: Counts the bytes of live tensors in that one step; ``None`` where the meter tells the peak.
        known: A measurement of this config in this process that tells of memory; nothing but time is measured then.
        left_bytes: Memory that the tool has left in this process, which a training without it would not hold.
        before_bytes: The peak of the process before its first step, where it is left alone; else 0.
        processors: Count processor time from the beginning of the window on.

    Attributes:
        restarts: Number of times that all steps were left out, as the model was compiled in one.
    """

    def __init__(  # noqa: PLR0913  (what is measured, and by what)
        self,
        meter: Meter,
        order: Order,
        *,
        whole_life: bool = False,
        extends_itself: bool = True,
        live: LiveMeter | None = None,
        known: Measurement | None = None,
        left_bytes: int = 0,
        before_bytes: int = 0,
        processors: Processors,
    ) -> None:
        self._meter = meter
        self.order = order if known is not None or order.warmup else replace(order, warmup=1)
        self._processors = processors
        self._whole_life, self._extends_itself = whole_life, extends_itself
        self._live, self._known, self._left_bytes, self._before_bytes = live, known, left_bytes, before_bytes
        self._is_observing, self._live_bytes = False, 0
        self._warmed_up, self._lost = 0, 0
        self._warmup_seconds = self._compile_seconds = 0.0
        self.restarts = 0
        self._held_bytes: int | None = None
        self._spans: list[tuple[Any, Any]] = []
        self._cpu_seconds: list[float] = []
        self._samples: list[int] = []
        self._losses: list[Any] = []
        if not whole_life and live is None and known is None:
            meter.release()  # what the config before has left in an allocator could push this one over the limit
        self._begin_step()

    @property
    def is_complete(self) -> bool:
        """Tell whether all timed steps are done."""
        return len(self._spans) + self._lost == self.order.steps

    @property
    def is_timing(self) -> bool:
        """Tell whether the warm-up is over."""
        return self._warmed_up == self.order.warmup and not self._is_observing

    def observe(self) -> None:
        """Look at the device before anything waits for it, so that it is seen at work."""
        if self.is_timing:
            self._meter.observe()

    def end_step(self, samples: int, loss: Any = None) -> None:
        """Count the step that ends now, with the samples of all its forwards.

        ``loss`` is the number that its last backward started from, ``None`` where there was none. A card is not waited
        for before the last of the timed steps: as in a training, the process prepares the next one meanwhile.
        """
        now = self._meter.mark()
        if self.is_timing:
            self._spans.append((self._step_began, now))
            self._cpu_seconds += self._count_cpu_seconds()
            self._samples.append(samples)
            self._losses += [] if loss is None else [loss]
        elif self._is_observing:
            self._end_observed_step(self._meter.seconds_between(self._step_began, now))
        else:
            self._end_warmup_step(self._meter.seconds_between(self._step_began, now))
        self._begin_step()

    def discard_step(self) -> None:
        """Leave out the step that ends now: it says nothing about the config."""
        if self._is_observing and self._extends_itself and self._live is not None:
            self._live.stop()
            self._live.start()
        if self._extends_itself:
            self._begin_step()
        elif self.is_timing:
            self._lost += 1
            self._begin_step()
        else:
            self.end_step(samples=0)

    def start_over(self, compile_seconds: float) -> None:
        """Leave out all steps so far: the model was compiled in the one that ends now."""
        self._compile_seconds += compile_seconds
        if not self._extends_itself:
            self.discard_step()
            return
        self.stop()
        self._warmup_seconds += self._meter.seconds_between(self._step_began, self._meter.mark())
        self._warmup_seconds += sum(self._step_seconds())
        for kept in (self._spans, self._cpu_seconds, self._samples, self._losses):
            kept.clear()
        self._warmed_up, self.restarts = 0, self.restarts + 1
        self._begin_step()

    def stop(self) -> None:
        """End it before its end."""
        if self._is_observing and self._live is not None:
            self._live.stop()
            self._is_observing = False

    def _begin_step(self) -> None:
        self._cpu_began = self._processors.own_seconds()
        self._step_began = self._meter.mark()

    def _step_seconds(self) -> tuple[float, ...]:
        # A card's events have half a microsecond, in which a step that computes nothing there begins and ends.
        return tuple(max(self._meter.seconds_between(*span), SHORTEST_SECONDS) for span in self._spans)

    def _count_cpu_seconds(self) -> list[float]:
        own_seconds = self._processors.own_seconds()
        if own_seconds is None or self._cpu_began is None:
            return []
        return [max(own_seconds - self._cpu_began, SHORTEST_SECONDS)]

    def _end_warmup_step(self, elapsed: float) -> None:
        self._warmed_up += 1
        self._warmup_seconds += elapsed
        if self._whole_life:
            return
        if self._warmed_up == 1 and self._live is None:
            # Until now the script held the outputs of the last step before the swap, and with them the old arena.
            self._meter.release()
        if not self.is_timing:
            return
        self._meter.reset()
        if self._live is not None:
            # Collecting garbage takes longer than a step of a small model: once, where what is held is read.
            self._meter.release()
            self._is_observing = True
            self._live.start()
        held_bytes = self._meter.held_bytes()
        self._held_bytes = held_bytes if self._live is None else self._live.held_bytes(held_bytes) - self._left_bytes

    def _end_observed_step(self, elapsed: float) -> None:
        assert self._live is not None, "a step is observed by what counts live tensors"
        self._live_bytes = self._live.stop()
        self._meter.reset()
        self._is_observing = False
        self._warmup_seconds += elapsed

    def measurement(self, batch: int) -> Measurement:
        """Return the measurement of the complete window."""
        if not self._spans:
            return Measurement(outcome=Outcome.WRONG_BATCH, message=f"no step had the batch of {batch}")
        step_seconds, losses = self._step_seconds(), tuple(map(float, self._losses))
        is_finite = all(map(math.isfinite, losses))
        return replace(
            self._known or self._read_memory(),
            outcome=Outcome.OK if is_finite else Outcome.DIVERGED,
            message="" if is_finite else f"the loss is {next(x for x in losses if not math.isfinite(x))}",
            step_seconds=step_seconds,
            cpu_seconds=tuple(self._cpu_seconds),
            others_share=self._processors.others_share(),
            warmup_seconds=self._warmup_seconds,
            compile_seconds=self._compile_seconds,
            samples=statistics.median_low(self._samples),
            batch=batch,
            losses=losses,
        )

    def _read_memory(self) -> Measurement:
        reading = replace(self._meter.read(), held_bytes=self._held_bytes, before_bytes=self._before_bytes)
        if self._live is None:
            return reading
        return replace(
            reading,
            peak_bytes=(self._held_bytes or 0) + self._live_bytes,
            allocated_bytes=self._live_bytes,
            resident_bytes=max((reading.peak_bytes or 0) - self._left_bytes, 0),
        )
