"""Records of a training job: its device, its sizes, and the plans that were detected."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from autorecompute.plans import Cluster, Config, Plan, Space
from autorecompute.ranges import Bytes, Count, require_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH_VARIABLE = "AUTORECOMPUTE_BATCH_SIZE"
"""Holds the batch that a script is to train with."""

ACCUMULATION_VARIABLE = "AUTORECOMPUTE_ACCUMULATION"
"""Holds over how many passes a script is to accumulate gradients, where an effective batch was asked for."""

PEAK_VARIABLE = "AUTORECOMPUTE_PEAK_BYTES"
"""Holds the peak that the config of a study had, for a training that ``run`` starts with it."""

LIMIT_VARIABLE = "AUTORECOMPUTE_LIMIT_BYTES"
"""Holds the limit of that study."""

CHECKPOINTING = "checkpointing"
"""Under this name a detection's versions say what became of the checkpoints that the script makes itself, if any."""

KEPT, REPLACED = "the script's own", "replaced"
"""They are part of all that is measured; or they were switched off, and what was measured takes their place."""

LONGEST = "longest"
"""Under this name they say how many tokens each sample had, where batches were given a length."""

ALLOCATOR = "allocator"  # name of the setting that tuning gave torch's allocator, among the versions of a detection

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The second is the name before torch 2.9, which later ones warn of where the first is not set."""

EXPANDABLE_SEGMENTS = "expandable_segments:True"
"""Segments that grow lose little to fragments: without it, the fastest configs within a limit run out of memory."""

GROWING = dict.fromkeys(ALLOCATOR_VARIABLES, EXPANDABLE_SEGMENTS)

THRESHOLD_VARIABLE = "MALLOC_MMAP_THRESHOLD_"
GIVES_BACK = "gives memory back"
GIVING_BACK = {THRESHOLD_VARIABLE: str(2**20)}
"""Has glibc give back what tensors leave. Else it keeps blocks as large as the largest that was freed: mallopt(3)."""

SETTINGS = {EXPANDABLE_SEGMENTS: GROWING, GIVES_BACK: GIVING_BACK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device that the model trains on."""

    kind: Annotated[str, "``cpu`` or ``cuda``."]
    name: Annotated[str, "The processor's or card's name."]
    uuid: Annotated[str, "The card's UUID; empty for a CPU."] = ""
    total_bytes: Annotated[Bytes, "Its memory."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Findings of the worker at session creation, before any step ran at the target batch."""

    plans: Annotated[tuple[Plan, ...], "The plans; where two exclude each other, the earlier one is preferred."]
    own_presets: Annotated[dict[str, Config], "Presets beside ``none`` and ``all_on``."] = field(default_factory=dict)
    covers: Annotated[dict[str, tuple[str, ...]], "The sites that a site makes again."] = field(default_factory=dict)
    clusters: Annotated[tuple[Cluster, ...], "Which activations the plans are about, in places that are alike."] = ()
    dims: Annotated[dict[str, Count], "Dimensions of the inputs at the first batch, under the same names in every run."]
    aliases: Annotated[dict[str, tuple[str, ...]], "The training system's names of them."] = field(default_factory=dict)
    graph: Annotated[str, "Digest of the training graph's structure: operators, shapes, types and wiring, no names."]
    device: Annotated[Device, "Where it trains."]
    versions: Annotated[dict[str, str], "Versions of ``python``, ``torch`` and other parts; ``backend`` is a name."]
    plan_versions: Annotated[tuple[str, ...], "Names among the versions that decide what a plan means."] = ()
    batch: Annotated[Count, "Samples a forward is to receive: the target batch, or else the script's first one."] = 0
    resting_bytes: Annotated[Bytes, "Memory held before the first activation existed."] = 0
    left_bytes: Annotated[Bytes, "Bytes that detection left; neither ``resting_bytes`` nor any peak has them."] = 0
    outside_bytes: Annotated[Bytes | None, "CUDA only: memory in use outside of this allocator then."] = None
    unsplittable: Annotated[
        str, "Why two halves of a batch give another result, in words; empty where they do not."
    ] = ""
    loader: Annotated[str, "Digest of the lines that made the DataLoader of the batch; empty where none was told."] = ""
    extra: Annotated[dict[str, Any], "Notes of the training system's code, as JSON."] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_versions(self.versions, "backend", "torch", *self.plan_versions)

    @property
    def space(self) -> Space:
        """Return the configs that exist for this model."""
        return Space(plans=self.plans, own_presets=self.own_presets, covers=self.covers)


def default_allocator(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables of allocators under which a process holds little beyond its tensors.

    A card's grows its segments, a CPU's gives memory back. What the user has told either stays.
    """
    card = {} if any(name in inherited for name in ALLOCATOR_VARIABLES) else GROWING
    return {**card, **({} if THRESHOLD_VARIABLE in inherited else GIVING_BACK)}


def read_allocator(device: Device) -> dict[str, str]:
    """Return the setting of the device's allocator in this process as a version; nothing where it is the user's own."""
    setting = EXPANDABLE_SEGMENTS if device.kind == "cuda" else GIVES_BACK
    return {ALLOCATOR: setting} if SETTINGS[setting].items() <= os.environ.items() else {}


def allocator_of_plans(device: Device, allocator: Mapping[str, str]) -> Mapping[str, str]:
    """Return the setting where plans depend on it: a card's peak is what its allocator reserved."""
    return allocator if device.kind == "cuda" else {}


def allocator_of(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the variables under which the allocator does what it did when these versions were measured."""
    return dict(SETTINGS.get(versions.get(ALLOCATOR, ""), {}))
