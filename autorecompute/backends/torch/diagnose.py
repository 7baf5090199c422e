"""Looks at what training on plain PyTorch needs.

``python -m autorecompute.backends.torch.diagnose`` prints the findings as JSON.
"""

from __future__ import annotations

import platform
import sys

from autorecompute.backends.findings import Finding, Status, print_findings

OLDEST = (2, 4)
INSTALL = f"Run: {sys.executable} -m pip install torch"


def findings() -> list[Finding]:
    """Every piece, in the order in which they are to be repaired."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    found = [Finding(name="python", status=Status.OK, found=python)]
    try:
        import torch
    except (ImportError, OSError) as error:
        return [*found, Finding(name="torch", status=Status.MISSING, found=f"not usable: {error}", remedy=INSTALL)]
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < OLDEST:
        needed = ".".join(map(str, OLDEST))
        text = f"{torch.__version__}, and {needed} is the oldest that is known"
        return [*found, Finding(name="torch", status=Status.MISSING, found=text, remedy=f"{INSTALL} -U")]
    return [*found, Finding(name="torch", status=Status.OK, found=torch.__version__), _operators()]


def _operators() -> Finding:
    from autorecompute.backends.torch.rules import is_known_version

    if is_known_version():
        return Finding(name="operators", status=Status.OK, found="those of this torch are known and can be made again")
    return Finding(
        name="operators",
        status=Status.WARNING,
        found="those of this torch are not known: only modules are recomputed",
        remedy="Install a newer autorecompute, or a torch that it knows.",
    )


if __name__ == "__main__":
    print_findings(findings)
