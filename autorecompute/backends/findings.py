"""Findings about an installation, piece by piece, each with its repair."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

from autorecompute import codec
from autorecompute.tested import describe

if TYPE_CHECKING:
    from collections.abc import Callable


class Status(enum.StrEnum):
    """State of a piece."""

    OK = "ok"
    WARNING = "warning"  # training works, and something is still not as it should be
    MISSING = "missing"  # training cannot work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One piece of the installation."""

    backend: Annotated[str, "The training system."] = ""
    name: Annotated[str, "The piece."]
    status: Annotated[Status, "How it was found."]
    found: Annotated[str, "What was found, in words, without a full stop."]
    remedy: Annotated[str, "What repairs it, ending in a command where there is one; empty where all is well."] = ""


def find_transformers() -> list[Finding]:
    """Return the transformers that a script may import, beside the tested ones; nothing where none is installed."""
    try:
        found = f"{metadata.version('transformers')}; {describe('transformers')}"
    except metadata.PackageNotFoundError:
        return []
    return [Finding(name="transformers", status=Status.OK, found=found)]


def print_findings(look: Callable[[], list[Finding]]) -> None:
    """Print what a look finds as JSON, and nothing else: what libraries print while they load goes to stderr."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        answer.write(codec.encode(look()))


def blocking(found: list[Finding]) -> list[Finding]:
    """Return those of the findings that keep training from working."""
    return [finding for finding in found if finding.status is Status.MISSING]
