"""What a worker tells the controller about a model that trains: its plans, its steps, and what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.backends.common.device import describe_device
from autorecompute.backends.torch.compiled.forms import is_compiled
from autorecompute.backends.torch.controller import MODEL
from autorecompute.backends.torch.extra import TorchDetection
from autorecompute.backends.torch.identity import digest_of, read_versions
from autorecompute.backends.torch.space import space_of
from autorecompute.measurement import Detection
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.nn import Module

    from autorecompute.backends.torch.extra import Steps
    from autorecompute.backends.torch.tuned import Tuned


def tell(  # noqa: PLR0913  (what the parts of a detection have found)
    root: Module,
    tuned: Tuned,
    steps: Steps | None,
    no_steps: str,
    dims: Mapping[str, int],
    *,
    name: str,
    compiles: bool,
) -> Detection:
    """A detection as the controller takes it.

    Args:
        root: The model.
        tuned: What was found in it, and its switches.
        steps: What steps take; ``None`` where nobody can tell.
        no_steps: Why nobody can, in a sentence.
        dims: The batch, and the sizes of what the model is called with.
        name: Which model it is, in a word.
        compiles: Whether ``torch.compile`` runs it, or blocks of it.
    """
    space = space_of(tuned.found, tuned.board, steps)
    told = TorchDetection(
        refusals=tuple(map(str, tuned.found.refusals)),
        steps=steps,
        no_steps=no_steps,
        is_compiled=compiles,
        compiled_peaks=tuned.found.compiled_peaks,
        trained_bytes=sum(one.nbytes for one in root.parameters() if one.requires_grad),
        by_blocks=compiles and not is_compiled(root),
    )
    sizes = {name: size for name, size in dims.items() if name != BATCH}
    return Detection(
        plans=space.plans,
        own_presets=space.own_presets,
        covers=space.covers,
        dims=dict(dims),
        graph=digest_of(root, tuned.found, sizes),
        device=describe_device(next(root.parameters()).device),
        versions={**read_versions(), MODEL: name},
        plan_versions=(MODEL,),
        extra=codec.to_plain(told),
    )
