import contextlib
import json
import subprocess
import sys
import time
import urllib.request

from workers.server import free_port

PROGRAM = "from optuna_dashboard._cli import main; main()"  # its command may not be on the path
PATIENCE_SECONDS = 600
DRAWN = "#plot-history.js-plotly-plot"
"""The chart of all trials, once it is drawn."""


@contextlib.contextmanager
def dashboard(storage):
    port = free_port()
    command = [sys.executable, "-c", PROGRAM, storage, "--port", str(port), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/dashboard/", process)
        (study,) = _read(f"{address}/api/studies")["study_summaries"]
        yield f"{address}/dashboard/studies/{study['study_id']}"
    finally:
        process.terminate()
        process.wait()


def detail_of(address):
    return _read(address.replace("dashboard/", "api/") + "?after=0")


def _read(address):
    with urllib.request.urlopen(address) as answer:  # noqa: S310  (our own process)
        return json.load(answer)


def _wait_for(address, process):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(address):  # noqa: S310  (our own process)
            return
        time.sleep(0.1)
    raise RuntimeError(f"optuna-dashboard does not answer at {address}")
