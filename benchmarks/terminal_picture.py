"""Takes the picture of the terminal: a tuning of a GPT-2 of eight blocks, in the middle of its search.

``make terminal-picture`` tunes it in plain PyTorch, which takes some minutes, and writes ``docs/terminal.png``.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from playwright.sync_api import sync_playwright
from report_picture import ARGUMENTS, LIMIT, SCRIPT, environment, run
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 128, 36
SEARCHING = re.compile(r"^now   trial (\d+):", re.MULTILINE)
"""What stands on the screen while a trial is measured."""

LISTED = r"^\[[^]]+\] +{}  "
"""How the line of a trial begins that was measured."""

RACING = "racing in interleaved rounds"
"""What stands there once no other will be."""

INTERRUPTED = 130
"""The exit code of a tuning that was stopped."""


def _take_picture(file):
    with tempfile.TemporaryDirectory() as folder:
        limit = f"{int(run(folder, *LIMIT)) >> 20}MiB"
        options = ("--target-batch", 32, "--memory-limit", limit, "--max-trials", 12, "--study", "gpt2", *ARGUMENTS)
        told, ran = (
            " ".join(map(str, ("autorecompute", "tune", script, *options))) for script in (SCRIPT.name, SCRIPT)
        )
        frame = _last_frame(folder, [sys.executable, "-m", *ran.split()])
        page = Path(folder) / "terminal.html"
        page.write_text(_page(" ".join(told), frame))
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            shown = browser.new_page(viewport={"width": 1200, "height": 800}, device_scale_factor=2)
            shown.goto(f"file://{page}")
            shown.locator("pre").screenshot(path=file)
            browser.close()


def _last_frame(folder, command):
    """What a terminal shows of the last trial before the finalists are raced."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    settings = environment() | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(command, cwd=folder, env=settings, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    frame = []
    for seen in iter(lambda: _read(ours), b""):
        stream.feed(seen)
        shown = "\n".join(screen.display)
        if RACING in shown:
            process.send_signal(signal.SIGINT)  # all that is to be seen was seen
        elif (now := SEARCHING.search(shown)) and not re.search(LISTED.format(now[1]), shown, re.MULTILINE):
            frame = [_line(screen, number) for number in range(LINES)]
    if process.wait() not in {0, INTERRUPTED}:
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
    _take_picture(sys.argv[1])
