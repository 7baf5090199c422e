"""The memory budget of the compiler: a share of what it would keep for the backward pass, one for the whole model.

With it goes what the compiler is told of single operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch._functorch import config as functorch
from torch._inductor import config as inductor

from autorecompute.backends.torch.compiled.marks import Marks
from autorecompute.backends.torch.options import BUDGET

if TYPE_CHECKING:
    from autorecompute.backends.torch.compiled.marks import Tags

VALUES: Final = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""What is offered where it makes a difference. At 0 the compiler makes random numbers again whatever it is told."""


def option_of(value: float) -> str:
    """Return how a choice names a budget: ``budget_0.5``."""
    return f"{BUDGET}{value}"


def value_of(option: str) -> float:
    """Return the budget that an option names, be anything kept under it or not."""
    return float(option.removeprefix(BUDGET).partition("_")[0])


class Asked:
    """What the compiler of this process is asked for; puts back what the script had."""

    def __init__(self) -> None:
        self._before: tuple[float, Any] | None = None

    def set(self, budget: float | None, tags: Tags | None = None) -> None:
        """Switch from the next compilation on.

        Args:
            budget: The memory budget; ``None`` for what the script has.
            tags: What is to be done with clusters of operators.
        """
        is_none = budget is None and (tags is None or tags.is_none)
        if self._before is None:
            if is_none:
                return
            self._before = functorch.activation_memory_budget, inductor.joint_custom_post_pass
        own, found = self._before
        functorch.activation_memory_budget = own if budget is None else budget
        if is_none:
            inductor.joint_custom_post_pass = found
            self._before = None
        else:
            inductor.joint_custom_post_pass = Marks(found, tags)
