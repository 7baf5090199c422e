"""``autorecompute train``: trains a script, and tunes it in the first steps of that very training."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.cli.answers import replace_process
from autorecompute.cli.parsers import asked_job, parse_limit
from autorecompute.errors import AutorecomputeError, UsageError
from autorecompute.result import VARIABLE as EVIDENCE_VARIABLE
from autorecompute.studies import StudyFolder
from autorecompute.studies.folder import require_own
from autorecompute.training_job import default_allocator
from autorecompute.trials import Job
from autorecompute.trials.beside import TrainingBench, TrainingEndedError, start_beside
from autorecompute.tuning.context import TuningSettings
from autorecompute.tuning.session import default_name
from autorecompute.worker.protocol import SETTINGS_VARIABLE, SearchRequest, Settings, is_alone

if TYPE_CHECKING:
    import argparse

NICENESS = 10  # the search leaves the processors to the training
MOST_TRIALS = 1000  # steps are what trials are counted in here


def run(args: argparse.Namespace) -> None:
    """Become the training; the search runs in a process beside it."""
    limit_bytes = parse_limit(args.memory_limit)
    args.backend = registry.plain_name()
    job = asked_job(args)
    folder = StudyFolder(default_name(job, None, limit_bytes) if args.study is None else args.study)
    if folder.exists():
        folder.head()
    require_own(folder)
    address, request, steps = "", None, args.tuning_steps
    if job.longest is not None and (job.launcher or not is_alone()):
        raise UsageError(
            "train --longest is for one process: ranks may have batches of different lengths in one step. Leave "
            "--longest out, or --launcher."
        )
    if not job.launcher and is_alone():
        address = _search_beside(job, folder, _settings(limit_bytes), steps)
    else:
        # A launcher passes no line on to its ranks, so the first one starts the search.
        request = SearchRequest(
            script=str(job.script),
            is_module=job.is_module,
            arguments=job.arguments,
            limit_bytes=limit_bytes,
            study=folder.name,
            steps=steps,
            launcher=job.launcher,
            replaces_checkpointing=job.replaces_checkpointing,
            is_exact=job.is_exact,
        )
    told = Settings(
        address=address,
        backend=job.backend,
        replaces_checkpointing=job.replaces_checkpointing,
        is_exact=job.is_exact,
        longest=job.longest,
        search=request,
        tuning_steps=steps,
    )
    environment = {name: value for name, value in os.environ.items() if name not in registry.variables()}
    environment |= default_allocator(os.environ)
    environment[SETTINGS_VARIABLE] = codec.encode(told).decode()
    environment[EVIDENCE_VARIABLE] = str(folder.evidence)
    replace_process(job.training_command(), environment, "--launcher")


def _settings(limit_bytes: int | None) -> TuningSettings:
    return TuningSettings(limit_bytes=limit_bytes, max_trials=MOST_TRIALS, timeout_seconds=None, is_fresh=True)


def _search_beside(job: Job, folder: StudyFolder, settings: TuningSettings, steps: int) -> str:
    """Start the search, and give its address for the training."""

    def search(line: socket.socket) -> None:
        os.nice(NICENESS)
        from autorecompute.tuning.while_training import tune_training

        tune_training(job, folder, settings, TrainingBench(job, folder.workers, line, steps))

    sys.stdout.flush()
    line = start_beside(search)
    line.set_inheritable(True)
    return str(line.detach())


def training_search(descriptor: int, words: str) -> None:
    """Search for a training that has started this process, until it ends, or the search.

    See :func:`autorecompute.auto`. Whatever stands in the way is told there. It gives the number of the socket to it,
    and its request as JSON.
    """
    from autorecompute.tuning.while_training import tune_training

    os.nice(NICENESS)
    line, request = socket.socket(fileno=descriptor), codec.from_plain(json.loads(words), SearchRequest)
    job = _job_of(request)
    bench = TrainingBench(job, Path(), line, request.steps)
    try:
        tune_training(job, _folder_of(request, job, bench), _settings(request.limit_bytes), bench)
    except TrainingEndedError:
        pass
    except AutorecomputeError as error:
        with suppress(TrainingEndedError):
            bench.give_up(str(error))
    finally:
        bench.hang_up()


def _job_of(request: SearchRequest) -> Job:
    """Return the job that runs there; a program that no command line can start counts as typed."""
    found = Job(
        script=Path(request.script),
        is_typed=True,
        backend=registry.plain_name(),
        replaces_checkpointing=request.replaces_checkpointing,
        is_exact=request.is_exact,
        longest=request.longest,
    )
    if not request.is_typed:
        with suppress(UsageError):
            return replace(
                found,
                is_typed=False,
                is_module=request.is_module,
                arguments=request.arguments,
                launcher=request.launcher,
            )
    return found


def _folder_of(request: SearchRequest, job: Job, bench: TrainingBench) -> StudyFolder:
    """Return the study of this name, or else the one of what is trained: a notebook trains one thing after another."""
    if request.study is None:
        found = bench.detect()
        return StudyFolder(default_name(job, found.batch, request.limit_bytes, found.graph))
    folder = StudyFolder(request.study)
    require_own(folder)
    return folder
