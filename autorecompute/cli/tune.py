"""``autorecompute tune``: find the config to train with."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from autorecompute.cli.parsing import (
    AUTO_BATCH,
    add_script_arguments,
    asked_job,
    batch_list,
    in_a_name,
    positive,
    target_batch,
)
from autorecompute.errors import InterruptedByUser, LeftToOthers, NothingFitsError, UsageError
from autorecompute.units import MIB, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.storage import StorageUrl
    from autorecompute.tuning.session import TuningSession

SAMPLERS = ("model", "greedy", "tpe", "gp", "random")
"""The searchers there are; their code is imported once one is needed."""

STORAGE_VARIABLE = "AUTORECOMPUTE_STORAGE"
"""Read where ``--storage`` is not given: an argument can be seen by all users of a machine. No process that a verb
starts gets to see it."""

DEFAULT_TRIALS = 40
DEFAULT_WARMUP, DEFAULT_STEPS = 2, 5


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "tune",
        help="find the config to train with",
        description="Finds by measurement what to recompute under a memory limit, and prints how to train with it.",
        epilog="example:\n  autorecompute tune train.py --target-batch 32 --memory-limit 40GiB -- --epochs 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_script_arguments(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--target-batch",
        type=target_batch,
        metavar="N",
        help="samples a forward on one device, or 'auto' for the batch with the most samples a second",
    )
    group.add_argument("--batches", type=batch_list, metavar="N,N,...", help="tune and compare exactly these batches")
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="what the peak may reach, such as 40GiB (default: what the device has)"
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: made from the command)")
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="share the study with other workers: a database of Optuna, such as postgresql://USER@HOST/DATABASE "
        f"(default: {STORAGE_VARIABLE}, else a file in the study's folder)",
    )
    parser.add_argument(
        "--max-trials",
        type=positive,
        default=DEFAULT_TRIALS,
        metavar="N",
        help="configs to measure at most (default 40)",
    )
    parser.add_argument("--timeout", metavar="TIME", help="end with an answer within this time, such as 30m")
    parser.add_argument(
        "--steps", type=positive, default=DEFAULT_STEPS, metavar="N", help="timed steps of a trial (default 5)"
    )
    parser.add_argument(
        "--warmup", type=positive, default=DEFAULT_WARMUP, metavar="N", help="steps before them (default 2)"
    )
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default=SAMPLERS[0], help="what chooses the next trial (default model)"
    )
    parser.add_argument("--fresh", action="store_true", help="take nothing over from other studies")
    parser.add_argument(
        "--knobs", action="store_true", help="then try other settings on the winner, which takes fresh processes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run, storage_of_environment=os.environ.get(STORAGE_VARIABLE))


def run(args: argparse.Namespace) -> int:
    """Tune, or answer from the finished study."""
    began_seconds = time.monotonic()
    limit_bytes = parse_limit(args.memory_limit)
    timeout_seconds = parse_seconds(args.timeout) if args.timeout is not None else None
    from autorecompute.search import require_installed
    from autorecompute.search.fastest_batch import START
    from autorecompute.studies import StudyFolder
    from autorecompute.trials.job import Effort
    from autorecompute.tuning.context import TuningSettings
    from autorecompute.tuning.session import TuningSession, default_name
    from autorecompute.waiting import interruptible

    require_installed(args.sampler)
    job = asked_job(args)
    batch, batches = args.target_batch, args.batches
    if batches is not None:
        batch = batches[0]
    elif batch == AUTO_BATCH:
        batch, batches = START, ()
    job.script_arguments(batch)
    settings = TuningSettings(
        limit_bytes=limit_bytes,
        max_trials=args.max_trials,
        timeout_seconds=timeout_seconds,
        began_seconds=began_seconds,
        effort=Effort(warmup=args.warmup, steps=args.steps),
        batch=batch,
        sampler=args.sampler,
        is_fresh=args.fresh,
        turns_knobs=args.knobs,
    )
    storage = _storage(args, is_for_one=batches is not None or args.knobs)
    label = batch if batches is None else in_a_name(batches)
    folder = StudyFolder(default_name(job, label, limit_bytes) if args.study is None else args.study)
    session = TuningSession(
        job=job, folder=folder, settings=settings, batches=batches, storage=storage, debugs=args.debug_script
    )
    code: int | None = None
    try:
        with interruptible():
            code = _tune(session, as_json=args.json)
    except KeyboardInterrupt:
        if code is None:
            raise
    assert code is not None, "what ended without an answer has raised"
    return code  # a signal that came behind the answer interrupted nothing


def parse_limit(text: str | None) -> int | None:
    """Return the value of ``--memory-limit`` in bytes; ``None`` where it is not given.

    Raises:
        UsageError: it is no size, or one that is too small, as without its unit.
    """
    if text is None:
        return None
    limit_bytes = parse_bytes(text)
    if limit_bytes < MIB:
        has_unit = text.strip()[-1:].isalpha()
        advice = "Give it 1MiB at least" if has_unit else f"Write a unit with it, such as {text}GiB"
        raise UsageError(f"--memory-limit {text} is {limit_bytes} bytes. {advice}.")
    return limit_bytes


def _storage(args: argparse.Namespace, *, is_for_one: bool) -> StorageUrl | None:
    """Return the address of a shared study; ``None`` where it is not shared. An empty variable is as good as none."""
    from autorecompute.studies.storage import parse_storage

    is_given = args.storage is not None
    text = args.storage if is_given else args.storage_of_environment or None
    if text is None:
        return None
    if is_for_one:
        away = "Leave --storage away" if is_given else f"Unset {STORAGE_VARIABLE}"
        raise UsageError(f"Workers that share a study tune one batch, and no knobs. {away}, or leave these away.")
    return parse_storage(text, "--storage" if is_given else STORAGE_VARIABLE)


def _tune(session: TuningSession, *, as_json: bool) -> int:
    from autorecompute.reports.live import LiveView

    session.require_own()
    try:
        with LiveView(has_bar=not session.debugs, is_shared=session.storage is not None) as view:
            result = session.run(view)
    except NothingFitsError as error:
        # That nothing fits is an answer, too; a limit below what the script holds at rest has none.
        answer = session.folder.result()
        if answer is not None and answer.best is None:
            _print(answer, session.folder, as_json=as_json)
            error.has_answer = True
        raise
    except LeftToOthers as left:
        if as_json and session.so_far is not None:
            _print(session.so_far, session.folder, as_json=True)
            left.has_answer = True
        raise
    except KeyboardInterrupt:
        if session.so_far is not None:
            _print(session.so_far, session.folder, as_json=as_json)
            sys.stdout.flush()
        interrupted = InterruptedByUser(session.explain_interruption())
        interrupted.has_answer = session.so_far is not None
        raise interrupted from None
    _print(result, session.folder, as_json=as_json)
    return 0


def _print(result: Result, folder: StudyFolder, *, as_json: bool) -> None:
    from autorecompute import codec
    from autorecompute.emit.handing import hand_out_if_any
    from autorecompute.reports.answer_json import Answer
    from autorecompute.reports.screen import print_result
    from autorecompute.studies.records import trials_of_answer

    trials = trials_of_answer(folder, result)
    rendered = hand_out_if_any(folder, result)
    if as_json:
        print(codec.dumps(Answer.of(result, trials, rendered)))
    else:
        print_result(result, trials, folder.path, rendered)
