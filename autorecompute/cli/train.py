"""``autorecompute train``: trains a script, and tunes it in the first steps of that very training."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.cli.parsing import add_replacement, add_rest, positive
from autorecompute.cli.run import replace_process
from autorecompute.cli.training_search import MOST_TRIALS, NICENESS
from autorecompute.cli.tune import parse_limit

if TYPE_CHECKING:
    import socket
    from typing import NoReturn

    from autorecompute.studies import StudyFolder
    from autorecompute.trials import Job
    from autorecompute.tuning.context import TuningSettings
    from autorecompute.worker.protocol import Settings

DEFAULT_TUNING_STEPS = 100


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "train",
        help="train, and tune in the first steps of that training",
        description="Trains the unmodified script to its own end. Its first steps are trials:\n"
        "each runs a config that is very likely to fit. The fastest then stays on. A trial step\n"
        "can still run out of memory. For plain PyTorch, in one process or several ranks.",
        epilog="example:\n  autorecompute train train.py --memory-limit 40GiB -- --epochs 3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the training script")
    add_rest(parser)
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="what the peak may reach, such as 40GiB (default: what the device has)"
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: made from the command)")
    parser.add_argument(
        "--tuning-steps",
        type=positive,
        default=DEFAULT_TUNING_STEPS,
        metavar="N",
        help="spend so many steps on trials at most, and 5 %% of those that a scheduler lets expect (default 100)",
    )
    parser.add_argument(
        "--launcher", default="", metavar="COMMAND", help='what starts the ranks, such as "torchrun --nproc-per-node 2"'
    )
    add_replacement(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Becomes the training, so it returns no exit code of its own; the search runs in a process beside it.

    Raises:
        UsageError: there is no such script, or the study is not this machine's.
        SetupError: the study cannot be read.
    """
    from autorecompute.backends import registry
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.tuned import require_own
    from autorecompute.trials import Job
    from autorecompute.tuning.context import TuningSettings
    from autorecompute.tuning.session import default_name

    limit_bytes = parse_limit(args.memory_limit) if args.memory_limit is not None else None
    job = Job(
        script=args.script,
        is_module=args.is_module,
        arguments=tuple(args.rest),
        launcher=args.launcher,
        backend=registry.plain_name(),
        replaces_checkpointing=args.replace_checkpointing,
    )
    folder = StudyFolder(default_name(job, None, limit_bytes) if args.study is None else args.study)
    if folder.exists():
        folder.head()
    require_own(folder)
    settings = TuningSettings(limit_bytes=limit_bytes, max_trials=MOST_TRIALS, timeout_seconds=None, is_fresh=True)
    _become_training(job, folder, settings, args.tuning_steps)


def _become_training(job: Job, folder: StudyFolder, settings: TuningSettings, steps: int) -> NoReturn:
    from autorecompute import codec
    from autorecompute.backends import registry
    from autorecompute.result import VARIABLE as EVIDENCE_VARIABLE
    from autorecompute.training_job import default_allocator
    from autorecompute.worker.protocol import SETTINGS_VARIABLE, is_alone

    is_one = not job.launcher and is_alone()
    told = _search_beside(job, folder, settings, steps) if is_one else _leave_search(job, folder, settings, steps)
    environment = {name: value for name, value in os.environ.items() if name not in registry.variables()}
    environment |= default_allocator(os.environ)
    environment[SETTINGS_VARIABLE] = codec.encode(told).decode()
    environment[EVIDENCE_VARIABLE] = str(folder.evidence)
    replace_process(job.training_command(), environment, "--launcher")


def _search_beside(job: Job, folder: StudyFolder, settings: TuningSettings, steps: int) -> Settings:
    """Start the search, and give what the training is told."""
    from autorecompute.trials.beside import start_beside
    from autorecompute.worker.protocol import Settings

    def search(line: socket.socket) -> None:
        os.nice(NICENESS)
        from autorecompute.trials.beside import TrainingBench
        from autorecompute.tuning.while_training import tune_training

        tune_training(job, folder, settings, TrainingBench(job, folder.workers, line, steps))

    sys.stdout.flush()
    line = start_beside(search)
    line.set_inheritable(True)
    return Settings(
        address=str(line.detach()),
        backend=job.backend,
        replaces_checkpointing=job.replaces_checkpointing,
        tuning_steps=steps,
    )


def _leave_search(job: Job, folder: StudyFolder, settings: TuningSettings, steps: int) -> Settings:
    """Return the ranks' settings: a launcher passes no line on to them, so the first one starts the search."""
    from autorecompute.worker.protocol import SearchRequest, Settings

    request = SearchRequest(
        script=str(job.script),
        is_module=job.is_module,
        arguments=job.arguments,
        limit_bytes=settings.limit_bytes,
        study=folder.name,
        steps=steps,
        launcher=job.launcher,
    )
    return Settings(
        address="",
        backend=job.backend,
        replaces_checkpointing=job.replaces_checkpointing,
        search=request,
        tuning_steps=steps,
    )
