"""What the controller is told of a model that is about to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from autorecompute import codec
from autorecompute.backends.common.batches import observe_batch
from autorecompute.backends.common.device import describe_device
from autorecompute.backends.torch.compiled.forms import has_compiled, is_compiled
from autorecompute.backends.torch.controller import MODEL
from autorecompute.backends.torch.extra import TorchDetection
from autorecompute.backends.torch.identity import digest_of, read_ranks, read_versions, sizes_of
from autorecompute.backends.torch.own_checkpoints import is_replaced
from autorecompute.backends.torch.refusals import Reason, Refusal, RefusedModelError
from autorecompute.backends.torch.rough_steps import rough_steps
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.meters.host import HostMeter
from autorecompute.plans.dimensions import BATCH
from autorecompute.training_job import CHECKPOINTING, KEPT, REPLACED, Detection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.extra import Steps
    from autorecompute.backends.torch.tuned import Tuned

    Call = tuple[Sequence[Any], Mapping[str, Any]]


class Surveyed(NamedTuple):
    """What steps on fake tensors told.

    Attributes:
        steps: What steps take; ``None`` where nobody can tell.
        no_steps: Why nobody can.
        left_bytes: What the fake steps have left in this process; 0 where an allocator of its own counts tensors.
    """

    steps: Steps | None
    no_steps: str
    left_bytes: int = 0


def surveyed(root: Module, survey: Callable[[], tuple[Steps | None, str]]) -> Surveyed:
    """Survey the model, and weigh what that leaves.

    Args:
        root: The model.
        survey: What steps take, or why nobody can tell.
    """
    if next(root.parameters()).device.type != "cpu":
        return Surveyed(*survey())
    meter = HostMeter()
    meter.release()
    held_bytes = meter.held_bytes()
    told = survey()
    meter.release()
    return Surveyed(*told, max(0, meter.held_bytes() - held_bytes))


def tell(  # noqa: PLR0913  (all that is known of a model)
    root: Module, tuned: Tuned, call: Call, name: str, survey: Surveyed, *, is_thawed: bool = False
) -> Detection:
    """Return what was detected.

    Args:
        root: The model.
        tuned: What a probe found in it, and its switches.
        call: What it is called with.
        name: What it is called.
        survey: What steps on fake tensors told.
        is_thawed: Whether all this is of a model that trains what is frozen now.

    Raises:
        RefusedModelError: it lies on several devices.
    """
    if len({one.device for one in root.parameters()}) > 1:
        raise RefusedModelError(Refusal(Reason.DEVICES))
    found, (args, kwargs), steps = tuned.found, call, survey.steps
    batch, compiles = observe_batch([*args, *kwargs.values()]), has_compiled(root)
    space = space_of(found, tuned.board, steps)
    sizes = sizes_of(list(tensors_in((args, kwargs))), batch)
    told = TorchDetection(
        refusals=tuple(str(one) for one in found.refusals if one.reason is not Reason.OWN_CHECKPOINT),
        own_checkpoints=found.checkpointed,
        replaces_checkpointing=is_replaced(),
        steps=steps,
        no_steps=survey.no_steps,
        rough_steps=rough_steps(found, tuned.board) if steps is None and not compiles else None,
        is_compiled=compiles,
        compiled_peaks=found.compiled_peaks,
        trained_bytes=sum(one.nbytes for one in root.parameters() if one.requires_grad),
        by_blocks=compiles and not is_compiled(root),
        is_thawed=is_thawed,
    )
    own = _what_became_of(found.checkpointed)
    return Detection(
        plans=space.plans,
        own_presets=space.own_presets,
        covers=space.covers,
        dims={BATCH: batch, **sizes},
        graph=digest_of(root, found),
        device=describe_device(next(root.parameters()).device),
        versions={**read_versions(), **read_ranks(), MODEL: name, **own},
        plan_versions=(MODEL, *read_ranks(), *own),
        left_bytes=survey.left_bytes,
        extra=codec.to_plain(told),
    )


def _what_became_of(places: Sequence[str]) -> dict[str, str]:
    """Return what became of the script's own checkpoints, as a version; nothing where there are none."""
    if is_replaced():
        return {CHECKPOINTING: REPLACED}
    return {CHECKPOINTING: KEPT} if places else {}
