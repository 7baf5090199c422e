"""``autorecompute check``: is the stored config still valid here?"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.backends.registry import render, variables
from autorecompute.checking import Checker
from autorecompute.cli.parsers import LONGEST_SAMPLE
from autorecompute.emit import require_best
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.files import shown
from autorecompute.plans import Config
from autorecompute.reports.tables import print_check
from autorecompute.studies import StudyFolder
from autorecompute.studies.checked import keep_check
from autorecompute.studies.folder import make_folder, require_plain
from autorecompute.studies.records import trials_of
from autorecompute.training_job import CHECKPOINTING, LONGEST, REPLACED
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import PYTHON, PYTHONS
from autorecompute.units import printable
from autorecompute.waiting import interruptible
from autorecompute.worker.protocol import MODULE_FLAG

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from autorecompute.result import Best, Result
    from autorecompute.studies.checked import CheckReport

SUFFIX = ".py"
LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
"""Modules that start a script, and are none themselves."""


def run(args: argparse.Namespace) -> None:
    """Check the config with the command after ``--``.

    What a study says of its command is not run: its folder may come from anybody, as in a repository that was cloned.
    """
    folder = StudyFolder.at(args.study)
    result = folder.require_result()
    best = require_best(result)
    if not args.rest:
        raise UsageError(_ask_for_command(folder, result))
    job = replace(
        job_of(args.rest),
        backend=result.versions["backend"],
        replaces_checkpointing=result.versions.get(CHECKPOINTING) == REPLACED,
        longest=_longest(result),
    )
    if best.accumulation is not None:
        ranks = result.versions.get("ranks", "")
        world = int(ranks) if re.fullmatch(r"[1-9]\d{0,5}", ranks, re.ASCII) else 1
        job = replace(job, global_batch=best.batch * best.accumulation * world, world=world)
    report = _check(folder, result, best, job, args.steps)
    if args.json:
        print(codec.dumps(report))
    else:
        print_check(report)
    if not report.valid:
        error = NothingFitsError(_explain(report))
        error.has_answer = True
        raise error
    if folder.is_imported:
        keep_check(folder, best)
        print(f"autorecompute: study '{folder.name}' is confirmed on this machine", file=sys.stderr)


def _longest(result: Result) -> int | None:
    """Return the length that batches were given, as a study that may come from anybody says it."""
    text = result.versions.get(LONGEST, "")
    number = int(text) if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) else None
    return number if number is not None and number <= LONGEST_SAMPLE else None


def _explain(report: CheckReport) -> str:
    of_study = f"The config of study '{report.study}' is not"
    if report.failures:
        failures = "; ".join(f"{line.what}: {line.stored} stored, {line.here} here" for line in report.failures)
        return (
            f"{of_study} valid here any more ({failures}). Tune again: autorecompute tune, with what it was tuned with."
        )
    what = "; ".join(f"{line.what} {line.here}: {line.note.rstrip('.')}" for line in report.open)
    return (
        f"{of_study} confirmed here ({what}). Check it again when nothing else takes the device's memory, or tune "
        "again: autorecompute tune, with what it was tuned with."
    )


def _ask_for_command(folder: StudyFolder, result: Result) -> str:
    check = f"autorecompute check {shlex.quote(folder.place)} -- "
    if not result.script_at:
        return (
            f"Study '{folder.name}' was found in a notebook, which no command starts. Call autorecompute.auto there "
            f"again, or check a script that trains the same model: {check}train.py …"
        )
    return (
        f"Give the command that trains: {check}train.py … The study names {shown(shlex.join(result.command))}. "
        "Read that before you run it: whoever made the study wrote it."
    )


def job_of(command: Sequence[str]) -> Job:
    """Return the command after ``--``, where a script may come alone, as a worker is started with it."""
    if command[0].endswith(SUFFIX) or command[0] == MODULE_FLAG:
        command = [PYTHON, *command]
    modules = [
        place + 1
        for place, word in enumerate(command[:-1])
        if place and word == MODULE_FLAG and command[place + 1] not in LAUNCHERS
    ]
    # What comes first after python alone is the script, whatever it is called.
    after_python = 1 if command[0] in PYTHONS else 0
    scripts = [
        place
        for place, word in enumerate(command)
        if place and (word.endswith(SUFFIX) or (place == after_python and not word.startswith("-")))
    ]
    place = min([*modules, *scripts], default=None)
    if place is None:
        raise UsageError(f"No script is named in {shown(shlex.join(command))}. Write it as: train.py ARGUMENTS")
    return Job.of_command(command, place)


def _check(folder: StudyFolder, result: Result, best: Best, job: Job, steps: int) -> CheckReport:
    def note(sentence: str) -> None:
        print(f"autorecompute: {printable(sentence)}", file=sys.stderr)

    head, trials = folder.head(), trials_of(folder)
    batch = best.batch if job.takes_batch or not result.command_gives_batch else None
    command = tuple(job.plain_command(batch))
    require_plain(folder)
    logs = make_folder(folder.workers / "check")
    rendered = render(Config(), best.knobs, result.versions, logs).variables
    knobs = {name: value for name, value in rendered.items() if name not in variables()}
    bench = Bench(job, batch, logs, limit_bytes=head.problem.limit_bytes, study=folder.path)
    with interruptible(), bench.under(knobs, logs) if knobs else bench as bench:
        return Checker(bench, head, result, trials, steps, note).run(command)
