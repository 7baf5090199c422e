"""What makes two tunings the same: the problem's identity."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from autorecompute import codec
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from autorecompute.measurement import Detection

DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """All that a study's figures depend on. Equal problems have equal answers.

    Attributes:
        graph: Digest of the training graph.
        plans: Keys of the plans that can be switched on.
        batch: Samples a forward.
        limit_bytes: What the peak may reach.
        device: Kind and name of the device.
        device_bytes: Its memory.
        torch: Version of torch.
        onnxruntime: Version of ONNX Runtime, which plan names depend on.
        wrap: Whether the tool wraps the model: it then trains in ORTModule and is evaluated in PyTorch.
    """

    graph: str
    plans: tuple[str, ...]
    batch: int
    limit_bytes: int
    device: str
    device_bytes: int
    torch: str
    onnxruntime: str
    wrap: bool = False

    @classmethod
    def of(cls, detection: Detection, limit_bytes: int, *, wrap: bool = False) -> Self:
        """The problem that was detected, under this limit, in a script that is wrapped or not."""
        return cls(
            graph=detection.graph,
            plans=tuple(sorted(plan.key for plan in detection.plans)),
            batch=detection.batch,
            limit_bytes=limit_bytes,
            device=f"{detection.device.kind} {detection.device.name}",
            device_bytes=detection.device.total_bytes,
            torch=detection.versions["torch"],
            onnxruntime=detection.versions["onnxruntime"],
            wrap=wrap,
        )

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits, equal for equal problems."""
        canonical = json.dumps(codec.to_plain(self), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]

    def differences(self, other: Problem) -> list[str]:
        """The parts in which the other problem differs, in words: ``batch 32, not 16``."""
        return [
            f"{field.name.removesuffix('_bytes')} {_show(field.name, mine)}, not {_show(field.name, theirs)}"
            for field in dataclasses.fields(self)
            if (mine := getattr(self, field.name)) != (theirs := getattr(other, field.name))
        ]


def _show(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} plans"
    if name.endswith("_bytes"):
        assert isinstance(value, int), "bytes are counted"
        return f"{format_bytes(value)} ({value} bytes)"
    return str(value)[:DIGEST_LENGTH] if name == "graph" else str(value)
