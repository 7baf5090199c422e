"""Takes the picture of the documentation: optuna-dashboard with the study of BERT that is shipped.

python tests/dashboard.py docs/dashboard.png
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

from workers.server import free_port

ROOT = Path(__file__).parents[1]
PROGRAM = "from optuna_dashboard._cli import main; main()"  # its command may not be on the path
PATIENCE_SECONDS = 120
DRAWN = "#plot-history.js-plotly-plot"
"""The chart of all trials, once it is drawn."""


@contextlib.contextmanager
def dashboard(storage):
    """Shows a storage, and gives the address of its one study."""
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
    """What the dashboard's own pages are told of a study."""
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


def _take_picture(file):
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        archive = ROOT / "studies" / "shipped" / "bert_mlm.jsonl.gz"
        importing = [sys.executable, "-m", "autorecompute", "studies", "import", archive]
        subprocess.run(importing, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
        with dashboard(f"sqlite:///{folder}/studies/bert_mlm/study.db") as address:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1300, "height": 650})
            page.goto(address)
            page.locator(DRAWN).wait_for()
            page.get_by_role("slider").fill("14")  # dots that can be seen in print
            page.wait_for_load_state("networkidle")
            page.screenshot(path=file)
            browser.close()


if __name__ == "__main__":
    _take_picture(sys.argv[1])
