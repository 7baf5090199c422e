"""``autorecompute tune``: find the config to train with."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING

from autorecompute.backends.registry import AUTO
from autorecompute.cli.batches import (
    add_batch_arguments,
    asked_batches,
    describe_interruption,
    in_a_name,
    positive,
)
from autorecompute.cli.scripts import add_script_arguments, asked_job
from autorecompute.errors import InterruptedByUser, LeftToOthers, NothingFitsError, UsageError
from autorecompute.units import MIB, format_count, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.sharing import SharedStudy, StorageUrl
    from autorecompute.trials import Job
    from autorecompute.tuning import TuningSettings

SAMPLERS = ("model", "greedy", "tpe", "gp", "nsga2", "random", "brute")
"""The searchers there are; their code is imported once one is needed."""

STORAGE_VARIABLE = "AUTORECOMPUTE_STORAGE"
"""Read where ``--storage`` is not given: an argument can be seen by all users of a machine. No process that a verb
starts gets to see it."""

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
        epilog="example:\n  autorecompute tune train.py --target-batch 32 --memory-limit 40GiB -- --epochs 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_script_arguments(parser)
    add_batch_arguments(parser)
    parser.add_argument("--memory-limit", metavar="SIZE", help="what the peak may reach, such as 40GiB")
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: made from script and batch)")
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="share the study with other workers: journal:PATH or postgresql://USER@HOST/DATABASE "
        f"(default: {STORAGE_VARIABLE}, else a file in the study's folder)",
    )
    parser.add_argument("--max-trials", type=positive, default=DEFAULT_TRIALS, metavar="N", help="(default 40)")
    parser.add_argument("--timeout", metavar="TIME", help="end with an answer within this time, such as 30m")
    parser.add_argument("--steps", type=positive, default=DEFAULT_STEPS, metavar="N", help="timed steps (default 5)")
    parser.add_argument("--warmup", type=positive, default=DEFAULT_WARMUP, metavar="N", help="(default 2)")
    parser.add_argument("--sampler", choices=SAMPLERS, default=SAMPLERS[0], help="who proposes configs (default model)")
    parser.add_argument("--fresh", action="store_true", help="take nothing over from other studies")
    parser.add_argument(
        "--knobs", action="store_true", help="then try other settings on the winner, which takes fresh processes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run, storage_of_environment=os.environ.get(STORAGE_VARIABLE))


def run(args: argparse.Namespace) -> int:
    """Tunes, or answers from the finished study."""
    began_seconds = time.monotonic()
    limit_bytes = _limit(args.memory_limit) if args.memory_limit else None
    timeout_seconds = parse_seconds(args.timeout) if args.timeout else None
    from autorecompute.search import require_installed
    from autorecompute.studies import StudyFolder
    from autorecompute.trials.bench import Effort
    from autorecompute.trials.signals import ignoring_interrupts, interruptible
    from autorecompute.tuning import TuningSettings

    require_installed(args.sampler)
    job = asked_job(args)
    batch, batches = asked_batches(args)
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
    with interruptible():
        try:
            return _tune(job, folder, settings, batches, storage=storage, as_json=args.json, debugs=args.debug_script)
        except KeyboardInterrupt:
            with ignoring_interrupts():
                describe = _describe_interruption if batches is None else describe_interruption
                raise InterruptedByUser(describe(folder)) from None


def _limit(text: str) -> int:
    limit_bytes = parse_bytes(text)
    if limit_bytes < MIB:
        raise UsageError(f"--memory-limit {text} is {limit_bytes} bytes. Write a unit with it, such as {text}GiB.")
    return limit_bytes


def _storage(args: argparse.Namespace, *, is_for_one: bool) -> StorageUrl | None:
    """Where the study is shared; ``None`` where it is not. An empty variable is as good as none."""
    from autorecompute.studies.sharing import parse_storage

    source, text = "--storage", args.storage
    if text is None:
        source, text = STORAGE_VARIABLE, args.storage_of_environment or None
    if text is None:
        return None
    if is_for_one:
        away = "Leave --storage away" if args.storage is not None else f"Unset {STORAGE_VARIABLE}"
        raise UsageError(f"Workers that share a study tune one batch, and no knobs. {away}, or leave these away.")
    return parse_storage(text, source)


def default_name(job: Job, batch: int | str | None, limit_bytes: int | None) -> str:
    """A study's name, the same for the same command: ``bert_mlm-train-b32-1f3a5c``."""
    script = job.script.resolve()
    parts = [str(script), *job.arguments, job.batch_flag, job.launcher, batch, limit_bytes]
    parts += ["--wrap"] if job.wrap else []
    parts += [job.backend] if job.backend != AUTO and not job.wrap else []
    tag = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:TAG_LENGTH]
    words = _UNFIT_FOR_NAMES.sub("_", f"{script.parent.name}-{script.name.removesuffix('.py')}").strip("_-.")[
        :LONGEST_WORDS
    ]
    return f"{words or 'study'}{f'-b{batch}' if batch else ''}-{tag}"


