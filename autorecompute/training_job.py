"""Records of a training job: its device, its sizes, and the plans that were detected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autorecompute.plans import Cluster, Config, Plan, Space
from autorecompute.ranges import Bytes, Count, require_versions

CHECKPOINTING = "checkpointing"
"""Under this name a detection's versions say what became of the checkpoints that the script makes itself, if any."""

KEPT, REPLACED = "the script's own", "replaced"
"""They are part of all that is measured; or they were switched off, and what was measured takes their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device that the model trains on.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        name: The processor's or card's name.
        uuid: The card's UUID; empty for a CPU.
        total_bytes: Its memory.
    """

    kind: str
    name: str
    uuid: str = ""
    total_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Findings of the worker at session creation, before any step ran at the target batch.

    Attributes:
        plans: What can be recomputed; where two exclude each other, the earlier one is preferred.
        own_presets: The training system's presets beside ``none`` and ``all_on``, by name.
        covers: The sites that a site makes again along with itself.
        clusters: Which activations the plans are about, in places that are alike.
        dims: Symbolic dimensions of the model's inputs at the first batch, under names that are the same in every run.
        aliases: The names that the training system has for each of them.
        graph: Digest of the training graph's structure: operators, shapes, types and wiring, no names.
        device: Where it trains.
        versions: ``python``, ``torch``, ``backend`` (the training system's name), and what else the system is made of.
        plan_versions: Names among the versions that decide what a plan means.
        batch: Samples a forward is to receive: the target batch, or what the script gave first where there is none.
        resting_bytes: Memory held before the first activation existed.
        left_bytes: What finding this out left in the process; neither ``resting_bytes`` nor a trial's peak has it.
        outside_bytes: CUDA only: memory in use outside of this process's allocator then; ``None`` if unknown.
        loader: Digest of the lines that made the DataLoader which was told the batch; empty where none was.
        extra: What the training system's own code wants to know of it later, as JSON.
    """

    plans: tuple[Plan, ...]
    own_presets: dict[str, Config] = field(default_factory=dict)
    covers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    clusters: tuple[Cluster, ...] = ()
    dims: dict[str, Count]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    graph: str
    device: Device
    versions: dict[str, str]
    plan_versions: tuple[str, ...] = ()
    batch: Count = 0
    resting_bytes: Bytes = 0
    left_bytes: Bytes = 0
    outside_bytes: Bytes | None = None
    loader: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_versions(self.versions, "backend", "torch", *self.plan_versions)

    @property
    def space(self) -> Space:
        """Return the configs that exist for this model."""
        return Space(plans=self.plans, own_presets=self.own_presets, covers=self.covers)
