"""Versions that autorecompute was tested with: what ``doctor`` and the README say."""

from __future__ import annotations

VERSIONS = {
    "Python": ("3.11", "3.12", "3.13", "3.14"),
    "torch": ("2.6.0", "2.8.0", "2.10.0", "2.13.0", "2.14.1", "2.15.0"),
    "transformers": ("4.48.3", "5.24.0"),
    "onnxruntime-training": ("1.17.3", "1.18.0", "1.19.2"),
}
"""Under each package's name, the oldest first."""


def describe(package: str) -> str:
    """Return the versions of a package in words, to follow the one that is installed."""
    return f"tested with {', '.join(VERSIONS[package])}"
