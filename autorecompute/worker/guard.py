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
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.worker import script
from autorecompute.worker.agent import Abandon, Agent
from autorecompute.worker.hooks import expected_steps
from autorecompute.worker.protocol import Beat, Check, Ended, Failed, Line, Order, explain_end
from autorecompute.worker.training_line import FollowingLine, LeadingLine, SearchEndedError, join_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.plans import Lengths
    from autorecompute.training_job import Detection
    from autorecompute.worker.protocol import Settings
    from autorecompute.worker.training_line import SideChannel

    Say = Callable[[int, str], None]  # a level of ``logging``, and a line for the user


def _make_bar(steps: int) -> Any:
    """Return a bar of ``tqdm``, where that is installed and stderr is a terminal; ``None`` elsewhere."""
    # A bar is nothing that a search could fail for.
    with contextlib.suppress(Exception):
        if steps:
            # Gone when the search is over.
            return importlib.import_module("tqdm").tqdm(
                total=steps, desc="autorecompute", unit="step", leave=False, disable=None
            )
    return None


# So long a step waits for the order that follows a measurement. Where the search takes longer, the training goes on.
ANSWER_SECONDS = 0.005
STEPS_BEFORE = 2  # of a training, before any step runs beside it


class TrainingAgent(Agent):
    """Measures in the steps of a training, which never waits for an order but before its first step.

    Ranks that train together begin at the same step, and switch at the same steps; the first one alone has a line to
    the controller. The script's schedulers tell the training's length.

    Where the longest batch was told, that is what trials are about, and it may come late: steps of it, and of shorter
    ones, run beside the training, which goes on with the first config meanwhile.

    Attributes:
        has_begun: True once the first config is on.
    """

    def __init__(
        self,
        side: SideChannel | None,
        backend: WorkerBackend,
        settings: Settings,
        schedulers: Iterable[Any],
        *,
        is_alone: bool = True,
    ) -> None:
        super().__init__(side or Line(), backend, settings, is_alone=is_alone)
        self._side, self._schedulers = side, schedulers
        self._ranks: LeadingLine | FollowingLine | None = None
        self.has_begun, self._fault = False, ""
        self._awaits_answer = False
        self._to_run_beside: Order | None = None
        self._passed = 0  # forwards in which it could not run
        self._bar: Any = None

    def stop(self) -> None:
        """End the measurement that is going on."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(Exception):
                bar.close()
        if self._window is not None:
            self._window.stop()
            self._window = None

    def fail(self, reason: str) -> None:
        """Measure nothing any more on this rank, and switch when the others do until all have heard of it.

        Raises:
            ConnectionError: nobody can hear of it.
        """
        if self._fault:
            return
        self._fault = reason
        self.stop()
        if self._ranks is not None:
            self._ranks.report_fault(Failed(outcome=Outcome.LOST, message=reason))

    def fault_elsewhere(self) -> Failed | None:
        """Return another rank's failure, where this is the first one and another has ended with it."""
        with contextlib.suppress(Exception):  # this process ends, and the store may have gone before it
            return self._ranks.read_fault() if isinstance(self._ranks, LeadingLine) else None
        return None

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Tell what was detected, and begin with the config that the controller answers, on all ranks at once.

        Raises:
            Abandon: the ranks are not together.
            ConnectionError: they have no way to be.
        """
        if not self.is_alone:
            self.line = self._ranks = join_ranks(self._side)
        config = super().on_session(detect)
        if self.longest is not None and self._window is not None:
            self._to_run_beside, self._window = self._window.order, None
        self._bar = _make_bar(self.settings.tuning_steps)
        self.has_begun = True
        return config

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Run what was ordered beside the training, if this batch can be given another length, and then go on."""
        # Before the first steps an optimizer has no state, which the steps of the training have beside them.
        is_whole = batch == self.target_batch and not self.backend.has_open_forward
        self._passed = 0 if is_whole else self._passed + (self._to_run_beside is not None)
        if self._passed > script.MISSED_STEPS:
            self._give_up_batch(batch)
        while self._to_run_beside is not None and self.steps >= STEPS_BEFORE and is_whole:
            order, self._to_run_beside = self._to_run_beside, None
            self._answer(self._run_beside(order, batch))
            self._look_for_order(ANSWER_SECONDS)
            if self._check is not None:
                wanted, self._check = self._check, None
                self._look_at(wanted, check)
        super().on_forward(batch, check)

    def _run_beside(self, order: Order, batch: int) -> Measurement:
        assert self._meter is not None, "a step runs beside a training after a session has begun"
        self._change_length(order)
        window, failed = self._open(order), None
        try:
            while not window.is_complete:
                loss = self.backend.step_beside(order.config)
                window.observe()
                window.end_step(batch, loss)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there, on a batch that is not its script's)
            failed = self.backend.classify(error)
        finally:
            window.stop()
        if failed is not None:
            self._meter.release()  # not above, where the traceback still holds what the step has made
            return Measurement(outcome=failed[0], message=failed[1])
        measurement = replace(window.measurement(batch), warnings=self._warnings)
        if wrong := self.backend.wrong_recompute():
            return Measurement(outcome=Outcome.WRONG_GRADIENT, message=wrong, warnings=self._warnings)
        self._keep(order.config, measurement)
        return measurement

    def _weighed(self, detection: Detection) -> Detection:
        # This process is the training, and holds what the detection left to its end.
        return super()._weighed(replace(detection, left_bytes=0))

    def _look(self, wanted: Check, check: Callable[..., GradientCheck]) -> GradientCheck:
        """Run the check; an exception in it would have come in a step of the training, and counts as disagreement."""
        try:
            return super()._look(wanted, check)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there)
            return GradientCheck(agrees=False, worst=math.inf, steps=0, message=first_line(error))

    def _look_at(self, wanted: Check, check: Callable[..., GradientCheck]) -> None:
        self.line.send(self._look(wanted, check))
        self._look_for_order(ANSWER_SECONDS)

    def _look_for_order(self, seconds: float) -> None:
        if self._ranks is not None:
            assert self._meter is not None, "a step ends after a session has begun"
            # A card may be steps behind its process, and so may the gradients of the first rank.
            self._meter.synchronize()
            self._ranks.end_step(self.steps)
        # Where nothing that was tried has room, a step waits for what may have.
        order = self.line.poll(seconds) if self._fitting is not None else self.line.receive_order()
        if order is not None:
            self._obey(order)

    def _obey(self, order: Order | Check) -> None:
        if self._fault and isinstance(order, Order):
            self.backend.switch(order.config)
        elif self.longest is not None and isinstance(order, Order):
            self._to_run_beside = order
        else:
            super()._obey(order)

    def _end_step(self) -> None:
        if self._bar is not None:
            with contextlib.suppress(Exception):
                self._bar.update()
        if self._window is not None:
            super()._end_step()
        else:
            self.steps += 1
            self._batches, self._loss, self._has_skipped, self._first_check = [], None, False, None
            self._warnings = self.backend.end_step()
        if self._window is None:
            seconds, self._awaits_answer = ANSWER_SECONDS if self._awaits_answer else 0.0, False
            self._look_for_order(seconds)

    def _answer(self, measurement: Measurement) -> None:
        self.line.send(Beat(step=self.steps, expected=expected_steps(self._schedulers, self.steps)))
        self.line.send(measurement)
        self._window, self._awaits_answer = None, True
        if self._fitting is None:
            self._look_for_order(0.0)

    def _give_up_batch(self, batch: int) -> None:
        known = self.target_batch
        text = f"The model receives a batch of {batch} now, not {known}, and peaks are known of {known}."
        self._fail(Outcome.WRONG_BATCH, text)


