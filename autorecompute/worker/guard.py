"""Keeps whatever fails in a search from the training that it goes on in."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from autorecompute.backends import registry
from autorecompute.errors import first_line
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.worker.agent import Abandon
from autorecompute.worker.protocol import Ended, Failed, explain_end
from autorecompute.worker.side_channel import GONE, ControllerGoneError, StayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.measurement import GradientCheck
    from autorecompute.training_job import Detection
    from autorecompute.worker.protocol import Settings
    from autorecompute.worker.training_agent import TrainingAgent

    Say = Callable[[int, str], None]  # a level of ``logging``, and a line for the user

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
        """Return what the first batch was."""
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
        except StayError as end:
            self._end_search(end.stay.config)
            since = "" if end.stay.config is None else f"from step {self._agent.steps + 1} on: "
            self._say(logging.WARNING if end.stay.config is None else logging.INFO, f"{since}{end.stay.message}")
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
