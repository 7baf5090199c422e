"""The steps in which one config is measured."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

from autorecompute.measurement import Measurement, Outcome

if TYPE_CHECKING:
    from autorecompute.meters import Meter
    from autorecompute.worker.protocol import Order


class Window:
    """Warm-up steps, a reset of the peak, timed steps.

    Args:
        meter: The device's memory.
        order: How many steps of each.
        whole_life: Whether the peak is that of the process since its birth: nothing is released and nothing reset.
        extends_itself: Whether a discarded step is made up for by a further one.
    """

    def __init__(self, meter: Meter, order: Order, *, whole_life: bool = False, extends_itself: bool = True) -> None:
        self._meter, self.order = meter, order
        self._whole_life, self._extends_itself = whole_life, extends_itself
        self._warmed_up, self._lost = 0, 0
        self._warmup_seconds = 0.0
        self._held_bytes: int | None = None
        self._step_seconds: list[float] = []
        self._samples: list[int] = []
        self._losses: list[float] = []
        self._step_began = time.perf_counter()

    @property
    def is_complete(self) -> bool:
        """Whether all timed steps are done."""
        return len(self._step_seconds) + self._lost == self.order.steps

    @property
    def is_timing(self) -> bool:
        """Whether the warm-up is over."""
        return self._warmed_up == self.order.warmup

    def observe(self) -> None:
        """Looks at the device before anything waits for it, so that it is seen at work."""
        if self.is_timing:
            self._meter.observe()

    def end_step(self, samples: int, loss: float | None) -> None:
        """Counts the step that ends now.

        Args:
            samples: Samples of all its forwards.
            loss: Value its last backward started from, ``None`` where that was no scalar.
        """
        self._meter.synchronize()
        elapsed = time.perf_counter() - self._step_began
        if self.is_timing:
            self._step_seconds.append(elapsed)
            self._samples.append(samples)
            self._losses += [] if loss is None else [loss]
        else:
            self._end_warmup_step(elapsed)
        self._step_began = time.perf_counter()

    def discard_step(self) -> None:
        """Leaves out the step that ends now: it says nothing about the config."""
        if self._extends_itself:
            self._step_began = time.perf_counter()
        elif self.is_timing:
            self._lost += 1
            self._step_began = time.perf_counter()
        else:
            self.end_step(samples=0, loss=None)

    def _end_warmup_step(self, elapsed: float) -> None:
        self._warmed_up += 1
        self._warmup_seconds += elapsed
        if self._whole_life:
            return
        if self._warmed_up == 1:
            # Until now the script held the outputs of the last step before the swap, and with them the old arena.
            self._meter.release()
        if self.is_timing:
            self._meter.reset()
            self._held_bytes = self._meter.held_bytes()

    def measurement(self, batch: int) -> Measurement:
        """What the complete window measured."""
        if not self._step_seconds:
            return Measurement(outcome=Outcome.WRONG_BATCH, message=f"no step had the batch of {batch}")
        reading = self._meter.read()
        is_finite = all(map(math.isfinite, self._losses))
        return Measurement(
            outcome=Outcome.OK if is_finite else Outcome.DIVERGED,
            message="" if is_finite else f"the loss is {next(x for x in self._losses if not math.isfinite(x))}",
            peak_bytes=reading.peak_bytes,
            held_bytes=self._held_bytes,
            allocated_bytes=reading.allocated_bytes,
            device_bytes=reading.device_bytes,
            step_seconds=tuple(self._step_seconds),
            warmup_seconds=self._warmup_seconds,
            samples=statistics.median_low(self._samples),
            batch=batch,
            losses=tuple(self._losses),
            retries=reading.retries,
            marks=reading.marks,
        )
