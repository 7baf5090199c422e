"""``autorecompute doctor``: what is installed, what is missing, and the repair."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from autorecompute.errors import SetupError

if TYPE_CHECKING:
    from autorecompute.backends.ortmodule.diagnose import Finding

EXAMPLES = """examples:
  autorecompute doctor           what is installed, what is missing, and the command that repairs it
  autorecompute doctor --fix     build the extensions of ORTModule first
  autorecompute doctor --json    for a program
"""

BACKEND = "autorecompute.backends.ortmodule"
TIMEOUT_SECONDS = 300.0
TAIL_LINES = 5


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Adds the verb to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is installed, what is missing, and the repair",
        description="Looks at every piece that training with ORTModule needs. Exit code 3 where one is missing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fix", action="store_true", help="build the extensions that are missing, then look")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Reports on the installation of this interpreter, and returns 3 where it cannot train.

    Raises:
        SetupError: the look at the installation did not come to its end.
    """
    from autorecompute.backends.ortmodule.diagnose import blocking

    if args.fix:
        build_extensions()
    findings = diagnose()
    if args.json:
        sys.stdout.write(as_json(findings) + "\n")
    else:
        print_report(findings)
    return SetupError.exit_code if blocking(findings) else 0


def build_extensions() -> None:
    """Builds the missing extensions, its progress going to stderr; whether it helped, the report will tell."""
    subprocess.run([sys.executable, "-m", f"{BACKEND}.extensions"], stdin=subprocess.DEVNULL, stdout=2, check=False)


def diagnose() -> list[Finding]:
    """Looks at the installation from a process of its own: torch is never imported here, and a broken one may crash.

    Raises:
        SetupError: that process died, or took longer than five minutes.
    """
    from autorecompute import codec
    from autorecompute.backends.ortmodule.diagnose import Finding

    command = [sys.executable, "-m", f"{BACKEND}.diagnose"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"The look at the installation takes longer than {TIMEOUT_SECONDS:.0f} s: is its disk very slow? "
            f"See where it hangs with: {' '.join(command)}"
        ) from error
    if done.returncode != 0:
        raise SetupError(explain_death(done.returncode, done.stderr.decode(errors="replace"), command))
    return codec.decode(done.stdout, list[Finding])


def explain_death(returncode: int, stderr: str, command: list[str]) -> str:
    """A sentence, the process's last words, and the command that shows them all."""
    end = f"ended with exit code {returncode}"
    if returncode < 0:
        end = f"died of {signal.Signals(-returncode).name}: a compiled part of it is broken"
    tail = "\n".join(stderr.rstrip().splitlines()[-TAIL_LINES:])
    return (
        f"The look at the installation {end}. Its last words:\n{tail}\n"
        f"Reinstall torch and onnxruntime-training. To see all of it, run: {' '.join(command)}"
    )


def as_json(findings: list[Finding]) -> str:
    """``{"ok": …, "findings": […]}``."""
    from autorecompute import codec
    from autorecompute.cli.installation import Installation

    return codec.dumps(Installation.of(findings))


def print_report(findings: list[Finding]) -> None:
    """Prints a line for each finding, and below it, where something is wrong, the repair."""
    from rich.console import Console
    from rich.text import Text

    from autorecompute.backends.ortmodule.diagnose import Status, blocking

    styles = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "bold red"}
    # A command must be copied whole: the terminal may wrap it, rich may not.
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = Text(f"{finding.status:<7}", style=styles[finding.status])
        console.print(mark, Text(f" {finding.name:<{width}}  {finding.found}"), sep="")
        if finding.remedy:
            console.print(Text(f"{'':<8}{finding.remedy}", style="bold"))
    missing = len(blocking(findings))
    console.print(f"\nMissing: {missing}. Repair from the top." if missing else "\nReady to train.")
