"""The cards that fake tensors can stand for. Imports no torch.

Speeds are those of NVIDIA's data sheets and white papers: dense matrix products, at the boost clock, with sums in
float32. Where a sheet states them with sparsity, half of that stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

from autorecompute.memory import Machine

FLOAT, TF32, BFLOAT16, HALF = "float32", "tf32", "bfloat16", "float16"

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of a card.

    Attributes:
        capability: Its compute capability (NVIDIA, "CUDA GPU Compute Capability").
        memory_gb: Its memory, in units of 10^9 bytes.
        gb_per_second: What that reads and writes.
        teraflops: 10^12 floating point operations a second, by type of numbers. A type that is not there has the speed
            of float32.
        source: The document that says so.
    """

    capability: tuple[int, int]
    memory_gb: int
    gb_per_second: float
    teraflops: dict[str, float]
    source: str

    def operations_per_second(self, kind: str) -> float:
        """Return the speed of matrix products of a type of numbers."""
        return TERA * self.teraflops.get(kind, self.teraflops[FLOAT])

    @property
    def bytes_per_second(self) -> float:
        """Return what its memory reads and writes."""
        return GIGA * self.gb_per_second


def _speeds(single: float, tensor: float, half: float) -> dict[str, float]:
    """Return the speeds of a card whose tensor cores take TF32 and both types of 16 bits."""
    return {FLOAT: single, TF32: tensor, BFLOAT16: half, HALF: half}


CARDS = {
    "V100": Card((7, 0), 32, 900, {FLOAT: 15.7, HALF: 125}, "NVIDIA V100 data sheet, SXM2 32 GB"),
    "T4": Card((7, 5), 16, 320, {FLOAT: 8.1, HALF: 65}, "NVIDIA T4 data sheet"),
    "A100": Card((8, 0), 80, 2039, _speeds(19.5, 156, 312), "NVIDIA A100 data sheet, SXM 80 GB"),
    "A10": Card((8, 6), 24, 600, _speeds(31.2, 62.5, 125), "NVIDIA A10 data sheet"),
    "RTX 3090": Card((8, 6), 24, 936, _speeds(35.6, 35.6, 71), "NVIDIA Ampere GA102 white paper"),
    "L4": Card((8, 9), 24, 300, _speeds(30.3, 60, 121), "NVIDIA L4 data sheet"),
    "L40S": Card((8, 9), 48, 864, _speeds(91.6, 183, 362), "NVIDIA L40S data sheet"),
    "RTX 4090": Card((8, 9), 24, 1008, _speeds(82.6, 82.6, 165.2), "NVIDIA Ada GPU architecture white paper"),
    "H100": Card((9, 0), 80, 3350, _speeds(67, 494.5, 989.5), "NVIDIA H100 data sheet, SXM"),
    "H200": Card((9, 0), 141, 4800, _speeds(67, 494.5, 989.5), "NVIDIA H200 data sheet, SXM"),
    "B200": Card((10, 0), 180, 7700, _speeds(75, 1100, 2250), "NVIDIA Blackwell data sheet, HGX B200"),
    "RTX 5090": Card((12, 0), 32, 1792, _speeds(104.8, 104.8, 209.5), "NVIDIA RTX Blackwell white paper"),
}
"""By the name that ``--card`` takes."""


def machine_of(name: str) -> Machine:
    """Return the card of this name as a machine; its memory in full, of which a CUDA context takes a part."""
    card = CARDS[name]
    return Machine(
        name=name,
        source=card.source,
        is_measured=False,
        operations_per_second={kind: TERA * speed for kind, speed in card.teraflops.items()},
        bytes_per_second=card.bytes_per_second,
        memory_bytes=round(card.memory_gb * GIGA),
    )
