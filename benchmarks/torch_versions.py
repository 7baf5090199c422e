"""List the plans of every study under several versions of torch, and fail where a later one offers fewer.

Usage: ``python benchmarks/torch_versions.py OLDER/bin/python NEWER/bin/python``, each with what the studies need. It
takes half a minute for each study and interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def ask(python: str, *arguments: str) -> str:
    """Return what an interpreter prints, with this autorecompute.

    Raises:
        SystemExit: It failed.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [python, *arguments]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def plans_of(python: str, script: Path) -> dict[str, int]:
    """Return the plans of a study in plain PyTorch, and the bytes that each saves at the script's own batch."""
    plans = json.loads(ask(python, "-m", "autorecompute", "plans", str(script), "--backend", "torch", "--json"))[
        "plans"
    ]
    return {plan["config"]: plan["saving_bytes"] for plan in plans}


def main() -> None:
    """Print a row for each study."""
    pythons = sys.argv[1:]
    versions = [ask(python, "-c", "import torch; print(torch.__version__)").strip() for python in pythons]
    table = Table("study", *versions, "only there", title="Plans in plain PyTorch, and the MiB that they save together")
    is_short = False
    for script in sorted(ROOT.glob("studies/*/train.py")):
        found = [plans_of(python, script) for python in pythons]
        lost = [plan for plan in found[0] if plan not in found[-1]]
        new = [plan for plan in found[-1] if plan not in found[0]]
        is_short = is_short or bool(lost)
        sums = [f"{len(plans)} plans, {sum(plans.values()) / 2**20:.1f}" for plans in found]
        table.add_row(
            script.parent.name, *sums, ", ".join([*(f"-{plan}" for plan in lost), *(f"+{plan}" for plan in new)])
        )
    Console(width=160).print(table)
    raise SystemExit(is_short)


if __name__ == "__main__":
    main()
