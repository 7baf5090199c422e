"""One rank of many, with no other beside it: a process group whose collectives move nothing.

The script asks for its process group as it always does, and gets PyTorch's ``fake`` one: as rank 0 of as many as were
asked for.
"""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from autorecompute.errors import ScriptError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MODULES = (dist, distributed_c10d, device_mesh)
"""Where torch calls these functions by a name of its own."""

NO_RANKS = "The script makes a process group, as one of several ranks. Add --ranks N to run it as the first of N."


def pretend(ranks: int) -> None:
    """Make this process rank 0 of so many from now on: in its environment, and in the group that the script makes.

    Args:
        ranks: How many there are; with 0 a script that needs others to make its group is told how to have them.
    """
    make, make_inner, make_mesh = dist.init_process_group, dist.new_group, device_mesh.init_device_mesh
    if not ranks:
        _replace(make, functools.partial(_make_alone, make))
        return
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(ranks)}
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(ranks))  # a launcher's own figure, where the shell has it
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    _replace(make, functools.partial(_make_group, make, ranks))
    _replace(make_inner, functools.partial(_make_inner_group, make_inner))
    _replace(make_mesh, functools.partial(_make_mesh, make_mesh, ranks))


def _replace(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    functools.update_wrapper(other, function)
    for module in MODULES:
        if getattr(module, function.__name__, None) is function:
            setattr(module, function.__name__, other)


def _make_group(make: Callable[..., Any], ranks: int, *args: Any, **kwargs: Any) -> None:
    """Stand in for ``init_process_group``."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # its import makes the backend known

    rank, world_size = _asked(args, kwargs)
    if world_size not in {-1, ranks} or rank not in {-1, 0}:
        raise ScriptError(
            f"The script asks for rank {max(rank, 0)} of {world_size}, and --ranks says {ranks}. Let it take both from "
            f"RANK and WORLD_SIZE, or say --ranks {world_size}."
        )
    make("fake", store=FakeStore(), rank=0, world_size=ranks)


def _make_alone(make: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Stand in for it where no ranks were asked for."""
    if "WORLD_SIZE" not in os.environ and _asked(args, kwargs)[1] != 1:
        raise ScriptError(NO_RANKS)
    make(*args, **kwargs)


def _asked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rank and the number of ranks that ``init_process_group`` is given.

    -1 for what the environment tells.
    """
    names = ("backend", "init_method", "timeout", "world_size", "rank")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("rank", -1), given.get("world_size", -1)


def _make_mesh(
    make: Callable[..., Any], ranks: int, device_type: str, mesh_shape: tuple[int, ...], *args: Any, **kwargs: Any
) -> Any:
    """Stand in for ``init_device_mesh``."""
    size = math.prod(mesh_shape)
    if size != ranks:
        shape = " x ".join(map(str, mesh_shape))
        raise ScriptError(
            f"The script makes a mesh of {size} ranks ({shape}), and --ranks says {ranks}. Say --ranks {size}, or have "
            "the script make its mesh of as many ranks as there are."
        )
    return make(device_type, mesh_shape, *args, **kwargs)


def _make_inner_group(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``new_group``: inside of a fake group all are."""
    return make(*args, **{**kwargs, "backend": None})
