"""Which of several processes that train together this one is."""

from __future__ import annotations

import os
import sys
from typing import Any

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets for each rank: see its page in PyTorch's documentation, "Environment Variables"."""


def is_first() -> bool:
    """Whether this process speaks for its training: it is the first rank, or the only one."""
    group = _process_group()
    return bool(group.get_rank() == 0) if group is not None else os.environ.get("RANK", "0") == "0"


def is_alone() -> bool:
    """Whether no other process trains with this one, as far as its launcher or its process group says."""
    group = _process_group()
    if group is not None:
        return bool(group.get_world_size() == 1)
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _process_group() -> Any:
    """``torch.distributed``, once the script has made a group of processes; ``None`` before."""
    distributed = sys.modules.get("torch.distributed")
    is_made = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_made else None


def explain_missing_rank(error: BaseException) -> str:
    """Why a script fails that looks for its rank where no launcher has set one; empty for other errors.

    Args:
        error: What ended the script.
    """
    name = next((name for name in LAUNCHER_VARIABLES if name in str(error)), None)
    if "RANK" in os.environ or name is None:
        return ""
    return (
        f"The script is one of several ranks: it looks for {name} in the environment, which a launcher sets. Name what "
        'starts it, as in --launcher "torchrun --nproc-per-node 2".'
    )
