"""Measures in the steps of a training that goes on, whatever fails."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute.backends import registry
from autorecompute.errors import first_line
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.worker.agent import Abandon, Agent
from autorecompute.worker.protocol import Beat, Check, Ended, Failed, explain_end
from autorecompute.worker.side_channel import GONE, ControllerGoneError, SearchEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.measurement import Measurement
    from autorecompute.training_job import Detection
    from autorecompute.worker.hooks import ExpectedSteps
    from autorecompute.worker.protocol import Order, Settings
    from autorecompute.worker.side_channel import TrainingLine

    Say = Callable[[int, str], None]  # a level of ``logging``, and a line for the user


class TrialsBar:
    """A bar of ``tqdm``, where that is installed and stderr is a terminal; elsewhere nothing.

    Args:
        steps: How many steps trials may take; 0 shows none.
    """

    def __init__(self, steps: int) -> None:
        self._bar: Any = None
        # A bar is nothing that a search could fail for.
        with contextlib.suppress(Exception):
            if steps:
                make = importlib.import_module("tqdm").tqdm
                # Only on a terminal, and gone when the search is over.
                self._bar = make(total=steps, desc="autorecompute", unit="step", leave=False, disable=None)

    def advance(self) -> None:
        """Count a step that has ended, in a trial or between two."""
        if self._bar is not None:
            with contextlib.suppress(Exception):
                self._bar.update()

    def close(self) -> None:
        """End the bar: the search is over."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(Exception):
                bar.close()


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
    """Run the check; an exception in it would have come in a step of the training, and counts as disagreement."""
    try:
        return check(wanted.config, compares=wanted.compares)
    except Exception as error:  # noqa: BLE001  (the model's own code runs there)
        return GradientCheck(agrees=False, worst=math.inf, steps=0, message=first_line(error))


NEXT_START = "Start again with a lower memory limit, and the search begins with less memory"
SEVERAL_MODELS = "the script trains several models in one step, and peaks are known of one"


class Guard:
    """Passes on what the backend and torch tell, until the search is over or anything fails.

    Nothing that fails here reaches the script: the training goes on with the config that is on, and a sentence says
    why.

    Args:
        backend: The training system.
        settings: What the controller said at the start.
        agent: Who measures.
        say: Tells the user.
    """

    def __init__(self, backend: WorkerBackend, settings: Settings, agent: TrainingAgent, say: Say) -> None:
        self._backend, self._settings, self._agent, self._say = backend, settings, agent, say
        self._config = Config()
        self._is_on = True
        self._lacked: Failed | None = None

    @property
    def target_batch(self) -> int | None:
        """Return the first batch."""
        return self._agent.target_batch

    @property
    def fake_card(self) -> str | None:
        """None: a training has tensors with data."""
        return None

    @property
    def fake_ranks(self) -> int:
        """0: the ranks of a training are real."""
        return 0

    @property
    def replaces_checkpointing(self) -> bool:
        """Tell whether the checkpoints that the script makes itself are to be switched off."""
        return self._settings.replaces_checkpointing

    @property
    def is_trial(self) -> bool:
        """No: the training goes on behind the search."""
        return False

    def leave(self) -> None:
        """Told that this is a process that the script has forked: it is none of ours."""
        self._is_on = False

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Return the config of the first step."""

        def begin() -> None:
            if other := registry.other_in_use(self._settings.backend):
                raise Abandon(f"the script uses {other}, and only plain PyTorch is tuned while it trains")
            self._config = self._agent.on_session(detect)

        self._guarded(begin)
        return self._config

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Note that the model is about to be called."""
        self._guarded(self._agent.on_forward, batch, check)

    def on_fallback(self, message: str) -> None:
        """Note another way of training than the one that is tuned."""
        self._guarded(self._agent.on_fallback, message)

    def on_several_models(self) -> None:
        """Train as without the tool: what was chosen was chosen for one of them."""
        self.on_unknown(SEVERAL_MODELS)

    def on_unknown(self, reason: str) -> None:
        """Something else trains, too, of which nothing is known: as without the tool."""
        if self._is_on:
            self._let_go(reason, Config())

    def on_fault(self, error: Exception) -> None:
        """Note that what follows the script has failed."""
        if self._is_on:
            self._let_go(first_line(error))

    def on_failure(self, error: Exception) -> None:
        """Note that a training call or a backward pass has raised this; whether the script goes on is seen later."""
        outcome, message = self._classify(error)
        if self._is_on and outcome is Outcome.OOM:
            self._lacked = Failed(outcome=outcome, message=message)

    def on_optimizer(self) -> None:
        """Note that the script has made an optimizer."""
        self._guarded(self._agent.on_optimizer)

    def on_loss(self, loss: Any) -> None:
        """Note that a backward pass begins."""
        self._guarded(self._agent.on_loss, loss)

    def on_step(self, optimizer: Any) -> None:
        """Note that an optimizer has stepped."""
        self._guarded(self._agent.on_step, optimizer)

    def on_skip(self, optimizer: Any) -> None:
        """Note that a GradScaler has kept it from that."""
        self._guarded(self._agent.on_skip, optimizer)

    def end(self, error: BaseException | None) -> None:
        """Told that the script has ended, by this error or by itself, before that reaches anybody else."""
        outcome, last = self._last_words(error)
        if not self._is_on:
            return
        if outcome is None and self._lacked is not None:
            self._end_without_step(self._lacked)
            return
        self._is_on = False
        if error is None and not self._agent.has_trained:
            self._say(logging.WARNING, f"nothing was tuned. {self._agent.advice}")
        elif outcome is None:
            text = "the script ended before the search did, and the next start goes on from what was measured."
            self._say(logging.INFO, text)
        self._part(last)

    def release(self, error: BaseException | None) -> None:
        """End the search, after this error or none, and recompute with it: the model trains as without the tool."""
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
            self._agent.line.send(last)
            self._agent.line.wait_for_end()

    def _classify(self, error: BaseException) -> tuple[Outcome, str]:
        try:
            return self._backend.classify(error)
        except Exception as fault:  # noqa: BLE001  (the script's own error is what its user has to see)
            return Outcome.SCRIPT_ERROR, first_line(fault)

    def _guarded(self, tell: Callable[..., None], *args: Any) -> None:
        """Tell the agent while the search is on, and end the search where that fails."""
        if not self._is_on:
            return
        if self._lacked is not None:
            self._end_without_step(self._lacked)
            return
        try:
            tell(*args)
        except SearchEndedError as end:
            self._end_search(end.keep.config)
            since = "" if end.keep.config is None else f"from step {self._agent.steps + 1} on: "
            self._say(logging.WARNING if end.keep.config is None else logging.INFO, f"{since}{end.keep.message}")
        except ControllerGoneError:
            self._lose_line()
        except (Exception, Abandon) as error:  # noqa: BLE001  (nothing of ours may end the training)
            self._let_go(first_line(error))

    def _end_without_step(self, lacked: Failed) -> None:
        """Tell the study that memory ran out and the script has caught it; leave on what is on."""
        self._part(lacked)
        self._let_go(f"out of memory in step {self._agent.steps + 1}, and the script went on. {NEXT_START}")

    def _lose_line(self) -> None:
        self._let_go(GONE)

    def _let_go(self, reason: str, config: Config | None = None) -> None:
        self._end_search(config)
        self._say(logging.WARNING, explain_end(reason))

    def _end_search(self, config: Config | None) -> None:
        self._is_on = False
        self._agent.line.close()
        try:
            self._agent.stop()
            if config is not None:
                self._backend.switch(config)
                self._config = config
        except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
            self._say(logging.WARNING, first_line(error))
