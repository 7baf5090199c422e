"""Runs the lanes of the tests: those that are always run, and those whose files have changed since they last passed.

``lanes.toml`` says which files each lane depends on; a lane's own command is ``make test-LANE``. When it passes it
writes the commit to ``passed.toml``, which is committed with the change. What is left out is printed, too, and why.

Usage: ``lanes.py run [--all]``, ``lanes.py due``, ``lanes.py record LANE``. Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LANES, PASSED = ".ci/lanes.toml", ".ci/passed.toml"

MOST_COMMITS = 100
"""A lane runs again after so many commits, whatever they changed: packages and machines change as well."""

LAST_START_MINUTES = 50
"""A lane that depends on changes is not begun later: it stays due, and what lands is known within 90 minutes."""

HEAD = "# The commit at which each lane last passed. `make test-LANE` writes it: commit it with what was tested.\n"


@dataclass(frozen=True)
class Lane:
    """A part of the tests with a command of its own.

    Attributes:
        name: Its command is ``make test-NAME``.
        tests: Files and folders of its tests.
        files: What it depends on, as pathspecs of Git; empty for a lane that is always run.
        needs: Targets that install what its command needs.
        cores: How many its command keeps busy.
        by_hand: Why ``run`` leaves it out, and says so, unless everything is asked for.
    """

    name: str
    tests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("install",)
    cores: int = 2
    by_hand: str = ""


def read_lanes(root: Path) -> list[Lane]:
    """Return the lanes in the order in which they run."""
    content = tomllib.loads((root / LANES).read_text())
    common = content.pop("common")["files"]
    lanes = []
    for name, given in content.items():
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        if "files" in fields:
            fields["files"] = (*fields["files"], *fields.get("tests", ()), *common)
        lanes.append(Lane(name=name, **fields))
    return lanes


def read_apart(root: Path) -> tuple[str, ...]:
    """Return the files of which a lane names only those that it needs."""
    return tuple(tomllib.loads((root / LANES).read_text())["common"]["apart"])


def read_passed(root: Path) -> dict[str, str]:
    """Return the commit at which each lane last passed."""
    file = root / PASSED
    return tomllib.loads(file.read_text()) if file.exists() else {}


def git(root: Path, *arguments: str) -> str | None:
    """Return what Git prints; ``None`` where it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def changed_files(root: Path, commit: str, files: tuple[str, ...]) -> list[str]:
    """Return the files among these that are not as they were at a commit, committed or not."""
    specs = [f":(glob){name}{'/**' if (root / name).is_dir() else ''}" for name in files]
    changed = git(root, "diff", "--name-only", commit, "--", *specs) or ""
    new = git(root, "ls-files", "--others", "--exclude-standard", "--", *specs) or ""
    return sorted({*changed.splitlines(), *new.splitlines()})


def reason_to_run(root: Path, lane: Lane, passed: dict[str, str]) -> str | None:
    """Return why a lane is run; ``None`` where nothing it depends on has changed."""
    if not lane.files:
        return "always"
    commit = passed.get(lane.name)
    if commit is None:
        return "has never passed"
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return f"passed at {commit[:10]}, which is not in this history"
    if changed := changed_files(root, commit, lane.files):
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"{changed[0]}{others} changed since {commit[:10]}"
    age = int(git(root, "rev-list", "--count", f"{commit}..HEAD") or 0)
    return f"passed {age} commits ago" if age > MOST_COMMITS else None


def record(root: Path, name: str) -> str:
    """Write that a lane has passed at this commit, unless what it tested is not committed; return a sentence."""
    lane = next(lane for lane in read_lanes(root) if lane.name == name)
    if not lane.files:
        return f"lane {name}: passed"
    head = git(root, "rev-parse", "HEAD")
    if head is None:
        return f"lane {name}: passed, and not recorded: this is no checkout of Git"
    if changed := changed_files(root, head, lane.files):
        return f"lane {name}: passed, and not recorded: {changed[0]} is not committed"
    passed = {**read_passed(root), name: head}
    (root / PASSED).write_text(HEAD + "".join(f'{key} = "{passed[key]}"\n' for key in sorted(passed)))
    return f"lane {name}: passed at {head[:10]}; commit {PASSED}"


