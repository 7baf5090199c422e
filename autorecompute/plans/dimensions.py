"""The names that the dimensions of a model's inputs have in every study."""

from __future__ import annotations

BATCH, SEQUENCE = "batch", "sequence"
