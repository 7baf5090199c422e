"""``autorecompute plans``: what could be recomputed, and what it would save."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.cli.tune import add_script_arguments, positive
from autorecompute.errors import ScriptError, UsageError

if TYPE_CHECKING:
    from autorecompute.measurement import Detection
    from autorecompute.reports.overview import Overview
    from autorecompute.trials import Job

DETECTION_BATCH = 8
"""Plans do not depend on the batch: a script that takes one is given no more than this to find them."""

LEVELS = ("verbose", "devinfo", "info", "warning")
LEVEL_VARIABLE = "ORTMODULE_LOG_LEVEL"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = subparsers.add_parser(
        "plans",
        help="what could be recomputed, and what it would save",
        description="Runs the script up to its first training step and prints the plans of its training graph.",
        epilog="example: autorecompute plans train.py --batch 32 --details -- --epochs 1",
    )
    add_script_arguments(parser)
    parser.add_argument("--batch", type=positive, metavar="N", help="evaluate savings at this batch")
    parser.add_argument(
        "--dim",
        type=_dimension,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="evaluate savings at this size of a symbolic dimension; as often as needed",
    )
    parser.add_argument("--details", action="store_true", help="print which activations the plans are about, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all of it")
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help=f"as ORTModule's: problems only, the summary, details; its log goes to stderr (default {LEVEL_VARIABLE})",
    )
    parser.set_defaults(run=run)


def _dimension(text: str) -> tuple[str, int]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not written like sequence=512")
    return name, positive(value)


def run(args: argparse.Namespace) -> int:
    """Detects and prints."""
    from autorecompute.reports.as_json import dumps
    from autorecompute.reports.plans import print_details, print_summary
    from autorecompute.reports.plans_json import overviews_as_plain

    level = args.log_level or _level_in_environment()
    first, *others = overviews = _look(args, level)
    for problem in first.problems():
        print(f"autorecompute: {problem}", file=sys.stderr)
    if args.json:
        print(dumps(overviews_as_plain(overviews)))
        return 0
    if level != "warning":
        print_summary(first)
    if args.details or level in {"devinfo", "verbose"}:
        for rank, overview in enumerate(overviews):
            print_details(overview, rank=rank if others else None)
    return 0


def _level_in_environment() -> str | None:
    word = os.environ.get(LEVEL_VARIABLE, "").lower()
    return "warning" if word in {"error", "fatal"} else word if word in LEVELS else None


def _look(args: argparse.Namespace, level: str | None) -> list[Overview]:
    """What there is on each rank, the first one first."""
    from autorecompute.backends import ORTMODULE, emission_of
    from autorecompute.reports.overview import Overview, choose_dims
    from autorecompute.trials import Job

    job = Job(
        script=args.script,
        arguments=tuple(args.rest),
        batch_flag=args.batch_flag,
        launcher=args.launcher,
        wrap=args.wrap,
    )
    if job.takes_batch and args.batch is None:
        raise UsageError("The script's arguments take a batch and none is given. Add --batch N.")
    if args.log_level is not None:
        os.environ[LEVEL_VARIABLE] = args.log_level.upper()
    backend = emission_of(ORTMODULE)
    follows = level not in {None, "warning"} and not args.debug_script
    detections = _detect(job, args, backend.MEMORY_VARIABLES, follows=follows)
    request = backend.requested_by(os.environ, ort_version=detections[0].versions["onnxruntime"])
    return [
        Overview(
            detection=detection,
            request=request,
            probe_config=backend.probe_config_of(request.level),
            dims=choose_dims(detection, args.batch, args.dim),
            command=_tune_command(args, job),
        )
        for detection in detections
    ]


def _detect(job: Job, args: argparse.Namespace, cleared: tuple[str, ...], *, follows: bool) -> tuple[Detection, ...]:
    from autorecompute.trials import Bench, Follower

    logs = Path(tempfile.mkdtemp(prefix="autorecompute-plans-"))
    batch = min(args.batch, DETECTION_BATCH) if args.batch is not None and job.takes_batch else None
    print(f"running {job.script} up to its first training step", file=sys.stderr)
    keeps_log = False
    # A crash must not keep its last words back: what is to be seen is passed on while it is written.
    follower = Follower(logs, sys.stderr.buffer) if follows else contextlib.nullcontext()
    try:
        # Followed inside the bench: what a launcher has to say of being ended is of no interest.
        with Bench(job, batch, logs, cleared, debugs=args.debug_script) as bench, follower:
            detections = bench.detect_ranks()
    except ScriptError:
        # Its message names the log.
        keeps_log = True
        raise
    finally:
        if not keeps_log:
            shutil.rmtree(logs, ignore_errors=True)
    return detections


def _tune_command(args: argparse.Namespace, job: Job) -> str:
    flags = [f"--target-batch={args.batch}"] if args.batch is not None else []
    flags += [f"--batch-flag={args.batch_flag}"] if args.batch_flag is not None else []
    flags += [f"--launcher={args.launcher}"] if args.launcher else []
    flags += ["--wrap"] if args.wrap else []
    rest = ["--", *job.arguments] if job.arguments else []
    return shlex.join(["autorecompute", "tune", str(args.script), *flags, *rest])