def is_run(lane: Lane, reason: str | None) -> bool:
    """Tell whether ``run`` runs a lane for this reason."""
    return reason is not None and not lane.by_hand


def why_not(lane: Lane, reason: str | None, passed: dict[str, str]) -> str:
    """Return why a lane is left out."""
    return f"{reason}; {lane.by_hand}" if reason else f"unchanged since {passed[lane.name][:10]}"


def make(*targets: str, output: object = None) -> bool:
    """Tell whether these targets could be made."""
    command = ["make", "--no-print-directory", "--keep-going", *targets]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    return done.returncode == 0


def run_lane(lane: Lane, *, aside: bool) -> tuple[bool, float]:
    """Return whether a lane passed, and its minutes.

    Args:
        lane: The lane.
        aside: Whether another one runs beside it: what it prints is shown in one piece then.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        has_passed = make(f"test-{lane.name}", output=output if aside else None)
        output.seek(0)
        sys.stdout.write(output.read())
    sys.stdout.flush()
    return has_passed, (time.monotonic() - began) / 60


def show(rows: list[tuple[str, str, str, str]]) -> None:
    """Print a table."""
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, (13, 8, 9, 0), strict=True)) + "\n")
    sys.stdout.flush()


def run(*, everything: bool) -> bool:
    """Run the lanes that are due, or all of them; tell of each what became of it and why, before and after."""
    passed = read_passed(ROOT)
    reasons = {lane: reason_to_run(ROOT, lane, passed) for lane in read_lanes(ROOT)}
    due = {
        lane: reason or "all were asked for" for lane, reason in reasons.items() if is_run(lane, reason) or everything
    }
    left = [
        (lane.name, "left out", "", why_not(lane, reason, passed))
        for lane, reason in reasons.items()
        if lane not in due
    ]
    show([*((lane.name, "to run", "", reason) for lane, reason in due.items()), *left])
    needs = list(dict.fromkeys(need for lane in due for need in lane.needs))
    began = time.monotonic()
    is_installed = make("--jobs", str(len(needs)), "--output-sync=target", *needs)
    ended = [("install", "passed" if is_installed else "FAILED", f"{(time.monotonic() - began) / 60:.1f} min", "")]
    results: dict[Lane, tuple[bool, float]] = {}
    if is_installed:
        alone = [lane for lane in due if lane.cores > 1]
        beside = [lane for lane in due if lane not in alone]
        with ThreadPoolExecutor(2) as pool:
            results |= zip(beside, pool.map(lambda lane: run_lane(lane, aside=True), beside), strict=True)
        for lane in alone:
            if not lane.files or everything or time.monotonic() - began < 60 * LAST_START_MINUTES:
                results[lane] = run_lane(lane, aside=False)
    for lane, reason in due.items():
        has_passed, minutes = results.get(lane, (False, 0.0))
        word = "passed" if has_passed else "FAILED" if lane in results else "left out"
        why = reason if lane in results else f"no time was left; {reason}"
        ended.append((lane.name, word, f"{minutes:.1f} min", why))
    show([("lane", "", "", "why"), *ended, *left])
    return is_installed and all(has_passed for has_passed, _ in results.values())


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("run", help="run what is due").add_argument("--all", action="store_true", help="and all others")
    verbs.add_parser("due", help="say what is due, and why")
    verbs.add_parser("record", help="write that a lane has passed").add_argument("lane")
    given = parser.parse_args()
    if given.verb == "run":
        return 0 if run(everything=given.all) else 1
    if given.verb == "record":
        sys.stdout.write(record(ROOT, given.lane) + "\n")
    else:
        passed = read_passed(ROOT)
        reasons = [(lane.name, reason_to_run(ROOT, lane, passed)) for lane in read_lanes(ROOT)]
        show([(name, "due" if reason else "not due", "", reason or "unchanged") for name, reason in reasons])
    return 0


if __name__ == "__main__":
    sys.exit(main())