NEXT_START = "Start again with a lower memory limit, and the search begins with less memory"
SEVERAL_MODELS = "the script trains several models in one step, and peaks are known of one"


def _passed_on(name: str) -> Callable[..., None]:
    def tell(self: Guard, *args: Any) -> None:
        self._guarded(getattr(self._agent, name), *args)

    return tell


class Guard:
    """Passes on what the backend and torch tell, until the search is over or anything fails.

    Nothing that fails here reaches the script: the training goes on with the config that is on, and a sentence says
    why: ``say`` tells the user, and of several ranks the first one does. Where it fails on one of them, the search ends
    for all: none of them switches by itself. Where parameters are sharded, ranks that recompute different blocks would
    wait for each other.
    """

    on_forward, on_fallback = _passed_on("on_forward"), _passed_on("on_fallback")
    on_optimizer, on_loss = _passed_on("on_optimizer"), _passed_on("on_loss")
    on_step, on_skip = _passed_on("on_step"), _passed_on("on_skip")
    fake_card: str | None = None
    fake_ranks = 0
    is_trial = is_surveyed = False

    def __init__(self, agent: TrainingAgent, say: Say, *, is_first: bool = True) -> None:
        self._agent, self._backend, self.longest = agent, agent.backend, agent.longest
        self._say_own, self._say = say, say if is_first else lambda *_: None
        self.replaces_checkpointing, self.is_exact = agent.replaces_checkpointing, agent.is_exact
        self._config = Config()
        self._is_on = True
        self._lacked: Failed | None = None

    @property
    def target_batch(self) -> int | None:
        """Return the samples of the first forward."""
        return self._agent.target_batch

    def leave(self) -> None:
        """Note that this is a process that the script has forked: it is none of ours."""
        self._is_on = False

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Return the config of the first step."""

        def begin() -> None:
            if other := registry.other_in_use(self._agent.settings.backend):
                raise Abandon(f"the script uses {other}, and only plain PyTorch is tuned while it trains")
            self._config = self._agent.on_session(detect)

        self._guarded(begin)
        return self._config

    def on_several_models(self) -> None:
        """Train as without the tool: what was chosen was chosen for one of them."""
        self.on_unknown(SEVERAL_MODELS)

    def on_unknown(self, reason: str) -> None:
        """Train as without the tool: something else trains, too, of which nothing is known."""
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

    def end(self, error: BaseException | None) -> None:
        """Note that the script has ended, by this error or by itself, before that reaches anybody else."""
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
        if error is None:
            return None, Ended(steps=self._agent.steps)
        outcome, message = (None, "") if isinstance(error, SystemExit) else self._classify(error)
        if outcome is Outcome.OOM:
            self._say_own(
                logging.WARNING,
                f"out of memory at step {self._agent.steps + 1}. A step that failed cannot be repeated: start again "
                "with a lower memory limit, and the search begins with less memory.",
            )
        elif (elsewhere := self._agent.fault_elsewhere()) is not None:
            return elsewhere.outcome, elsewhere
        if outcome is None:
            return None, Ended(steps=self._agent.steps)
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
            self._end_search(end.keep.config, end.keep.lengths)
            since = "" if end.keep.config is None else f"from step {self._agent.steps + 1} on: "
            self._say(logging.WARNING if end.keep.config is None else logging.INFO, f"{since}{end.keep.message}")
        except (Exception, Abandon) as error:  # noqa: BLE001  (nothing of ours may end the training)
            self._let_go(first_line(error))

    def _end_without_step(self, lacked: Failed) -> None:
        """Tell the study that memory ran out and the script has caught it; leave on what is on."""
        self._part(lacked)
        self._let_go(f"out of memory in step {self._agent.steps + 1}, and the script went on. {NEXT_START}")

    def _let_go(self, reason: str, config: Config | None = None) -> None:
        if not self._agent.is_alone:
            config = None
            try:
                self._agent.fail(reason)
                if self._agent.has_begun:
                    return
            except ConnectionError as error:
                reason = first_line(error)
        self._end_search(config)
        self._say(logging.WARNING, explain_end(reason))

    def _end_search(self, config: Config | None, lengths: Lengths | None = None) -> None:
        self._is_on = False
        self._agent.line.close()
        try:
            self._agent.stop()
            if config is not None:
                self._backend.follow_lengths(lengths)
                self._backend.switch(config)
                self._config = config
        except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
            self._say(logging.WARNING, first_line(error))
