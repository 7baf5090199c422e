"""``autorecompute tune``: find the config to train with."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import InterruptedByUser, NothingFitsError, UsageError
from autorecompute.units import MIB, format_count, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder
    from autorecompute.trials import Job
    from autorecompute.tuning import TuningSettings

DEFAULT_TRIALS = 40
DEFAULT_WARMUP, DEFAULT_STEPS = 2, 5
TAG_LENGTH = 6
LONGEST_WORDS = 80
_UNFIT_FOR_NAMES = re.compile(r"[^\w.-]")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = subparsers.add_parser(
        "tune",
        help="find the config to train with",
        description="Measures configs on the running script and prints the environment to train with.",
        epilog="example: autorecompute tune train.py --target-batch 32 --memory-limit 40GiB -- --epochs 1",
    )
    add_script_arguments(parser)
    parser.add_argument("--target-batch", type=positive, metavar="N", help="samples a forward on one device")
    parser.add_argument("--memory-limit", metavar="SIZE", help="what the peak may reach, such as 40GiB")
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: made from script and batch)")
    parser.add_argument("--max-trials", type=positive, default=DEFAULT_TRIALS, metavar="N", help="(default 40)")
    parser.add_argument("--timeout", metavar="TIME", help="end the search after this time, such as 30m")
    parser.add_argument("--steps", type=positive, default=DEFAULT_STEPS, metavar="N", help="timed steps (default 5)")
    parser.add_argument("--warmup", type=positive, default=DEFAULT_WARMUP, metavar="N", help="(default 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what every verb that starts the user's script takes."""
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the training script; its arguments follow --")
    parser.add_argument("--batch-flag", metavar="FLAG", help="the script's flag that takes the batch")
    parser.add_argument("--launcher", default="", metavar="COMMAND", help="what starts the script instead of python")
    parser.add_argument("--wrap", action="store_true", help="wrap the model of a script that has no ORTModule in it")
    parser.add_argument(
        "--debug-script", action="store_true", help="leave the terminal to the script, for breakpoint() and pdb in it"
    )


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Tunes, or answers from the finished study."""
    limit_bytes = _limit(args.memory_limit) if args.memory_limit else None
    timeout_seconds = parse_seconds(args.timeout) if args.timeout else None
    from autorecompute.studies import StudyFolder
    from autorecompute.trials import Job
    from autorecompute.trials.bench import Effort
    from autorecompute.tuning import TuningSettings

    job = Job(
        script=args.script,
        arguments=tuple(args.rest),
        batch_flag=args.batch_flag,
        launcher=args.launcher,
        wrap=args.wrap,
    )
    job.script_arguments(args.target_batch)
    settings = TuningSettings(
        limit_bytes=limit_bytes,
        max_trials=args.max_trials,
        timeout_seconds=timeout_seconds,
        effort=Effort(warmup=args.warmup, steps=args.steps),
        batch=args.target_batch,
    )
    folder = StudyFolder(args.study or default_name(job, args.target_batch, limit_bytes))
    try:
        return _tune(job, folder, settings, as_json=args.json, debugs=args.debug_script)
    except KeyboardInterrupt:
        raise InterruptedByUser(_describe_interruption(folder)) from None


def _limit(text: str) -> int:
    limit_bytes = parse_bytes(text)
    if limit_bytes < MIB:
        raise UsageError(f"--memory-limit {text} is {limit_bytes} bytes. Write a unit with it, such as {text}GiB.")
    return limit_bytes


def default_name(job: Job, batch: int | None, limit_bytes: int | None) -> str:
    """A study's name, the same for the same command: ``bert_mlm-train-b32-1f3a5c``."""
    script = job.script.resolve()
    parts = [str(script), *job.arguments, job.batch_flag, job.launcher, batch, limit_bytes]
    parts += ["--wrap"] if job.wrap else []
    tag = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:TAG_LENGTH]
    words = _UNFIT_FOR_NAMES.sub("_", f"{script.parent.name}-{script.stem}").strip("_-.")[:LONGEST_WORDS]
    return f"{words or 'study'}{f'-b{batch}' if batch else ''}-{tag}"


def _tune(job: Job, folder: StudyFolder, settings: TuningSettings, *, as_json: bool, debugs: bool) -> int:
    from autorecompute.backends import ORTMODULE, emission_of
    from autorecompute.reports.live import LiveView
    from autorecompute.trials import Bench
    from autorecompute.tuning import Tuner, Workplace

    if folder.exists():
        folder.provenance()
    folder.prepare()
    with LiveView(has_bar=not debugs) as view:
        view.note(f"study {folder.path}")
        bench = Bench(
            job,
            settings.batch,
            folder.workers,
            cleared=emission_of(ORTMODULE).MEMORY_VARIABLES,
            limit_bytes=settings.limit_bytes,
            debugs=debugs,
        )
        place = Workplace(job=job, bench=bench, folder=folder, settings=settings, progress=view)
        try:
            with bench:
                result = Tuner(place).run()
        except NothingFitsError:
            # That nothing fits is an answer, too; a limit below what the script holds at rest has none.
            answer = folder.result()
            if answer is not None:
                _print(answer, folder, as_json=as_json)
            raise
    _print(result, folder, as_json=as_json)
    return 0


def _print(result: Result, folder: StudyFolder, *, as_json: bool) -> None:
    from autorecompute.reports.as_json import dumps, result_as_plain
    from autorecompute.reports.screen import print_result
    from autorecompute.studies.storage import read_trials

    if as_json:
        print(dumps(result_as_plain(result)))
    else:
        print_result(result, read_trials(folder.database, folder.name_in_database), folder.path)


def _describe_interruption(folder: StudyFolder) -> str:
    from autorecompute.studies.storage import read_trials

    trials = read_trials(folder.database, folder.name_in_database)
    fitting = [trial for trial in trials if trial.fits]
    best = max(fitting, key=lambda trial: trial.relative_throughput or 0, default=None)
    so_far = f" The best that fits so far, not confirmed: {best.description}." if best else ""
    kept = f"{format_count(len(trials), 'trial')} kept in {folder.path}"
    return f"interrupted. {kept}.{so_far} The same command goes on from there."
