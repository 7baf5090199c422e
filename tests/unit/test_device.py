"""How a device is described."""

import subprocess
import sys

ON_ONE_CORE = """
import os, torch
from autorecompute.backends.common.device import describe_device

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(describe_device(torch.device("cpu")).name)
"""


def test_a_processor_has_the_cores_that_the_process_may_use():
    """Cores that the affinity mask leaves out, as that of taskset does, are not counted."""
    told = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=True).stdout
    assert told.strip().endswith(", 1 cores")
