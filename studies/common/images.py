"""Pictures to train on, drawn as they are asked for: one turned and shaded figure each, in noise.

Captions tell what is on them, byte by byte.
"""

from __future__ import annotations

import math

import torch
from torch.utils.data import Dataset

NOISE = 0.15
END = 256
CAPTION_VOCABULARY = END + 1


def _disc(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.hypot(y) < 1


def _ring(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.hypot(y) - 0.75).abs() < 0.25  # noqa: PLR2004


def _square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x.abs(), y.abs()) < 0.85  # noqa: PLR2004


def _cross(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.minimum(x.abs(), y.abs()) < 0.25) & (torch.maximum(x.abs(), y.abs()) < 1)  # noqa: PLR2004


def _triangle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y > -0.5) & (y + math.sqrt(3) * x.abs() < 1)  # noqa: PLR2004


def _bars(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _square(x, y) & ((4 * x).sin() > 0)


def _checks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _square(x, y) & ((4 * x).sin() * (4 * y).sin() > 0)


def _crescent(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _disc(x, y) & ((x - 0.5).hypot(y) > 0.8)  # noqa: PLR2004


FIGURES = (_disc, _ring, _square, _cross, _triangle, _bars, _checks, _crescent)
"""Each says which points lie in a figure that fills about the square from -1 to 1; its place is its class."""


class Figures(Dataset):
    """Pictures of one figure each: ``pixel_values`` of shape ``[3, size, size]``, and its class in ``labels``."""

    def __init__(self, size: int, count: int, seed: int) -> None:
        self.size, self.count, self.seed = size, count, seed
        line = torch.linspace(-1, 1, size)
        self.rows, self.columns = torch.meshgrid(line, line, indexing="ij")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        chance = self.chance(index)
        label, turn, scale, left, top = self.draw(chance)
        x, y = self._place(2 * math.pi * turn, 0.4 + 0.3 * scale, left - 0.5, top - 0.5)
        ink, paper = torch.rand(2, 3, 1, 1, generator=chance)
        picture = torch.where(FIGURES[label](x, y), ink, paper - 1)
        noise = NOISE * torch.randn(picture.shape, generator=chance)
        return {"pixel_values": picture + noise, "labels": torch.tensor(label)}

    def chance(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * self.count + index)

    def draw(self, chance: torch.Generator) -> tuple[int, float, float, float, float]:
        """Return the class of a picture's figure; then its turn, its size and its place, each from 0 to 1."""
        label = int(torch.randint(len(FIGURES), (), generator=chance))
        turn, scale, left, top = torch.rand(4, generator=chance).tolist()
        return label, turn, scale, left, top

    def _place(self, angle: float, scale: float, left: float, top: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the picture's points, as they lie around a figure that was turned, scaled and moved."""
        x, y = (self.columns - left) / scale, (self.rows - top) / scale
        return math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y


class CaptionedFigures(Figures):
    """Pictures in ``pixel_values``, and the bytes of their captions in ``input_ids`` of shape ``[sequence]``.

    A caption is cut where it is too long, and what is left behind it is filled with ``END``, one at least.
    """

    def __init__(self, size: int, sequence: int, count: int, seed: int) -> None:
        super().__init__(size, count, seed)
        self.sequence = sequence

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.describe(index).encode()[: self.sequence - 1]
        caption = torch.full((self.sequence,), END)
        caption[: len(words)] = torch.tensor(list(words))
        return {"input_ids": caption, "pixel_values": super().__getitem__(index)["pixel_values"]}

    def describe(self, index: int) -> str:
        label, turn, scale, left, top = self.draw(self.chance(index))
        figure = FIGURES[label].__name__.strip("_")
        return f"{figure} at {left:.1f} {top:.1f}, size {scale:.1f}, turned by {360 * turn:.0f}"
