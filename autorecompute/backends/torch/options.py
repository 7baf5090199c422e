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

DROP: Final = "drop"
"""Drop what an operator made once it is not needed for the forward pass, and make it again when it is read."""

CALL_SECONDS: Final = {CHECKPOINT: 0.8e-3, KEEP_MATMUL: 4e-3, DROP: 0.1e-3}
"""What one occurrence adds to a step beyond its kernels: Python's part in it. Medians over the recorded models
(``studies/tables``), whose steps take 0.2 s in one thread. A search corrects them by its trials."""
