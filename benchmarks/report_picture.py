"""Takes the picture of the README: the memory of a step, as the page of a study has it, of a GPT-2 of eight blocks.

``make report-picture`` tunes it in plain PyTorch, which takes some minutes, and writes ``docs/step.png``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
SCRIPT, ARGUMENTS = ROOT / "studies" / "gpt2_clm" / "train.py", ("--", "--layers", "8")
LIMIT = (ROOT / "studies" / "limit.py", SCRIPT, *ARGUMENTS)
STEP = "svg[aria-label^='Memory alive']"


def environment():
    """That of a tuning whose memory is given back."""
    return os.environ | {"PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def run(folder, *command):
    """What a command of this Python prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


def _take_picture(file):
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        options = ("--target-batch", 32, "--memory-limit", run(folder, *LIMIT), "--max-trials", 12, "--study", "gpt2")
        run(folder, "-m", "autorecompute", "tune", SCRIPT, *options, *ARGUMENTS)
        page = run(folder, "-m", "autorecompute", "report", "gpt2")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 900, "height": 900}, device_scale_factor=2)
        shown.goto(f"file://{Path(folder, page)}")
        shown.locator(STEP).screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    _take_picture(sys.argv[1])
