"""Finds, by measurement, which activations a training job should recompute so that its batch fits in memory."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
