"""The peak that an answer tells, beside that of the same training started by hand: for any script on a CPU.

    python benchmarks/whole_process.py train.py --tune="--target-batch 48" --end="--max_iters=8" -- --batch_size={batch}

trains to its end without the tool, tunes under a share of what that took, and trains to its end once more with the
answer, through ``autorecompute run``. Peaks by hand are what the kernel kept of the process (``ru_maxrss``). glibc
gives back what tensors leave in all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys

from autorecompute.units import MIB

STUDY = f"whole-process-{os.getpid()}"
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(MIB)}
TOOL = (sys.executable, "-m", "autorecompute")


def peak_bytes(command):
    """The greatest resident memory of a command that ends well."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | FREED_AT_ONCE)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{shlex.join(command)} failed.")
    return usage.ru_maxrss * 1024


def tune(script, arguments, options, limit_bytes):
    """The answer of a tuning."""
    command = [*TOOL, "tune", script, *options, "--fresh", "--json", "--study", STUDY]
    command += ["--memory-limit", str(limit_bytes), "--", *arguments]
    tuned = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | FREED_AT_ONCE, check=False)
    answer = json.loads(tuned.stdout)
    if not answer.get("best"):
        sys.exit(f"No answer under {limit_bytes / MIB:.0f} MiB: see above. Another --limit may have one.")
    return answer


def main():
    """Prints the peaks, and the answer's over that by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--tune", default="", help="options of tune")
    parser.add_argument("--end", default="", help="arguments with which the script ends by itself, after some steps")
    parser.add_argument("--limit", type=float, default=0.92, help="share of the plain training's peak")
    options, arguments = parser.parse_known_args()
    arguments = arguments[arguments[:1] == ["--"] :]
    plain = peak_bytes([sys.executable, options.script, *options.end.split()])
    answer = tune(options.script, arguments, options.tune.split(), round(options.limit * plain))
    again = peak_bytes([*TOOL, "run", STUDY, "--", sys.executable, options.script, *options.end.split()])
    told = answer["best"]["peak_bytes"]
    print(f"plain {plain / MIB:.1f} MiB; {answer['best']['description']}: told {told / MIB:.1f} MiB, ", end="")
    print(f"by hand {again / MIB:.1f} MiB: {told / again - 1:+.1%}; verdict {answer['verdict']}")


if __name__ == "__main__":
    main()
