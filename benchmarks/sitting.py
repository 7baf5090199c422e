"""Runs benchmarks one after another, and keeps what each printed: ``make bench-all``.

``benchmarks/printed/NAME.txt`` has what ``make NAME`` printed, under the package, the machine and the time that it
took. What was printed by the package as it is is not run again: a sitting that was ended goes on where it stopped.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRINTED = ROOT / "benchmarks" / "printed"

OWN_PLACES = re.compile(rf"({re.escape(tempfile.gettempdir())}/\w+|{re.escape(str(ROOT))})/")
"""Folders that say nothing to others."""

QUICK = (
    "bench-noise",
    "bench-outside-loss",
    "bench-estimators",
    "bench-fake-ranks",
    "bench-torch-overheads",
    "bench-own-cost",
    "bench-own-cost-ranks",
    "bench-hooks",
    "bench-load",
    "bench-reuse",
    "bench-workers",
    "bench-harmless",
    "bench",
    "bench-forecast-torch",
    "bench-forecast",
)
"""Two hours in all, on two quiet cores."""

LONG = (
    "bench-live",
    "bench-anchors",
    "bench-peers",
    "bench-fake",
    "bench-by-hand",
    "bench-compiled",
    "bench-search",
    "bench-time",
)
"""Half an hour to some hours each."""


EXIT_CODE = "exit code"
"""What comes before it in the head of what was printed: a goal was missed, or the benchmark failed."""


def tree_of(folder):
    """The digest that git has of a folder at the commit that is checked out."""
    asked = ["git", "rev-parse", "--short", f"HEAD:{folder}"]
    return subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def processor():
    """Its name, as Linux tells it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def head(name):
    """What has to be known of the figures, without the time that they took."""
    return (
        f"make {name}\n"
        f"package {tree_of('autorecompute')}, benchmarks {tree_of('benchmarks')}, studies {tree_of('studies')}\n"
        f"torch {version('torch')}, Python {platform.python_version()}, {os.cpu_count()} cores of {processor()}\n"
    )


def is_known(name):
    """Whether it was printed by the package as it is, and no goal of it was missed by an exit code."""
    file = PRINTED / f"{name}.txt"
    told = file.read_text(encoding="utf-8").partition("\n\n")[0] if file.is_file() else ""
    return tree_of("autorecompute") in told and EXIT_CODE not in told


def run(name):
    """Runs a benchmark, shows what it prints, and keeps that with its exit code, which is returned."""
    began, lines, kept = time.monotonic(), [], head(name)
    with subprocess.Popen(["make", "--silent", name], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            lines.append(OWN_PLACES.sub("", line))
    failed = f", {EXIT_CODE} {process.returncode}" if process.returncode else ""
    ended = f"{dt.datetime.now(dt.UTC).date()}, {(time.monotonic() - began) / 60:.0f} minutes{failed}\n\n"
    (PRINTED / f"{name}.txt").write_text(kept + ended + "".join(lines), encoding="utf-8")
    return process.returncode


def main():
    """Runs those that are named, or all that are not known; exits with 1 where any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", choices=[*QUICK, *LONG, []], help="(default: all)")
    parser.add_argument("--quick", action="store_true", help="those that take no more than half an hour")
    asked = parser.parse_args()
    PRINTED.mkdir(exist_ok=True)
    names = asked.benchmarks or [name for name in QUICK + LONG * (not asked.quick) if not is_known(name)]
    failed = [name for name in names if run(name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
