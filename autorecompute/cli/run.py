"""``autorecompute run``: starts a training with a study's config, and makes way for it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any, NoReturn

from autorecompute.errors import UsageError
from autorecompute.files import shown
from autorecompute.startup import HOOKS_VARIABLE, prepend_to_python_path
from autorecompute.units import printable

EXAMPLES = """examples:
  autorecompute run bert -- python train.py --batch-size 32
  autorecompute run bert -- torchrun --nproc-per-node 2 train.py --batch-size 32

The command gets the study's variables and AUTORECOMPUTE_BATCH_SIZE, and its Python processes are prepared for the
config as the study's trials were. The batch is yours to give, as when the study was tuned. Python with -I, -S or -E
cannot be prepared.
"""


def register(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "run",
        help="train with the config of a study",
        description="Replaces itself by the command, with the study's config in the environment.",
        usage="%(prog)s [-h] STUDY -- COMMAND [ARGUMENT ...]",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="STUDY", help="name of the study")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replace this process by the command after ``--``, so it returns no exit code of its own.

    Raises:
        UsageError: there is no such study, or the command cannot be started.
        NothingFitsError: the study has no config to train with.
    """
    from autorecompute.backends import registry
    from autorecompute.emit.formats import require_best, stray_variables
    from autorecompute.emit.handing import hand_out
    from autorecompute.result import VARIABLE as EVIDENCE_VARIABLE
    from autorecompute.studies import StudyFolder, load_result
    from autorecompute.trials.private import variables_of_known_code
    from autorecompute.worker.protocol import BATCH_VARIABLE

    if not any(args.rest[:1]):
        raise UsageError(f"There is no command to run. Write it after --: autorecompute run {args.study} -- python …")
    result = load_result(args.study)
    folder = StudyFolder(args.study)
    rendered = hand_out(folder, result)
    for rejection in folder.disproved():
        if rejection.config == require_best(result).config:
            print(f"autorecompute: {rejection.reason}. Tune again with the same command.", file=sys.stderr)
    variables = {
        EVIDENCE_VARIABLE: str(folder.evidence),
        **rendered.variables,
        BATCH_VARIABLE: str(require_best(result).batch),
        **variables_of_known_code(folder.path, os.environ),
        HOOKS_VARIABLE: registry.backend_of(result.versions).IMPORT_HOOK,
    }
    strays = stray_variables(rendered)
    for name in (*variables, *strays):
        value, given = os.environ.get(name), variables.get(name)
        if value is not None and value != given:
            change = "removed: the study's config does without it" if given is None else f"replaced by {given}"
            print(f"autorecompute: {name}={printable(value)} of your environment is {change}.", file=sys.stderr)
    kept = {name: value for name, value in os.environ.items() if name not in strays}
    python_path = prepend_to_python_path(os.environ.get("PYTHONPATH", ""))
    replace_process(args.rest, {**kept, **variables, "PYTHONPATH": python_path})


def replace_process(
    command: list[str], environment: dict[str, str], given_as: str = "the command after --"
) -> NoReturn:
    """Become the command: same process id, its exit code and its signals are the caller's.

    Raises:
        UsageError: the command cannot be started.
    """
    # Python ignores these two signals and exec would hand that on: a command expects their default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  (no shell comes between us and the command)
    except OSError as error:
        raise UsageError(f"{shown(command[0])} cannot be started: {error.strerror}. Check {given_as}.") from error
