"""Looks at what training on plain PyTorch needs.

``python -m autorecompute.backends.torch.diagnose`` prints the findings as JSON.
"""

from __future__ import annotations

import platform
import sys

from autorecompute.backends.findings import Finding, Status, print_findings
from autorecompute.backends.torch import OLDEST, is_too_old

INSTALL = f"Run: {sys.executable} -m pip install torch"


def findings() -> list[Finding]:
    """Return every piece, in the order in which they are to be repaired."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    found = [Finding(name="python", status=Status.OK, found=python)]
    try:
        import torch
    except (ImportError, OSError) as error:
        return [*found, Finding(name="torch", status=Status.MISSING, found=f"not usable: {error}", remedy=INSTALL)]
    if is_too_old(torch.__version__):
        text = f"{torch.__version__}, and {OLDEST} is the oldest that is known"
        return [*found, Finding(name="torch", status=Status.MISSING, found=text, remedy=f"{INSTALL} -U")]
    return [*found, Finding(name="torch", status=Status.OK, found=torch.__version__)]


if __name__ == "__main__":
    print_findings(findings)
