"""Takes two pictures of one tuning, of a GPT-2 of eight blocks: ``make pictures``.

It is tuned in plain PyTorch, which takes about ten minutes. ``docs/terminal.png`` is its terminal in the middle of the
search, and ``docs/step.png``, the README's, the memory of a step from the page of its study.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
SCRIPT, ARGUMENTS = ROOT / "studies" / "gpt2_clm" / "train.py", ("--", "--layers", "8")
LIMIT = (ROOT / "studies" / "limit.py", SCRIPT, *ARGUMENTS)
STUDY = "gpt2"
STEP = "svg[aria-label^='Memory alive']"

COLUMNS, LINES = 128, 36
SEARCHING = re.compile(r"^now   trial (\d+):", re.MULTILINE)
"""What stands on the screen while a trial is measured."""

LISTED = r"^\[[^]]+\] +{}  "
"""How the line of a trial begins that was measured."""

RACING = "racing in interleaved rounds"
"""What stands there once no other trial will be."""

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""That of a tuning whose memory is given back."""


def _take_pictures(docs):
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        options = ("--target-batch", "32", "--memory-limit", _run(folder, *LIMIT), "--max-trials", "12")
        command = ("autorecompute", "tune", SCRIPT, *options, "--study", STUDY, *ARGUMENTS)
        frame = _last_frame(folder, [sys.executable, "-m", *map(str, command)])
        page = Path(folder, _run(folder, "-m", "autorecompute", "report", STUDY))
        terminal = Path(folder) / "terminal.html"
        terminal.write_text(_page(" ".join(("autorecompute", "tune", SCRIPT.name, *options, *ARGUMENTS)), frame))
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for file, width, shown, part in ((page, 900, "step.png", STEP), (terminal, 1200, "terminal.png", "pre")):
            tab = browser.new_page(viewport={"width": width, "height": 900}, device_scale_factor=2)
            tab.goto(f"file://{file}")
            tab.locator(part).screenshot(path=docs / shown)
        browser.close()


def _run(folder, *command):
    """What a command of this Python prints."""
    ran = [sys.executable, *map(str, command)]
    return subprocess.run(
        ran, cwd=folder, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def _last_frame(folder, command):
    """What a terminal shows of the last trial before the finalists are raced."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    settings = ENVIRONMENT | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(command, cwd=folder, env=settings, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    frame, is_racing = [], False
    for seen in iter(lambda: _read(ours), b""):
        stream.feed(seen)
        shown = "\n".join(screen.display)
        is_racing = is_racing or RACING in shown
        now = SEARCHING.search(shown)
        if now and not is_racing and not re.search(LISTED.format(now[1]), shown, re.MULTILINE):
            frame = [_line(screen, number) for number in range(LINES)]
    if process.wait():
        sys.exit(f"the tuning ended with code {process.returncode}")
    return [line for line in frame if line.plain.strip()]


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux's way to say that nobody writes any more
        return b""


def _line(screen, number):
    text = Text()
    for column in range(COLUMNS):
        cell = screen.buffer[number][column]
        color = None if cell.fg == "default" else cell.fg.replace("brown", "yellow")
        text.append(cell.data, Style(color=color, bold=cell.bold))
    return text


def _page(command, frame):
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    for line in frame:
        console.print(line, no_wrap=True, crop=False)
    return console.export_html().replace('<pre style="', '<pre style="display:inline-block;padding:16px;margin:0;')


if __name__ == "__main__":
    _take_pictures(Path(sys.argv[1]))
