"""A Python that has imported torch already: for tests of what a script does, not of how its process starts.

``start_server`` starts a process that imports what takes seconds, and writes an executable that stands for the
interpreter: it has the server fork, and the fork goes on as ``python`` with these arguments would. To the fork, nothing
is imported yet: an import of torch takes what the server has. Whatever a fork cannot be (other options of Python,
another size of the OpenMP pool) is started by the interpreter itself.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from warm import client

FOLDER = Path(__file__).parent


@contextlib.contextmanager
def start_server(folder, modules=()):
    """Run the server in an empty folder; forks by its executable have imported the modules, or else what trains."""
    address = folder / "warm.sock"
    python = folder / "python"
    # Isolated and without site it starts in 15 ms.
    head = f"#!{sys.executable} -IS\nADDRESS, AS_STARTED = {str(address)!r}, {client.at_start()!r}\n"
    python.write_text(head + (FOLDER / "client.py").read_text())
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if modules:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (FOLDER.parents[1], FOLDER.parent)))
    command = [sys.executable, str(FOLDER / "server.py"), str(address), str(python), *modules]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    while not address.exists():
        assert server.poll() is None
        time.sleep(0.01)
    try:
        yield python
    finally:
        server.stdin.close()  # which ends it, as the death of this process would
        server.wait()
