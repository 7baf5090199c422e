"""Notices gradient checkpointing of the model's own, which ORTModule leaves out of what it exports.

The other form, ``use_reentrant=True``, cannot be exported: ``failures`` explains that.
"""

from __future__ import annotations

import functools
from typing import Any

INEFFECTIVE = (
    "the model uses torch.utils.checkpoint, which does nothing in ORTModule: switch gradient checkpointing off, "
    "recompute plans take its place"
)


class Checkpointing:
    """Follows ``torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`` in models that are exported.

    Attributes:
        warnings: What was seen, a sentence.
    """

    def __init__(self) -> None:
        self.warnings: tuple[str, ...] = ()

    def install(self) -> None:
        """Follow every call from now on, by whatever name it is called."""
        import torch
        from torch.utils import checkpoint as module

        # Scripts import the function by its name: only what it calls can be followed.
        generate = module._checkpoint_without_reentrant_generator  # noqa: SLF001

        @functools.wraps(generate)
        def note_and_generate(*args: Any, **kwargs: Any) -> Any:
            if torch.jit.is_tracing():
                self.warnings = (INEFFECTIVE,)
            return generate(*args, **kwargs)

        module._checkpoint_without_reentrant_generator = note_and_generate  # noqa: SLF001
