"""``autorecompute doctor``: what is installed, what is missing, and the repair."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from autorecompute.backends.registry import PACKAGES
from autorecompute.errors import SetupError
from autorecompute.units import signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.backends.findings import Finding
    from autorecompute.backends.interface import ControllerBackend

EXAMPLES = """examples:
  autorecompute doctor           what is installed, what is missing, and the command that repairs it
  autorecompute doctor --fix     build what can be built here first
  autorecompute doctor --json    for a program
"""

TIMEOUT_SECONDS = 300.0
TAIL_LINES = 5


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is installed, what is missing, and the repair",
        description="Looks at every piece that training needs. Exit code 3 where nothing can train.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=tuple(PACKAGES), help="look at what this training system needs alone")
    parser.add_argument("--fix", action="store_true", help="build what is missing and can be built here, then look")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Report on the installation of this interpreter, and return 3 where nothing can train.

    Raises:
        SetupError: the installation check did not finish.
    """
    from autorecompute.backends.registry import controller, controllers
    from autorecompute.cli.installation import is_ready

    backends = controllers() if args.backend is None else [controller(args.backend)]
    if args.fix:
        for backend in backends:
            build(backend)
    found = {backend.NAME: diagnose(backend) for backend in backends}
    if args.json:
        sys.stdout.write(as_json(found) + "\n")
    else:
        print_report(found)
    return 0 if is_ready(found) else SetupError.exit_code


def build(backend: ControllerBackend) -> None:
    """Build what the backend can build here, with its progress on stderr; the report will tell whether it helped."""
    if backend.REPAIR:
        subprocess.run([sys.executable, "-m", backend.REPAIR], stdin=subprocess.DEVNULL, stdout=2, check=False)


def diagnose(backend: ControllerBackend) -> list[Finding]:
    """Look at the installation from a process of its own: torch is never imported here, and a broken one may crash.

    Raises:
        SetupError: that process died, or took longer than five minutes.
    """
    from autorecompute import codec
    from autorecompute.backends.findings import Finding
    from autorecompute.codec import UnreadableError

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


def explain_death(returncode: int, stderr: str, command: list[str]) -> str:
    """Return a sentence, the last lines that the process printed, and the command that shows them all."""
    end = f"ended with exit code {returncode}"
    if returncode < 0:
        end = f"crashed ({signal_name(-returncode)}): a compiled part is broken"
    tail = "\n".join(stderr.rstrip().splitlines()[-TAIL_LINES:])
    return (
        f"The installation check {end}. Last output:\n{tail}\n"
        f"Reinstall torch and what trains with it. To see all of it, run: {' '.join(command)}"
    )


def as_json(found: Mapping[str, list[Finding]]) -> str:
    """``{"ok": …, "findings": […]}``, each finding with its backend."""
    from autorecompute import codec
    from autorecompute.cli.installation import Installation

    return codec.dumps(Installation.of(found))


def print_report(found: Mapping[str, list[Finding]]) -> None:
    """Print a line for each finding, and below it, where something is wrong, the repair."""
    from rich.console import Console
    from rich.text import Text

    from autorecompute.backends.findings import Status, blocking

    styles = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "bold red"}
    # A command must be copied whole: the terminal may wrap it, rich may not.
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(finding.name) for findings in found.values() for finding in findings)
    for name, findings in found.items():
        console.print(Text(f"backend {name}", style="bold"))
        for finding in findings:
            mark = Text(f"{finding.status:<7}", style=styles[finding.status])
            console.print(mark, Text(f" {finding.name:<{width}}  {finding.found}"), sep="")
            if finding.remedy:
                console.print(Text(f"{'':<8}{finding.remedy}", style="bold"))
        console.print()
    for name, findings in found.items():
        missing = len(blocking(findings))
        console.print(f"{name}: {missing} missing, repair from the top." if missing else f"{name}: ready to train.")
