"""Which of several processes that train together this one is."""

from __future__ import annotations

import os
import re
import sys
from traceback import walk_tb
from typing import Any

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets for each rank: see its page in PyTorch's documentation, "Environment Variables"."""

_MISSED_BY_TORCH = re.compile(r"environment variable (\w+) expected, but not set")


def is_first() -> bool:
    """Tell whether this process speaks for its training: it is the first rank, or the only one."""
    group = _process_group()
    return bool(group.get_rank() == 0) if group is not None else os.environ.get("RANK", "0") == "0"


def is_alone() -> bool:
    """Tell whether no other process trains with this one, as far as its launcher or its process group says."""
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
    """Return why a script fails that looks for its rank where no launcher has set one; empty for other errors.

    Args:
        error: What ended the script.
    """
    name = _missed_variable(error)
    if "RANK" in os.environ or name not in LAUNCHER_VARIABLES:
        return ""
    return (
        f"The script is one of several ranks: it looks for {name} in the environment, which a launcher sets. Name what "
        'starts it, as in --launcher "torchrun --nproc-per-node 2".'
    )


def _missed_variable(error: BaseException) -> str:
    """Return the environment variable for want of which the error was raised; empty if it is about something else."""
    if isinstance(error, KeyError):
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        is_of_environment = bool(frames) and frames[-1].f_globals is vars(os)
        return str(error.args[0]) if is_of_environment else ""
    missed = _MISSED_BY_TORCH.search(str(error)) if isinstance(error, ValueError) else None
    return missed[1] if missed is not None else ""
