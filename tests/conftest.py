"""What all tests share."""

from __future__ import annotations

import signal


def pytest_configure():
    """Lets the processes that tests start be interrupted: a job in a shell's background inherits that they are not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
