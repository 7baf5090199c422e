"""A search that a training starts beside itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.errors import SetupError
from autorecompute.worker.side_channel import SideChannel

if TYPE_CHECKING:
    from autorecompute.worker.protocol import SearchRequest

PACKAGES = str(Path(__file__).parents[2])
"""Where this package was found: a notebook may have put that on its module path by itself."""

BESIDE = """
import os, sys
if os.fork():
    os._exit(0)
sys.path.append(sys.argv[1])
from autorecompute.cli.training_search import main
main(int(sys.argv[2]), sys.argv[3])
"""
"""Leaves a search that is nobody's child: a script may wait for all of its own."""

START_SECONDS = 60.0


def start_search(request: SearchRequest) -> SideChannel:
    """Start a search in a process of its own, without a terminal and without output, and give the line to it.

    Raises:
        SetupError: that cannot be done.
    """
    ours, its = socket.socketpair()
    with its:
        channel = SideChannel(ours.detach())
        try:
            _start(request, its)
        except BaseException:
            channel.close()
            raise
    return channel


def _start(request: SearchRequest, line: socket.socket) -> None:
    words = [PACKAGES, str(line.fileno()), json.dumps(codec.to_plain(request))]
    try:
        subprocess.run(
            # Not from the working folder, where a notebook may lie beside a file that is called like a module.
            [sys.executable, "-P", "-c", BESIDE, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[line.fileno()],
            start_new_session=True,
            timeout=START_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{sys.executable} cannot be started for the search: {error}") from error
