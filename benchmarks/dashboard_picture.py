"""Takes the picture of the documentation: optuna-dashboard with the study of BERT that is shipped.

``make dashboard-picture`` writes it to ``docs/dashboard.png``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from browser.dashboard import DRAWN, dashboard

ROOT = Path(__file__).parents[1]


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
