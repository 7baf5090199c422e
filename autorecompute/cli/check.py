"""``autorecompute check``: is the stored config still valid here?"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.cli.parsing import positive
from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.files import shown
from autorecompute.training_job import CHECKPOINTING, REPLACED
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.checking import Stored
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.checked import CheckReport
    from autorecompute.trials import Bench, Job

DEFAULT_STEPS = 3
SUFFIX = ".py"
LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
"""Modules that start a script, and are none themselves."""
EPILOG = """example:
  autorecompute check bert -- train.py --batch-size 32

exit codes:
  0 the config is valid here, 4 it is not or could not be confirmed, 5 the script fails, 2 there is no such study or
  the command gives another batch, 3 the machine or the installation lacks something.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "check",
        help="is a study's config still valid here?",
        description="Runs a few steps under the config and compares plans, peak, gradients and speed with the study's.",
        usage="%(prog)s [-h] [--steps N] [--json] STUDY -- [COMMAND] SCRIPT [ARGUMENT ...]",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="STUDY", help="name of the study")
    parser.add_argument("--steps", type=positive, default=DEFAULT_STEPS, metavar="N", help="timed steps (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check the config with the command after ``--``.

    What a study says of its command is not run: its folder may come from anybody, as in a repository that was cloned.

    Raises:
        UsageError: there is no such study, it has no answer, or the command is missing or names no script.
        NothingFitsError: the config is not valid here, or its gradients were not compared.
        ScriptError: the script fails by itself.
    """
    from autorecompute import codec
    from autorecompute.emit.formats import require_best
    from autorecompute.reports.check_report import Checked, print_check
    from autorecompute.studies import StudyFolder, load_result
    from autorecompute.studies.checked import keep_check

    folder, result = StudyFolder(args.study), load_result(args.study)
    require_best(result)
    if not args.rest:
        raise UsageError(_ask_for_command(folder.name, result))
    job = replace(
        job_of(as_typed(args.rest)),
        backend=result.versions["backend"],
        replaces_checkpointing=result.versions.get(CHECKPOINTING) == REPLACED,
    )
    report = _check(folder, result, job, args.steps)
    if args.json:
        print(codec.dumps(Checked(valid=report.is_valid, report=report)))
    else:
        print_check(report)
    if not report.is_valid:
        error = NothingFitsError(_explain(report))
        error.has_answer = True
        raise error
    if folder.is_imported:
        keep_check(folder, require_best(result))
        print(f"autorecompute: study '{folder.name}' is confirmed on this machine", file=sys.stderr)
    return 0


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


def _ask_for_command(name: str, result: Result) -> str:
    check = f"autorecompute check {shlex.quote(name)} -- "
    if not result.script_at:
        return (
            f"Study '{name}' was found in a notebook, which no command starts. Call autorecompute.auto there again, or "
            f"check a script that trains the same model: {check}train.py …"
        )
    return (
        f"Give the command that trains: {check}train.py … The study names {shown(shlex.join(result.command))}. "
        "Read that before you run it: whoever made the study wrote it."
    )


def as_typed(words: Sequence[str]) -> Sequence[str]:
    """Return the command that the words after ``--`` stand for: a script may come alone, as it does after ``tune``."""
    from autorecompute.trials.job import PYTHON
    from autorecompute.worker.protocol import MODULE_FLAG

    return [PYTHON, *words] if words and (words[0].endswith(SUFFIX) or words[0] == MODULE_FLAG) else words


def job_of(command: Sequence[str]) -> Job:
    """Return a command that was typed, as a worker is started with it.

    Raises:
        UsageError: no script is named in it, or there is none.
    """
    from autorecompute.trials import Job
    from autorecompute.trials.job import PYTHONS
    from autorecompute.worker.protocol import MODULE_FLAG

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


def _check(folder: StudyFolder, result: Result, job: Job, steps: int) -> CheckReport:
    from autorecompute.checking import Checker, Stored
    from autorecompute.emit.formats import require_best
    from autorecompute.studies.records import trials_of
    from autorecompute.waiting import interruptible

    def note(sentence: str) -> None:
        print(f"autorecompute: {printable(sentence)}", file=sys.stderr)

    best = require_best(result)
    stored = Stored(
        study=folder.name,
        problem=replace(folder.problem(), batch=best.batch),
        sizes=folder.head().sizes,
        result=result,
        best=best,
        trials=tuple(trials_of(folder)),
    )
    batch = best.batch if job.takes_batch or not result.command_gives_batch else None
    command = tuple(job.plain_command(batch))
    with interruptible(), _open_bench(folder, stored, job, batch) as bench:
        return Checker(bench, stored, steps, note).run(command)


def _open_bench(folder: StudyFolder, stored: Stored, job: Job, batch: int | None) -> Bench:
    from autorecompute.backends.registry import render, variables
    from autorecompute.plans import Config
    from autorecompute.studies.folder import make_folder, require_plain
    from autorecompute.trials import Bench

    require_plain(folder)
    logs = make_folder(folder.workers / "check")
    rendered = render(Config(), stored.best.knobs, stored.result.versions, logs).variables
    knobs = {name: value for name, value in rendered.items() if name not in variables()}
    bench = Bench(job, batch, logs, limit_bytes=stored.problem.limit_bytes, study=folder.path)
    return bench.under(knobs, logs) if knobs else bench
