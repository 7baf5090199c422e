"""Records that ``doctor --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute.backends.findings import Finding, blocking
from autorecompute.codec import INLINED, Document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFinding(Document):
    """One piece of the installation that a training system needs."""

    backend: Annotated[str, "The training system."]
    finding: Annotated[Finding, INLINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation(Document):
    """Installed pieces of the training systems."""

    ok: Annotated[bool, "Whether a training system has all that it needs."]
    findings: Annotated[
        tuple[BackendFinding, ...],
        "Every piece, for each training system in the order in which they are to be repaired.",
    ]

    @classmethod
    def of(cls, found: Mapping[str, Sequence[Finding]]) -> Installation:
        """Return the document of findings, by the training system's name."""
        findings = (BackendFinding(backend=name, finding=each) for name, group in found.items() for each in group)
        return cls(ok=is_ready(found), findings=tuple(findings))


def is_ready(found: Mapping[str, Sequence[Finding]]) -> bool:
    """Tell whether one of the training systems has all that it needs."""
    return any(not blocking(list(findings)) for findings in found.values())
