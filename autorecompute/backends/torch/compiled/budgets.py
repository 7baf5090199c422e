"""The memory budget of the compiler: a share of what it would keep for the backward pass, one for the whole model."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.options import BUDGET

VALUES: Final = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""What is offered where it makes a difference. At 0 the compiler makes random numbers again whatever it is told."""


def option_of(value: float) -> str:
    """How a choice names a budget: ``budget_0.5``."""
    return f"{BUDGET}{value}"


def value_of(option: str) -> float:
    """The budget that an option names."""
    return float(option.removeprefix(BUDGET))


class KeepRandomNumbers(CustomGraphPass):  # type: ignore[misc]
    """Has the compiler keep what was drawn by chance, or the seeds of it.

    Under a budget PyTorch takes an operator for one that it may run again unless it knows it as random, and it does not
    know most: the masks of a dropout in the backward pass were others than in the forward pass, without a word (seen
    with torch 2.13 on a CPU). Seeds take some bytes, and masks are made of them again.

    Args:
        next_pass: What the script has the compiler do at this place; ``None`` for nothing.
    """

    def __init__(self, next_pass: Any = None) -> None:
        self._next = next_pass

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Marks the operators of a joint graph of forward and backward pass."""
        if self._next is not None:
            self._next(graph)
        for node in graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        """What stands for this pass in the keys of the compiler's caches."""
        if self._next is None:
            return type(self).__qualname__
        inner = self._next.uuid() if isinstance(self._next, CustomGraphPass) else None
        return None if inner is None else (type(self).__qualname__, inner)


class Budget:
    """Sets the budget of this process, and puts back what the script had."""

    def __init__(self) -> None:
        self._before: tuple[float, Any] | None = None

    def set(self, value: float | None) -> None:
        """From the next compilation on; ``None`` for what the script has."""
        if self._before is None:
            if value is None:
                return
            self._before = functorch.activation_memory_budget, inductor.joint_custom_post_pass
        budget, found = self._before
        if value is None:
            functorch.activation_memory_budget, inductor.joint_custom_post_pass = budget, found
            self._before = None
        else:
            functorch.activation_memory_budget = value
            inductor.joint_custom_post_pass = KeepRandomNumbers(found)
