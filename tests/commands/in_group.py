"""Becomes a command in a control group, as containers and clusters start one: ``in_group.py GROUP COMMAND``."""

import os
import sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  (the test's own command)
