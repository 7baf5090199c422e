"""Measures configs in the steps of a training that goes on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import first_line
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.worker.agent import Agent
from autorecompute.worker.protocol import Beat, Check
from autorecompute.worker.trials_bar import TrialsBar

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.measurement import Measurement
    from autorecompute.plans import Config
    from autorecompute.training_job import Detection
    from autorecompute.worker.expected_steps import ExpectedSteps
    from autorecompute.worker.protocol import Order, Settings
    from autorecompute.worker.side_channel import TrainingLine

ANSWER_SECONDS = 0.005
"""So long a step waits for the order that follows a measurement. Between trials the search may take longer, and the
training goes on meanwhile."""


class TrainingAgent(Agent):
    """Measures in the steps of a training, which never waits for an order but before its first step.

    Args:
        channel: The line to the controller.
        backend: The training system.
        settings: What the controller said at the start.
        expected: What is known of the training's length.
        is_alone: Whether this process trains by itself.

    Attributes:
        line: The line to the controller.
    """

    def __init__(
        self,
        channel: TrainingLine,
        backend: WorkerBackend,
        settings: Settings,
        expected: ExpectedSteps,
        *,
        is_alone: bool = True,
    ) -> None:
        super().__init__(channel, backend, settings, is_alone=is_alone)
        self.line, self._expected = channel, expected
        self._awaits_answer = False
        self._progress = TrialsBar(0)
        self._first_check: Callable[..., GradientCheck] | None = None

    def stop(self) -> None:
        """End the measurement that is going on."""
        self._progress.close()
        if self._window is not None:
            self._window.stop()
            self._window = None

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Tell what was detected, and begin with the config that the controller answers."""
        try:
            config = super().on_session(detect)
        finally:
            self._first_check = None  # it holds the batch
        self._progress = TrialsBar(self._settings.tuning_steps)
        return config

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Note the batch of one training forward, and look at a config on it if that was ordered."""
        if not self.has_trained:
            self._first_check = check
        super().on_forward(batch, check)

    def _receive_first(self) -> Order:
        while isinstance(order := self.line.receive_order(), Check):
            assert self._first_check is not None, "a session begins in a forward"
            self.line.send(_look_at(order, self._first_check))
        return order

    def _weighed(self, detection: Detection) -> Detection:
        # This process is the training, and holds what the detection left to its end.
        return super()._weighed(replace(detection, left_bytes=0))

    def _look_at(self, wanted: Check, check: Callable[..., GradientCheck]) -> None:
        self.line.send(_look_at(wanted, check))
        self._look_for_order(ANSWER_SECONDS)

    def _look_for_order(self, seconds: float) -> None:
        order = self.line.poll(seconds)
        if order is not None:
            self._obey(order)

    def _end_step(self) -> None:
        self._progress.advance()
        if self._window is not None:
            super()._end_step()
        else:
            self.steps += 1
            self._batches, self._loss, self._has_skipped, self._first_check = [], None, False, None
            self._backend.end_step()
        if self._window is None:
            seconds, self._awaits_answer = ANSWER_SECONDS if self._awaits_answer else 0.0, False
            self._look_for_order(seconds)

    def _answer(self, measurement: Measurement) -> None:
        self.line.send(Beat(step=self.steps, expected=self._expected.after(self.steps)))
        self.line.send(measurement)
        self._window, self._awaits_answer = None, True

    def _give_up_batch(self, batch: int) -> None:
        self._fail(
            Outcome.WRONG_BATCH,
            f"The model receives a batch of {batch} now, not {self._target}, and peaks are known of {self._target}.",
        )


def _look_at(wanted: Check, check: Callable[..., GradientCheck]) -> GradientCheck:
    """Return what raises while gradients are compared would have raised in a step of the training."""
    try:
        return check(wanted.config, compares=wanted.compares)
    except Exception as error:  # noqa: BLE001  (the model's own code runs there)
        return GradientCheck(agrees=False, worst=math.inf, steps=0, message=first_line(error))
