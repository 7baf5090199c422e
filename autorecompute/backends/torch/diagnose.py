"""Looks at what training on plain PyTorch needs.

``python -m autorecompute.backends.torch.diagnose`` prints the findings as JSON.
"""

from __future__ import annotations

import platform
import sys

from autorecompute.backends.findings import Finding, Status, find_transformers, print_findings
from autorecompute.backends.torch import OLDEST, is_too_old
from autorecompute.tested import describe

INSTALL = f"Run: {sys.executable} -m pip install torch"


def findings() -> list[Finding]:
    """Return every piece, in the order in which they are to be repaired."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    found = [Finding(name="python", status=Status.OK, found=f"{python}; {describe('Python')}")]
    try:
        import torch
    except (ImportError, OSError) as error:
        return [*found, Finding(name="torch", status=Status.MISSING, found=f"not usable: {error}", remedy=INSTALL)]
    if is_too_old(torch.__version__):
        text = f"{torch.__version__}, and {OLDEST} is the oldest that is known"
        return [*found, Finding(name="torch", status=Status.MISSING, found=text, remedy=f"{INSTALL} -U")]
    text = f"{torch.__version__}; {describe('torch')}"
    return [*found, Finding(name="torch", status=Status.OK, found=text), *find_transformers()]


if __name__ == "__main__":
    print_findings(findings)
