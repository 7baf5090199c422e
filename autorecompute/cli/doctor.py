"""``autorecompute doctor``: what is installed, what is missing, and the repair."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.backends.findings import Finding
from autorecompute.backends.registry import PACKAGES, controller, controllers
from autorecompute.codec import UnreadableError
from autorecompute.errors import SetupError
from autorecompute.reports.installation import Installation, print_installation
from autorecompute.units import signal_name

if TYPE_CHECKING:
    import argparse

    from autorecompute.backends.interface import ControllerBackend

TIMEOUT_SECONDS = 300.0
TAIL_LINES = 5


def run(args: argparse.Namespace) -> int:
    """Report on the installation of this interpreter, and return 3 where nothing can train."""
    backends = controllers() if args.backend is None else [controller(args.backend)]
    if args.fix:
        for backend in backends:
            if backend.REPAIR:  # its progress is on stderr, and the report will tell whether it helped
                subprocess.run([sys.executable, "-m", backend.REPAIR], stdin=subprocess.DEVNULL, stdout=2, check=False)
    found = {backend.NAME: diagnose(backend) for backend in backends}
    installation = Installation.of(found)
    if args.json:
        print(codec.dumps(installation))
    else:
        print_installation(found)
    return 0 if installation.ok else SetupError.exit_code


def diagnose(backend: ControllerBackend) -> list[Finding]:
    """Look at the installation from a process of its own: torch is never imported here, and a broken one may crash."""
    command = [sys.executable, "-m", f"{PACKAGES[backend.NAME]}.diagnose"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"The installation check takes longer than {TIMEOUT_SECONDS:.0f} s: is its disk very slow? "
            f"See where it hangs with: {' '.join(command)}"
        ) from error
    if done.returncode != 0:
        raise SetupError(explain_death(done.returncode, done.stderr.decode(errors="replace"), command))
    try:
        return codec.decode(done.stdout, list[Finding])
    except UnreadableError as error:
        raise SetupError(explain_death(done.returncode, done.stdout.decode(errors="replace"), command)) from error


def explain_death(returncode: int, output: str, command: list[str]) -> str:
    """Return a sentence, the last lines that the process printed, and the command that shows them all."""
    end = f"ended with exit code {returncode}"
    if returncode < 0:
        end = f"crashed ({signal_name(-returncode)}): a compiled part is broken"
    tail = "\n".join(output.rstrip().splitlines()[-TAIL_LINES:])
    return (
        f"The installation check {end}. Last output:\n{tail}\n"
        f"Reinstall torch and what trains with it. To see all of it, run: {' '.join(command)}"
    )
