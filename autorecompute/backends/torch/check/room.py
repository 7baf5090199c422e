"""Runs a step beside the training, to see what it takes."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

from autorecompute.backends.torch.check.gradients import LOSS, SEEDS
from autorecompute.backends.torch.find.refusals import classify
from autorecompute.measurement import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from autorecompute.backends.torch.check.gradients import Part, Step
    from autorecompute.backends.torch.switch.switchboard import Switchboard
    from autorecompute.plans import Choice


def run_beside(step: Step, board: Switchboard, choices: Iterable[Choice]) -> Tensor:
    """Run a forward and a backward pass with these choices on, and return the loss.

    The training goes on bit for bit as if nothing had been run. Gradients are held to the end where the training's own
    step would make them, and dropped as they come where it would add them to those that are there.
    """
    made = {name for name, parameter in step.model.named_parameters() if parameter.grad is None}
    held: list[Tensor] = []
    losses: list[Tensor] = []

    def hold(part: Part, tensor: Tensor) -> None:
        if part[0] in made:
            held.append(tensor)
        elif part[0] == LOSS:
            losses.append(tensor)

    with board.trying():
        board.set(choices)
        step.run(SEEDS[0], hold)
    return losses[0]


def lacking_memory(step: Step, board: Switchboard, choices: Iterable[Choice]) -> str:
    """Run a step beside the training with these choices on; say what ran out of memory, or nothing if all fitted."""
    lacks = ""
    try:
        run_beside(step, board, choices)
    except Exception as error:  # noqa: BLE001  (the model's own code runs there, and raises the same in its own step)
        outcome, message = classify(error)
        lacks = message if outcome is Outcome.OOM else ""
    if lacks:
        gc.collect()  # not above, where the traceback still holds what the step has made
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return lacks
