"""``autorecompute emit``, ``run`` and ``report``: what a study's answer is used for."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from autorecompute.backends import registry
from autorecompute.emit import RENDERERS, hand_out, hand_out_if_any, render_unmeasured, require_best, stray_variables
from autorecompute.errors import UsageError
from autorecompute.files import require_place, shown, write_named
from autorecompute.result import VARIABLE as EVIDENCE_VARIABLE
from autorecompute.startup import HOOKS_VARIABLE, prepend_to_python_path
from autorecompute.studies import StudyFolder
from autorecompute.studies.folder import PAGE, require_plain, write_atomically
from autorecompute.training_job import ACCUMULATION_VARIABLE, BATCH_VARIABLE, LIMIT_VARIABLE, PEAK_VARIABLE
from autorecompute.trials.job import ACCUMULATION, PLACEHOLDER, fill
from autorecompute.trials.private import variables_of_known_code
from autorecompute.units import format_bytes, printable

if TYPE_CHECKING:
    import argparse

    from autorecompute.result import Best


def run_emit(args: argparse.Namespace) -> None:
    """Print or write the study's variables, or a config that nobody measured where that is asked for."""
    if args.unmeasured is None:
        folder = StudyFolder.at(args.study)
        result = folder.require_result()
        text = RENDERERS[args.format or "shell"](result, hand_out(folder, result))
    else:
        text = render_unmeasured(Path(args.study), args.unmeasured, args.format or "json")
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_named(args.output, text, force=args.force)


def run(args: argparse.Namespace) -> None:
    """Tell what is on, and replace this process by the command after ``--``."""
    if not any(args.rest[:1]):
        raise UsageError(f"There is no command to run. Write it after --: autorecompute run {args.study} -- python …")
    folder = StudyFolder.at(args.study)
    result = folder.require_result()
    rendered, best = hand_out(folder, result), require_best(result)
    for rejection in folder.disproved():
        if rejection.config == best.config:
            print(f"autorecompute: {rejection.reason}. Tune again with the same command.", file=sys.stderr)
    variables = {
        EVIDENCE_VARIABLE: str(folder.evidence),
        **rendered.variables,
        BATCH_VARIABLE: str(best.batch),
        PEAK_VARIABLE: str(best.peak_bytes),
        LIMIT_VARIABLE: str(best.limit_bytes),
        **({} if best.accumulation is None else {ACCUMULATION_VARIABLE: str(best.accumulation)}),
        **variables_of_known_code(folder.path, os.environ),
        HOOKS_VARIABLE: registry.backend_of(result.versions).IMPORT_HOOK,
    }
    strays = stray_variables(rendered)
    for name in (*variables, *strays):
        value, given = os.environ.get(name), variables.get(name)
        if value is not None and value != given:
            change = "removed: the study's config does without it" if given is None else f"replaced by {given}"
            print(f"autorecompute: {name}={printable(value)} of your environment is {change}.", file=sys.stderr)
    print(f"autorecompute: {_describe(best)}", file=sys.stderr)
    kept = {name: value for name, value in os.environ.items() if name not in strays}
    python_path = prepend_to_python_path(os.environ.get("PYTHONPATH", ""))
    replace_process(_sized(args.rest, best), {**kept, **variables, "PYTHONPATH": python_path})


def _sized(command: list[str], best: Best) -> list[str]:
    """Return the command with micro-batch and passes where it leaves places for them; else as it is."""
    if best.accumulation is None:
        return command
    return [fill(word, {PLACEHOLDER: str(best.batch), ACCUMULATION: str(best.accumulation)}) for word in command]


def _describe(best: Best) -> str:
    how = "without recompute" if best.config.is_none else f"with {best.description}"
    how += "".join(f", {bucket.what} up to {bucket.length} tokens" for bucket in best.buckets)
    when = "when it was confirmed" if best.confirmed else "while it was tuned, and no process has confirmed it"
    return f"training {how} at {best.size}; its peak was {format_bytes(best.peak_bytes)} {when}"


def replace_process(
    command: list[str], environment: dict[str, str], given_as: str = "the command after --"
) -> NoReturn:
    """Become the command: same process id, its exit code and its signals are the caller's."""
    # Python ignores these two signals and exec would hand that on: a command expects their default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  (no shell comes between us and the command)
    except OSError as error:
        raise UsageError(f"{shown(command[0])} cannot be started: {error.strerror}. Check {given_as}.") from error


def run_report(args: argparse.Namespace) -> None:
    """Write the page and print its path."""
    from autorecompute.reports.page import make_page

    folder = StudyFolder.at(args.study)
    folder.head()
    # The page names the files of what to train with.
    hand_out_if_any(folder, folder.result())
    page = args.output or folder.path / PAGE
    if args.output is None:
        # The page in the study's folder is made anew without being asked for it.
        require_plain(folder)
        write_atomically(page, make_page(folder, page))
    else:
        require_place(page, force=args.force)
        write_named(page, make_page(folder, page), force=args.force)
    print(printable(str(page), ""))
