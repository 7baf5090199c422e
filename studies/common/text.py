"""Text to train on that every machine has: the source files of Python's own standard library, byte by byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset

BYTES = 256
CLS, SEP, MASK = BYTES, BYTES + 1, BYTES + 2
MASKED_VOCABULARY = BYTES + 3
MASKED_SHARE = 0.15
IGNORED_LABEL = -100


class ByteWindows(Dataset):
    """Windows of source bytes, each to be continued: ``input_ids`` and ``labels`` of shape ``[sequence]``, equal.

    Causal language models of Hugging Face shift the labels themselves.
    """

    def __init__(self, sequence: int, count: int, seed: int) -> None:
        self.bytes = torch.frombuffer(bytearray(read_standard_library()), dtype=torch.uint8)
        self.sequence, self.count, self.seed = sequence, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        body = self.draw(self.sequence, self.chance(index))
        return {"input_ids": body, "labels": body.clone()}

    def chance(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * self.count + index)

    def draw(self, length: int, chance: torch.Generator) -> torch.Tensor:
        start = int(torch.randint(len(self.bytes) - length, (), generator=chance))
        return self.bytes[start : start + length].long()


class HalvedByteWindows(ByteWindows):
    """Windows of twice the length in two halves: ``labels`` come after ``input_ids``, both of shape ``[sequence]``."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        body = self.draw(2 * self.sequence, self.chance(index))
        return {"input_ids": body[: self.sequence], "labels": body[self.sequence :]}


class MaskedByteWindows(ByteWindows):
    """Windows with 15 % of their bytes masked, to be guessed, and ``attention_mask`` beside ``input_ids``."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        chance = self.chance(index)
        body = self.draw(self.sequence - 2, chance)
        masked = torch.rand(len(body), generator=chance) < MASKED_SHARE
        inputs = body.masked_fill(masked, MASK)
        labels = body.masked_fill(~masked, IGNORED_LABEL)
        edge = torch.tensor([IGNORED_LABEL])
        return {
            "input_ids": torch.cat([torch.tensor([CLS]), inputs, torch.tensor([SEP])]),
            "attention_mask": torch.ones(self.sequence, dtype=torch.long),
            "labels": torch.cat([edge, labels, edge]),
        }


def read_standard_library() -> bytes:
    """Return the top-level modules of the standard library, joined in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
