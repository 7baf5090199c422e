"""How many steps a script's learning rate scheduler lets expect."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from autorecompute.worker.hooks import put_in

if TYPE_CHECKING:
    from collections.abc import Callable

TOTALS = ("total_steps", "T_max", "total_iters")
"""Attributes of torch's schedulers that say how long they are."""

KEYWORD = "num_training_steps"
"""What Hugging Face's schedulers are told."""

LEAST_STEPS = 2
"""One step does not tell a scheduler that goes by steps from one that goes by epochs."""


class ExpectedSteps:
    """Follows the schedulers that a script makes."""

    def __init__(self) -> None:
        self._schedulers: weakref.WeakSet[Any] = weakref.WeakSet()

    def follow(self) -> Callable[[], None]:
        """Note each scheduler that is made from now on; give what ends that."""
        from torch.optim.lr_scheduler import LRScheduler, SequentialLR

        # A sequence does not call the constructor of its base class.
        ends = [self._note_all_of(kind) for kind in (LRScheduler, SequentialLR)]

        def end() -> None:
            for each in ends:
                each()

        return end

    def _note_all_of(self, kind: type) -> Callable[[], None]:
        make = kind.__init__  # type: ignore[misc]

        @functools.wraps(make)
        def make_and_note(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            make(scheduler, *args, **kwargs)
            self._schedulers.add(scheduler)
            self._schedulers.difference_update(_parts_of(scheduler))

        return put_in(kind, "__init__", make_and_note)

    def after(self, steps: int) -> int | None:
        """Return the steps of the whole training, once so many have ended; ``None`` where nobody tells.

        A scheduler that has not gone along with the steps counts something else, epochs for instance.
        """
        if steps < LEAST_STEPS:
            return None
        told = [_length_of(scheduler) for scheduler in self._schedulers if scheduler.last_epoch >= steps - 1]
        return min((length for length in told if length is not None), default=None)


def _parts_of(scheduler: Any) -> list[Any]:
    """Return what a sequence runs one after the other: each of them tells the length of its part alone."""
    return scheduler._schedulers if hasattr(scheduler, "_milestones") else []  # noqa: SLF001


def _length_of(scheduler: Any) -> int | None:
    if parts := _parts_of(scheduler):
        last = _length_of(parts[-1])
        return None if last is None else scheduler._milestones[-1] + last  # noqa: SLF001
    return None if _warms_up(scheduler) else _told_length(scheduler)


def _warms_up(scheduler: Any) -> bool:
    """Tell whether its end is not that of the training: a ``ConstantLR``, or a ``LinearLR`` that goes up."""
    start = getattr(scheduler, "start_factor", None)
    return hasattr(scheduler, "factor") if start is None else start < scheduler.end_factor


def _told_length(scheduler: Any) -> int | None:
    lambdas = [getattr(one, "keywords", {}) for one in getattr(scheduler, "lr_lambdas", ())]
    values = [getattr(scheduler, name, None) for name in TOTALS] + [keywords.get(KEYWORD) for keywords in lambdas]
    return next((value for value in values if isinstance(value, int) and value > 0), None)
