"""``autorecompute`` as a command that knows the fake backend, on the trainings' clock where there is one.

``FAKE_GRACE`` has the seconds after which a worker of a shared study that says nothing counts as dead.
"""

import os
import queue  # noqa: F401  (what waits for threads and processes keeps the real clock)
import subprocess  # noqa: F401
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]

if __name__ == "__main__":
    sys.path[:1] = [str(TESTS.parent), str(TESTS)]

    from autorecompute.backends import registry
    from autorecompute.cli import main
    from fake_backend.clock import clock_in_use

    registry.PACKAGES["fake"] = "fake_backend"
    if (clock := clock_in_use()) is not None:
        time.monotonic = clock.monotonic
    if (grace := os.environ.get("FAKE_GRACE")) is not None:
        from autorecompute.studies import shared_study

        shared_study.HEARTBEAT_SECONDS, shared_study.GRACE_SECONDS = 1, int(grace)
    sys.exit(main())
