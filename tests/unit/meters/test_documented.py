"""What ``docs/gpu.md`` shows to those who write tests without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).parents[3]
GUIDE = CLONE / "docs" / "gpu.md"


def test_the_example_prints_what_its_comment_says():
    """Run as it stands there, in a fresh interpreter that has no torch loaded."""
    example = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    environment = {**os.environ, "PYTHONPATH": str(CLONE / "tests")}
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stdout.strip() == example.rpartition("# ")[2].strip()
