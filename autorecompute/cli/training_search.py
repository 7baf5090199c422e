"""The search beside a training that has started it: see :func:`autorecompute.auto`."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autorecompute.studies import StudyFolder
    from autorecompute.trials import Job
    from autorecompute.trials.beside import TrainingBench
    from autorecompute.worker.protocol import SearchRequest

NICENESS = 10
"""The search leaves the processors to the training."""

MOST_TRIALS = 1000
"""Steps are what trials are counted in here."""


def main(descriptor: int, words: str) -> None:
    """Search until the training ends, or the search.

    Args:
        descriptor: The socket to the training.
        words: What is asked for, as JSON.
    """
    from autorecompute import codec
    from autorecompute.worker.protocol import SearchRequest

    os.nice(NICENESS)
    search(socket.socket(fileno=descriptor), codec.from_plain(json.loads(words), SearchRequest))


def search(line: socket.socket, request: SearchRequest) -> None:
    """Tune the training at the other end; whatever stands in the way is told there."""
    from autorecompute.errors import AutorecomputeError
    from autorecompute.trials.beside import TrainingBench, TrainingEndedError
    from autorecompute.tuning.context import TuningSettings
    from autorecompute.tuning.while_training import tune_training

    job = _job_of(request)
    bench = TrainingBench(job, Path(), line, request.steps)
    settings = TuningSettings(
        limit_bytes=request.limit_bytes, max_trials=MOST_TRIALS, timeout_seconds=None, is_fresh=True
    )
    try:
        tune_training(job, _folder_of(request, job, bench), settings, bench)
    except TrainingEndedError:
        pass
    except AutorecomputeError as error:
        with suppress(TrainingEndedError):
            bench.give_up(str(error))
    finally:
        bench.hang_up()


def _job_of(request: SearchRequest) -> Job:
    """Return the job that runs there; a program that no command line can start counts as typed."""
    from autorecompute.backends import registry
    from autorecompute.errors import UsageError
    from autorecompute.trials import Job

    backend = registry.plain_name()
    if not request.is_typed:
        with suppress(UsageError):
            script, arguments = Path(request.script), request.arguments
            launcher, is_module = request.launcher, request.is_module
            return Job(script=script, is_module=is_module, arguments=arguments, launcher=launcher, backend=backend)
    return Job(script=Path(request.script), is_typed=True, backend=backend)


def _folder_of(request: SearchRequest, job: Job, bench: TrainingBench) -> StudyFolder:
    """Return the study of this name, or else the one of what is trained: a notebook trains one thing after another."""
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.tuned import require_own
    from autorecompute.tuning.session import default_name

    if request.study is None:
        found = bench.detect()
        return StudyFolder(default_name(job, found.batch, request.limit_bytes, found.graph))
    folder = StudyFolder(request.study)
    require_own(folder)
    return folder
