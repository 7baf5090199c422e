"""What ``doctor --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.diagnose import Finding, blocking

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is installed.

    Attributes:
        ok: Whether this installation can train.
        findings: Every piece, in the order in which they are to be repaired.
    """

    ok: bool
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Installation:
        """What was found."""
        return cls(ok=not blocking(list(findings)), findings=tuple(findings))
