"""Which of several processes that train together this one is."""

from __future__ import annotations

import os
import sys
from typing import Any


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
