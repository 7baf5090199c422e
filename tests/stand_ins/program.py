import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

if __name__ == "__main__":
    sys.path[:1] = [str(TESTS.parent), str(TESTS)]

    from autorecompute.backends import registry
    from autorecompute.cli import main

    registry.PACKAGES["fake"] = "fake_backend"
    sys.exit(main())
