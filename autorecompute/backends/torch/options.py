"""How a site is made again in the backward pass: the options of this training system."""

from __future__ import annotations

from typing import Final

CHECKPOINT: Final = "checkpoint"
"""Keep a call's inputs alone and run the whole call again in the backward pass."""

EVERY_2ND: Final = "every_2nd"
"""Like ``checkpoint``, but only every second occurrence, from the first on. A preset has it, and no plan."""

KEEP_MATMUL: Final = "keep_matmul"
"""Like ``checkpoint``, but the results of matrix products and convolutions are kept and not computed again."""

COMPILED: Final = "compiled"
"""Ends the name of a model that ``torch.compile`` runs."""

BUDGET: Final = "budget_"
"""Begins the options of a compiled model that give its compiler a memory budget: ``budget_0.5``."""

RECOMPUTE: Final = "recompute"
"""Have the compiler of a compiled model make a cluster of its operators again, which it would keep by itself."""

GRAPH: Final = "graph"
"""The site of what a compiler decides for the whole model."""

KEEPING: Final = "keep_"
"""Stands before a cluster that is kept and would be made again: by checkpointed blocks (``h.*:keep_attn/bmm``), under a
budget (``graph:budget_0.1_keep_h.*.attn/bmm``) or by the compiler itself (``graph:keep_h.*.attn/bmm``)."""

DROP: Final = "drop"
"""Drop what an operator made once it is not needed for the forward pass, and make it again when it is read."""

CALL_SECONDS: Final = {CHECKPOINT: 0.8e-3, KEEP_MATMUL: 4e-3, DROP: 0.1e-3}
"""What one occurrence adds to a step beyond its kernels: Python's part in it. Medians over the recorded models
(``studies/tables``), whose steps take 0.2 s in one thread. A search corrects them by its trials."""


def kept_cluster(site: str, option: str) -> str:
    """Return the cluster of operators that a choice has the compiler keep; empty where it names none."""
    _, keeps, name = option.partition(KEEPING)
    if not keeps or option == KEEP_MATMUL:
        return ""
    return name if site == GRAPH else f"{site}{'' if name.startswith('/') else '.'}{name}"


def keeping(site: str, cluster: str) -> str:
    """Return the option of blocks that are checkpointed, all but one cluster of operators in them."""
    return KEEPING + cluster.removeprefix(site).removeprefix(".")


def label_of(site: str, option: str) -> str:
    """Return what people read of a choice."""
    what, keeps, _ = option.partition(KEEPING)
    if option == KEEP_MATMUL:
        return f"{site}, matrix products kept"
    budget = what.strip("_").replace("_", " ") if site == GRAPH else site
    if not keeps:
        return budget
    return f"{budget}, {kept_cluster(site, option)} kept".removeprefix(", ")
