"""``autorecompute`` as a program that knows the fake backend, too."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from autorecompute.backends import registry  # noqa: E402
from autorecompute.cli import main  # noqa: E402

if __name__ == "__main__":
    registry.PACKAGES["fake"] = "fake_backend"
    sys.exit(main())
