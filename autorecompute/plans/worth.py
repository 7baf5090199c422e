"""Whether a model has anything worth recomputing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.plans.savings import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autorecompute.plans.plan import Plan

NEGLIGIBLE_BYTES = 2**20
"""A training process takes hundreds of MiB: plans that save less than one together make no batch fit."""


def explain_worthless(plans: Iterable[Plan], dims: Mapping[str, int]) -> str:
    """Two sentences where all plans together save next to nothing; empty where they may save more.

    Args:
        plans: All that can be recomputed.
        dims: The dimensions at which their savings are evaluated; a saving that depends on others may be large.
    """
    savings = [evaluate(plan.saving, dims) for plan in plans]
    known = [saving for saving in savings if saving is not None]
    if len(known) < len(savings) or sum(known) >= NEGLIGIBLE_BYTES:
        return ""
    offer = f"all plans together save {sum(known):,} bytes" if known else "the model offers no plan"
    return f"Nothing is worth recomputing at this batch: {offer}. A smaller batch saves memory here."
