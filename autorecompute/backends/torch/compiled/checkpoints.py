"""Module calls that the compiler traces as checkpoints.

The choice of a module stands in its ``__dict__``, where the compiler guards it: a compiled block that is shared by
several modules is compiled once for those that are checkpointed and once for the others. A copy of the module carries
the choice along, and trains with its own weights.
"""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from autorecompute.backends.torch.checkpoints import MATMULS
from autorecompute.backends.torch.options import KEEP_MATMUL

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module

CHOICE = "_autorecompute_choice"
"""Under this name a module has its option."""

_KEEPING_MATMULS = functools.partial(create_selective_checkpoint_contexts, list(MATMULS))
_MODULES: collections.Counter[type] = collections.Counter()
_REPLACED: dict[type, Any] = {}
"""What each class had for its ``forward``; None where it had none of its own."""


def choose(module: Module, option: str | None) -> None:
    """Checkpoint the module's calls from the next compilation on; ``None`` to call it plainly again."""
    before = vars(module).pop(CHOICE, None)
    if option is not None:
        vars(module)[CHOICE] = option
    if (before is None) != (option is None):
        _count(type(module), -1 if option is None else 1)


def _count(kind: type, change: int) -> None:
    _MODULES[kind] += change
    if _MODULES[kind] > 0 and kind not in _REPLACED:
        _REPLACED[kind] = vars(kind).get("forward")
        kind.forward = _forward_of(kind, kind.forward)  # type: ignore[attr-defined]
    elif _MODULES[kind] == 0 and kind in _REPLACED:
        original = _REPLACED.pop(kind)
        if original is None:
            del kind.forward  # type: ignore[attr-defined]
        else:
            kind.forward = original  # type: ignore[attr-defined]


def _forward_of(kind: type, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        # A subclass that calls super().forward() comes here a second time: it is checkpointed as a whole.
        option = self.__dict__.get("_autorecompute_choice") if type(self) is kind else None
        if option is None:
            return original(self, *args, **kwargs)
        call = functools.partial(original, self)
        # The compiler knows what stands under this name now, which ONNX Runtime's import changes.
        checkpoint = torch.utils.checkpoint.checkpoint
        if option == KEEP_MATMUL:
            return checkpoint(call, *args, use_reentrant=False, context_fn=_KEEPING_MATMULS, **kwargs)
        return checkpoint(call, *args, use_reentrant=False, **kwargs)

    return forward
