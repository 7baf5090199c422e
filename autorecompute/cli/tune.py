"""``autorecompute tune``: find the config to train with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.cli.parsers import AUTO_BATCH, STORAGE_VARIABLE, asked_job, in_a_name, parse_limit
from autorecompute.emit import hand_out_if_any
from autorecompute.errors import InterruptedByUser, LeftToOthers, NothingFitsError, UsageError
from autorecompute.reports.answer import print_result
from autorecompute.reports.documents import Answer
from autorecompute.reports.live import LiveView
from autorecompute.search import require_installed
from autorecompute.search.fastest_batch import START
from autorecompute.search.micro_batches import divisors
from autorecompute.studies import StudyFolder
from autorecompute.studies.records import trials_of_answer
from autorecompute.studies.storage import parse_storage
from autorecompute.trials.accumulation import accumulating
from autorecompute.trials.job import ACCUMULATION, Effort
from autorecompute.tuning.context import UNTOLD_SECONDS, TuningSettings
from autorecompute.tuning.session import TuningSession, default_name
from autorecompute.units import parse_seconds
from autorecompute.waiting import interruptible

if TYPE_CHECKING:
    import argparse

    from autorecompute.result import Result
    from autorecompute.studies.storage import StorageUrl


def run(args: argparse.Namespace) -> None:
    """Tune, or answer from the finished study."""
    limit_bytes = parse_limit(args.memory_limit)
    timeout_seconds = parse_seconds(args.timeout) if args.timeout is not None else None
    training_seconds = parse_seconds(args.train_for) if args.train_for is not None else UNTOLD_SECONDS
    require_installed(args.sampler)
    job, batch, batches = asked_job(args), args.target_batch, args.batches
    if args.global_batch is not None:
        job = accumulating(job, args.global_batch, args.accumulation_flag)
        batch, batches = max(one for one in divisors(args.global_batch) if one <= START), ()
    elif args.accumulation_flag is not None or any(ACCUMULATION in argument for argument in job.arguments):
        raise UsageError("Passes of a step are chosen for an effective batch alone. Add --global-batch N.")
    elif batches is not None:
        batch = batches[0]
    elif batch == AUTO_BATCH:
        batch, batches = START, ()
    job.script_arguments(batch)
    settings = TuningSettings(
        limit_bytes=limit_bytes,
        max_trials=args.max_trials,
        timeout_seconds=timeout_seconds,
        began_seconds=args.began_seconds,
        effort=Effort(warmup=args.warmup, steps=args.steps),
        batch=batch,
        sampler=args.sampler,
        is_fresh=args.fresh,
        turns_knobs=args.knobs,
        training_seconds=training_seconds,
    )
    storage = _storage(args, is_for_one=batches is not None or args.knobs)
    label = batch if batches is None else in_a_name(batches)
    folder = StudyFolder(default_name(job, label, limit_bytes) if args.study is None else args.study)
    session = TuningSession(
        job=job, folder=folder, settings=settings, batches=batches, storage=storage, debugs=args.debug_script
    )
    is_answered = False
    try:
        with interruptible():
            _tune(session, as_json=args.json)
            is_answered = True
    except KeyboardInterrupt:
        if not is_answered:  # a signal that comes behind the answer interrupts nothing
            raise


def _storage(args: argparse.Namespace, *, is_for_one: bool) -> StorageUrl | None:
    """Return the address of a shared study; ``None`` where it is not shared. An empty variable is as good as none."""
    is_given = args.storage is not None
    text = args.storage if is_given else args.storage_of_environment or None
    if text is None:
        return None
    if is_for_one:
        away = "Leave --storage away" if is_given else f"Unset {STORAGE_VARIABLE}"
        raise UsageError(f"Workers that share a study tune one batch, and no knobs. {away}, or leave these away.")
    return parse_storage(text, "--storage" if is_given else STORAGE_VARIABLE)


def _tune(session: TuningSession, *, as_json: bool) -> None:
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


def _print(result: Result, folder: StudyFolder, *, as_json: bool) -> None:
    trials = trials_of_answer(folder, result)
    rendered = hand_out_if_any(folder, result)
    if as_json:
        print(codec.dumps(Answer.of(result, trials, rendered)))
    else:
        print_result(result, trials, folder, rendered)
