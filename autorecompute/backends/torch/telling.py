"""What the controller is told of a model that is about to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autorecompute import codec
from autorecompute.backends.common.batches import observe_batch
from autorecompute.backends.common.device import describe_device
from autorecompute.backends.torch.compiled.forms import has_compiled, is_compiled
from autorecompute.backends.torch.controller import MODEL
from autorecompute.backends.torch.extra import TorchDetection
from autorecompute.backends.torch.identity import digest_of, read_ranks, read_versions, sizes_of
from autorecompute.backends.torch.rough_steps import rough_steps
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.measurement import Detection
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.extra import Steps
    from autorecompute.backends.torch.tuned import Tuned

    Call = tuple[Sequence[Any], Mapping[str, Any]]


def tell(root: Module, tuned: Tuned, call: Call, name: str, survey: tuple[Steps | None, str]) -> Detection:
    """What was detected.

    Args:
        root: The model.
        tuned: What a probe found in it, and its switches.
        call: What it is called with.
        name: What it is called.
        survey: What steps take, or why nobody can tell.
    """
    found, (args, kwargs), (steps, no_steps) = tuned.found, call, survey
    batch, compiles = observe_batch([*args, *kwargs.values()]), has_compiled(root)
    space = space_of(found, tuned.board, steps)
    sizes = sizes_of(list(tensors_in((args, kwargs))), batch)
    told = TorchDetection(
        refusals=tuple(map(str, found.refusals)),
        steps=steps,
        no_steps=no_steps,
        rough_steps=rough_steps(found, tuned.board) if steps is None and not compiles else None,
        is_compiled=compiles,
        compiled_peaks=found.compiled_peaks,
        trained_bytes=sum(one.nbytes for one in root.parameters() if one.requires_grad),
        by_blocks=compiles and not is_compiled(root),
    )
    return Detection(
        plans=space.plans,
        own_presets=space.own_presets,
        covers=space.covers,
        dims={BATCH: batch, **sizes},
        graph=digest_of(root, found, sizes),
        device=describe_device(next(root.parameters()).device),
        versions={**read_versions(), **read_ranks(), MODEL: name},
        plan_versions=(MODEL, *read_ranks()),
        extra=codec.to_plain(told),
    )