def _tune(  # noqa: PLR0913  (the user decides about each of them)
    job: Job,
    folder: StudyFolder,
    settings: TuningSettings,
    batches: tuple[int, ...] | None,
    *,
    storage: StorageUrl | None,
    as_json: bool,
    debugs: bool,
) -> int:
    from autorecompute.reports.live import LiveView
    from autorecompute.studies.writing import saying_what_fails
    from autorecompute.trials import Bench
    from autorecompute.trials.signals import ignoring_interrupts
    from autorecompute.tuning import BatchTuner, Tuner, Workplace
    from autorecompute.tuning.binding import require_own

    def open_bench(batch: int | None, study: StudyFolder) -> Bench:
        logs = study.workers if shared is None else study.workers / shared.session
        with saying_what_fails(logs):
            logs.mkdir(parents=True, exist_ok=True)
        return Bench(
            job,
            batch,
            logs,
            limit_bytes=settings.limit_bytes,
            debugs=debugs and study is folder,
        )

    if folder.exists():
        folder.head()
    require_own(folder)
    watcher = LiveView(has_bar=not debugs, is_shared=storage is not None)
    with watcher as view, _opened(folder, storage, view.note) as shared:
        bench = open_bench(settings.batch, folder)
        place = Workplace(job=job, bench=bench, folder=folder, settings=settings, progress=view, shared=shared)
        tuner = Tuner(place) if batches is None else BatchTuner(place, batches, open_bench)
        try:
            with bench:
                result = tuner.run()
        except NothingFitsError:
            # That nothing fits is an answer, too; a limit below what the script holds at rest has none.
            answer = folder.result()
            if answer is not None and answer.best is None:
                _print(answer, folder, as_json=as_json)
            raise
        except LeftToOthers:
            if as_json and tuner.so_far is not None:
                _print(tuner.so_far, folder, as_json=True)
            raise
        except KeyboardInterrupt:
            with ignoring_interrupts():
                if tuner.so_far is not None:
                    _print(tuner.so_far, folder, as_json=as_json)
                    sys.stdout.flush()
                describe = _describe_interruption if batches is None else describe_interruption
                raise InterruptedByUser(describe(folder, tuner.so_far)) from None
    _print(result, folder, as_json=as_json)
    return 0


@contextlib.contextmanager
def _opened(
    folder: StudyFolder, storage: StorageUrl | None, note: Callable[[str], None]
) -> Iterator[SharedStudy | None]:
    """Has the study ready, in its folder and where it is shared."""
    from autorecompute.studies.plain import require_plain
    from autorecompute.studies.sharing import SharedStudy
    from autorecompute.studies.sharing.mirror import required_of
    from autorecompute.studies.use import using
    from autorecompute.trials.signals import deferring_interrupts

    if storage is None:
        folder.prepare()
        with using(folder):
            note(f"study {folder.path}")
            yield None
        return
    require_plain(folder)
    # Before there is anything in the folder, which other workers may have, too: a failure leaves nothing behind.
    shared = SharedStudy(storage, folder.name, note, deferring_interrupts, founding=required_of(folder))
    folder.prepare()
    note(f"study {folder.path}")
    note(f"shared in {shared.place}: {_describe_standing(shared)}")
    yield shared


def _describe_standing(shared: SharedStudy) -> str:
    view = shared.refresh()
    if shared.answer is not None:
        return "answered"
    return "new" if view.problem is None else f"{format_count(len(view.trials), 'trial')} so far"


def _print(result: Result, folder: StudyFolder, *, as_json: bool) -> None:
    from autorecompute import codec
    from autorecompute.emit.handing import hand_out_if_any
    from autorecompute.reports.as_json import Answer
    from autorecompute.reports.screen import print_result
    from autorecompute.studies.batches import trials_of_answer

    trials = trials_of_answer(folder, result)
    rendered = hand_out_if_any(folder, result)
    if as_json:
        print(codec.dumps(Answer.of(result, trials, rendered)))
    else:
        print_result(result, trials, folder.path, rendered)


def _describe_interruption(folder: StudyFolder, so_far: Result | None = None) -> str:
    from autorecompute.studies.storage import read_trials
    from autorecompute.tuning.answer.race_record import race_winner
    from autorecompute.tuning.answer.standings import finalists

    trials = read_trials(folder.database, folder.name_in_database)
    rejected = {known.config for known in folder.rejections()}
    fitting = [entry.trial for entry in finalists(trials) if entry.trial.config not in rejected]
    best = race_winner(folder, trials, rejected) or next(iter(fitting), None)
    found = f" The best that fits so far, not confirmed: {best.description}." if best else ""
    if so_far is not None and so_far.best is not None:
        found = f" The best that is confirmed so far: {so_far.best.description}."
    kept = f"{format_count(len(trials), 'trial')} kept in {folder.path}"
    return f"interrupted. {kept}.{found} The same command goes on from there."
