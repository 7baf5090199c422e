"""What a process has held of memory so far."""

import re
from pathlib import Path


def own_peak_bytes():
    """The most it ever held. Unlike ``ru_maxrss`` this does not begin with what its parent held when it was started."""
    return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1])
