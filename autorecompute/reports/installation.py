"""The installation as ``doctor`` prints it. Imports no more than that takes: something else may be broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from autorecompute.backends.findings import Finding, Status, blocking

if TYPE_CHECKING:
    from collections.abc import Mapping

STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Installed pieces of the training systems."""

    ok: Annotated[bool, "True if a training system has all that it needs."]
    findings: Annotated[tuple[Finding, ...], "Every piece, in the order of repair."]

    @classmethod
    def of(cls, found: Mapping[str, list[Finding]]) -> Installation:
        """Return the document of findings, by the training system's name."""
        findings = (replace(each, backend=name) for name, group in found.items() for each in group)
        return cls(ok=any(not blocking(group) for group in found.values()), findings=tuple(findings))


def print_installation(found: Mapping[str, list[Finding]]) -> None:
    """Print a line for each finding of the training systems in use, and below it, where something is wrong, the repair.

    One that lacks something is in use where no other has all that it needs. Else one last line tells what it lacks.
    """
    from rich.console import Console
    from rich.text import Text

    # A command must be copied whole: the terminal may wrap it, rich may not.
    console = Console(highlight=False, soft_wrap=True)
    ready = {name: findings for name, findings in found.items() if not blocking(findings)}
    in_use = ready or found
    width = max(len(finding.name) for findings in in_use.values() for finding in findings)
    for name, findings in in_use.items():
        console.print(Text(f"backend {name}", style="bold"))
        for finding in findings:
            mark = Text(f"{finding.status:<7}", style=STYLES[finding.status])
            console.print(mark, Text(f" {finding.name:<{width}}  {finding.found}"), sep="")
            if finding.remedy:
                console.print(Text(f"{'':<8}{finding.remedy}", style="bold"))
        console.print()
    for name, findings in sorted(found.items(), key=lambda each: each[0] not in in_use):
        missing = [finding.name for finding in blocking(findings)]
        told = f"{name}: {len(missing)} missing" if missing else f"{name}: ready to train"
        if name in in_use:
            console.print(f"{told}, repair from the top." if missing else f"{told}.")
        else:
            how = f"autorecompute doctor --backend {name}"
            console.print(f"{told}, {', '.join(missing)}. If you train with it, see what to do: {how}")
