"""What is made again in the backward pass: one choice for each site."""

from __future__ import annotations

import dataclasses
from typing import Final

CHECKPOINT: Final = "checkpoint"
"""Keep a call's inputs alone and run the whole call again in the backward pass."""

KEEP_MATMUL: Final = "keep_matmul"
"""Like ``checkpoint``, but the results of matrix products and convolutions are kept and not computed again."""

DROP: Final = "drop"
"""Drop what an operator made once it is not needed for the forward pass, and make it again when it is read."""


@dataclasses.dataclass(frozen=True, order=True)
class Choice:
    """A site and what is done there.

    Attributes:
        site: A module group (``h.*.mlp``) or an operator called in one (``h.*.mlp/gelu``).
        option: One of ``checkpoint``, ``keep_matmul`` and ``drop``.
        count: Only the first so many occurrences, in the order of the model; None for all.
    """

    site: str
    option: str
    count: int | None = None
