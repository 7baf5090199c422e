"""A training that goes on in this process, followed from here on and tuned in its own steps."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute.backends import registry
from autorecompute.worker import hooks
from autorecompute.worker.expected_steps import ExpectedSteps
from autorecompute.worker.guard import Guard
from autorecompute.worker.rank import is_alone, is_first
from autorecompute.worker.ranks_training import RankAgent, RankGuard
from autorecompute.worker.training_agent import TrainingAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from autorecompute.backends.interface import WorkerBackend
    from autorecompute.worker.guard import Say
    from autorecompute.worker.protocol import Settings
    from autorecompute.worker.side_channel import SideChannel

NOT_GIVEN = "an optimizer steps that autorecompute.auto was not given, and peaks are known of the others alone"


class FollowedTraining:
    """Hooks that follow a training, and the guard that they tell.

    Args:
        channel: The line to the controller; of several ranks the first one alone has it.
        settings: What the controller said at the start.
        say: Tells the user.
        optimizers: Those that train already. With any, the search ends where another one steps: it was made before
            and nobody knows what it trains.

    Attributes:
        guard: Who is told of all that happens.

    Raises:
        SetupError: the training system lacks something.
    """

    def __init__(
        self, channel: SideChannel | None, settings: Settings, say: Say, optimizers: Collection[Any] = ()
    ) -> None:
        expected = ExpectedSteps()
        backend = registry.plain_worker()
        agent, self.guard = _guarded_agent(channel, backend, settings, expected, say)
        self._parameters = {id(one) for optimizer in optimizers for one in _parameters_of(optimizer)}
        self._backend = backend
        backend.install(self.guard)
        for optimizer in optimizers:
            backend.note(optimizer)
            agent.on_optimizer()
        self._ends: list[Callable[[], None]] = [
            expected.follow(),
            hooks.follow_steps(self._on_step, self.guard.on_skip, self.guard.on_failure),
            hooks.follow_losses(self.guard.on_loss, self.guard.on_failure),
            hooks.follow_optimizers(self.guard.on_optimizer),
        ]
        os.register_at_fork(after_in_child=self.guard.leave)

    def detach(self, error: BaseException | None) -> None:
        """Follow nothing any more, and recompute nothing, after this error or none."""
        for end in reversed(self._ends):
            end()
        self.guard.release(error)
        self._backend.uninstall()

    def _on_step(self, optimizer: Any) -> None:
        if self._parameters and self._parameters.isdisjoint(map(id, _parameters_of(optimizer))):
            self.guard.on_unknown(NOT_GIVEN)
        self.guard.on_step(optimizer)


def _guarded_agent(
    channel: SideChannel | None, backend: WorkerBackend, settings: Settings, expected: ExpectedSteps, say: Say
) -> tuple[TrainingAgent, Guard]:
    if channel is not None and is_alone():
        agent = TrainingAgent(channel, backend, settings, expected)
        return agent, Guard(backend, settings, agent, say)
    if not is_first():
        settings = replace(settings, tuning_steps=0)
    of_rank = RankAgent(channel, backend, settings, expected)
    return of_rank, RankGuard(backend, settings, of_rank, say, is_first=is_first())


def _parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
