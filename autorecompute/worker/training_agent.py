"""Measures configs in the steps of a training that goes on, and keeps whatever fails there from the training."""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any

from autorecompute.backends import registry
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.worker.agent import Abandon, Agent
from autorecompute.worker.protocol import Beat, Check, Ended, Failed
from autorecompute.worker.side_channel import ControllerGoneError, StayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.measurement import Detection, Measurement
    from autorecompute.worker.expected_steps import ExpectedSteps
    from autorecompute.worker.protocol import Order, Settings
    from autorecompute.worker.side_channel import SideChannel

    Say = Callable[[int, str], None]  # a level of ``logging``, and a line for the user

ANSWER_SECONDS = 0.005
"""So long a step waits for the order that follows a measurement. Between trials the search may take longer, and the
training goes on meanwhile."""

SEVERAL_MODELS = "the script trains several models in one step, and peaks are known of one"
GONE = "the search has ended without an answer"


class TrainingAgent(Agent):
    """Measures in the steps of a training, which never waits for an order but before its first step.

    Args:
        channel: The line to the controller.
        backend: The training system.
        settings: What the controller said at the start.
        expected: What is known of the training's length.
    """

    def __init__(
        self, channel: SideChannel, backend: WorkerBackend, settings: Settings, expected: ExpectedSteps
    ) -> None:
        super().__init__(channel, backend, settings)
        self._line, self._expected = channel, expected
        self._awaits_answer = False
        self._first_check: Callable[[Config], GradientCheck] | None = None

    def stop(self) -> None:
        """Ends the measurement that is going on."""
        if self._window is not None:
            self._window.stop()
            self._window = None

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Tells what was detected, and begins with the config that the controller answers."""
        try:
            return super().on_session(detect)
        finally:
            self._first_check = None  # it holds the batch

    def on_forward(self, batch: int, check: Callable[[Config], GradientCheck]) -> None:
        """Notes the batch of one training forward, and compares gradients on it if that was ordered."""
        if not self.has_trained:
            self._first_check = check
        super().on_forward(batch, check)

    def _receive_first(self) -> Order:
        while isinstance(order := self._line.receive_order(), Check):
            assert self._first_check is not None, "a session begins in a forward"
            self._line.send(_compare(self._first_check, order.config))
        return order

    def _compare(self, check: Callable[[Config], GradientCheck], config: Config) -> None:
        self._line.send(_compare(check, config))
        self._look_for_order(ANSWER_SECONDS)

    def _look_for_order(self, seconds: float) -> None:
        order = self._line.poll(seconds)
        if order is not None:
            self._obey(order)

    def _end_step(self) -> None:
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
        self._channel.send(Beat(step=self.steps, expected=self._expected.after(self.steps)))
        self._channel.send(measurement)
        self._window, self._awaits_answer = None, True

    def _give_up_batch(self, batch: int) -> None:
        self._fail(
            Outcome.WRONG_BATCH,
            f"The model receives a batch of {batch} now, not {self._target}, and peaks are known of {self._target}.",
        )


class Guard:
    """Passes on what the backend and torch tell, until the search is over or anything fails.

    Nothing that fails here reaches the script: the training goes on with the config that is on, and a sentence says
    why.

    Args:
        channel: The line to the controller.
        backend: The training system.
        settings: What the controller said at the start.
        agent: Who measures.
        say: Tells the user.
    """

    def __init__(
        self, channel: SideChannel, backend: WorkerBackend, settings: Settings, agent: TrainingAgent, say: Say
    ) -> None:
        self._channel, self._backend, self._settings, self._agent = channel, backend, settings, agent
        self._say = say
        self._config = Config()
        self._is_on = True

    @property
    def target_batch(self) -> int | None:
        """What the first batch was."""
        return self._agent.target_batch

    @property
    def fake_card(self) -> str | None:
        """None: a training has tensors with data."""
        return None

    def leave(self) -> None:
        """Told that this is a process that the script has forked: it is none of ours."""
        self._is_on = False

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """The config of the first step."""

        def begin() -> None:
            if other := registry.other_in_use(self._settings.backend):
                raise Abandon(f"the script uses {other}, and only plain PyTorch is tuned while it trains")
            self._config = self._agent.on_session(detect)

        self._guarded(begin)
        return self._config

    def on_forward(self, batch: int, check: Callable[[Config], GradientCheck]) -> None:
        """The model is about to be called."""
        self._guarded(self._agent.on_forward, batch, check)

    def on_fallback(self, message: str) -> None:
        """Another way of training than the one that is tuned."""
        self._guarded(self._agent.on_fallback, message)

    def on_several_models(self) -> None:
        """As without the tool: what was chosen was chosen for one of them."""
        self.on_unknown(SEVERAL_MODELS)

    def on_unknown(self, reason: str) -> None:
        """Something else trains, too, of which nothing is known: as without the tool."""
        if self._is_on:
            self._let_go(reason, Config())

    def on_fault(self, error: Exception) -> None:
        """What follows the script has failed."""
        if self._is_on:
            self._let_go(_describe(error))

    def on_optimizer(self) -> None:
        """The script has made an optimizer."""
        self._guarded(self._agent.on_optimizer)

    def on_loss(self, loss: Any) -> None:
        """A backward pass begins."""
        self._guarded(self._agent.on_loss, loss)

    def on_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._guarded(self._agent.on_step, optimizer)

    def on_skip(self, optimizer: Any) -> None:
        """A GradScaler has kept it from that."""
        self._guarded(self._agent.on_skip, optimizer)

    def end(self, error: BaseException | None) -> None:
        """Told that the script has ended, by this error or by itself, before that reaches anybody else."""
        outcome, last = self._last_words(error)
        if not self._is_on:
            return
        self._is_on = False
        if error is None and not self._agent.has_trained:
            self._say(logging.WARNING, f"nothing was tuned. {self._agent.advice}")
        elif outcome is None:
            text = "the script ended before the search did, and the next start goes on from what was measured."
            self._say(logging.INFO, text)
        self._part(last)

    def release(self, error: BaseException | None) -> None:
        """Ends the search, after this error or none, and recompute with it: the model trains as without the tool."""
        _, last = self._last_words(error)
        if self._is_on:
            self._part(last)
        self._end_search(Config())

    def _last_words(self, error: BaseException | None) -> tuple[Outcome | None, Ended | Failed]:
        if error is None or isinstance(error, SystemExit):
            return None, Ended(steps=self._agent.steps)
        outcome, message = self._classify(error)
        if outcome is Outcome.OOM:
            self._say(
                logging.WARNING,
                f"out of memory at step {self._agent.steps + 1}. A step that failed cannot be repeated: start again "
                "with a lower memory limit, and the search begins with less memory.",
            )
        return outcome, Failed(outcome=outcome, message=message)

    def _part(self, last: Ended | Failed) -> None:
        with contextlib.suppress(Exception):  # what ended the script must reach its user
            self._channel.send(last)
            self._channel.wait_for_end()

    def _classify(self, error: BaseException) -> tuple[Outcome, str]:
        try:
            return self._backend.classify(error)
        except Exception as fault:  # noqa: BLE001  (the script's own error is what its user has to see)
            return Outcome.SCRIPT_ERROR, _describe(fault)

    def _guarded(self, tell: Callable[..., None], *args: Any) -> None:
        """Tells the agent while the search is on, and ends the search where that fails."""
        if not self._is_on:
            return
        try:
            tell(*args)
        except StayError as end:
            self._end_search(end.stay.config)
            since = "" if end.stay.config is None else f"from step {self._agent.steps + 1} on: "
            self._say(logging.WARNING if end.stay.config is None else logging.INFO, f"{since}{end.stay.message}")
        except ControllerGoneError:
            self._let_go(GONE)
        except (Exception, Abandon) as error:  # noqa: BLE001  (nothing of ours may end the training)
            self._let_go(_describe(error))

    def _let_go(self, reason: str, config: Config | None = None) -> None:
        self._end_search(config)
        text = f"no further config is tried, and the training goes on: {reason.rstrip('.')}."
        self._say(logging.WARNING, text)

    def _end_search(self, config: Config | None) -> None:
        self._is_on = False
        self._channel.close()
        try:
            self._agent.stop()
            if config is not None:
                self._backend.switch(config)
                self._config = config
        except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
            self._say(logging.WARNING, _describe(error))


def _compare(check: Callable[[Config], GradientCheck], config: Config) -> GradientCheck:
    """What raises while gradients are compared would have raised in a step of the training."""
    try:
        return check(config)
    except Exception as error:  # noqa: BLE001  (the model's own code runs there)
        return GradientCheck(agrees=False, worst=math.inf, steps=0, message=_describe(error))


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
