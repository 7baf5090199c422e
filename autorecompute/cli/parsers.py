"""The parsers of all verbs, and what is made of their arguments. ``--help`` imports no more than this."""

from __future__ import annotations

import argparse
import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute import __version__
from autorecompute.backends.registry import AUTO, PACKAGES, plain_name
from autorecompute.cli.advice import REST, advise
from autorecompute.errors import UsageError
from autorecompute.files import shown
from autorecompute.units import MIB, parse_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from autorecompute.trials import Job

STORAGE_VARIABLE = "AUTORECOMPUTE_STORAGE"
"""Read where ``--storage`` is not given: an argument can be seen by all users of a machine. No process that a verb
starts gets to see it."""

SAMPLERS = ("model", "greedy", "tpe", "gp", "random")
"""The searchers there are; their code is imported once one is needed."""

STUDY = "name of the study, or path of its folder"
LEVELS = ("verbose", "devinfo", "info", "warning")
RAW = argparse.RawDescriptionHelpFormatter

_ADDRESS = re.compile(r"(?<![\w+.-])[\w+.-]*://.*", re.DOTALL)
_WITH_PASSWORD = re.compile(r"://.*(@|password=)", re.DOTALL)
_STORAGE = "--storage"
LARGEST_STEP = 10**9
_OF_FLAGS = {"--batch-flag", "--accumulation-flag"}


class Parser(argparse.ArgumentParser):
    """Parser of the command line; its subparsers are of the same kind."""

    def __init__(self, **options: Any) -> None:
        # A short form means something else as soon as there is another option that begins like it.
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse. What is left over is told by the verb itself, and not by the program."""
        found, others = super().parse_known_args(args, namespace)
        if strangers := [*vars(found).get(REST, ()), *others]:
            advice = advise(self.prog, self._option_string_actions, found, strangers, args)
            self.error(f"unrecognized arguments: {' '.join(strangers)}{advice}")
        return found, others

    def error(self, message: str) -> NoReturn:
        """Raise a ``UsageError`` after how the verb is used; its message is cut where an address begins."""
        self.print_usage(sys.stderr)
        text = printable(_ADDRESS.sub("(an address, not repeated: it may hold a password)", message), "")
        raise UsageError(f"{text[:1].upper()}{text[1:].rstrip('.')}. See: {self.prog} --help")


def prepared(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as argparse reads them: ``--batch-flag --bs`` as ``--batch-flag=--bs``.

    Raises:
        UsageError: an address with a password, which is not repeated, stands where it is not treated as one; or an
            option is given ``--`` for a value, which argparse takes away.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_asked_for = before == _STORAGE or argument.startswith(f"{_STORAGE}=")
        if not is_asked_for and _WITH_PASSWORD.search(argument):
            raise UsageError(
                "An address stands where none is expected; it is not repeated, for it may hold a password. "
                f"Give the storage of a shared study as {_STORAGE} URL."
            )
    joined: list[str] = []
    for argument in arguments:
        if re.fullmatch("-[^=]*=--", argument):
            raise UsageError(f"{shown(argument)} has no value after the equals sign. Write one that is not --.")
        if joined and joined[-1] in _OF_FLAGS:
            joined[-1] = f"{joined[-1]}={argument}"
        else:
            joined.append(argument)
    return joined


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs: ``run`` names the function of a verb, ``starts`` those that start a command."""
    parser = Parser(
        prog="autorecompute",
        description="Finds by measurement which activations a training job should recompute so that its\nbatch fits.",
        formatter_class=RAW,
        epilog="examples:\n"
        "  autorecompute tune train.py --target-batch 32 --memory-limit 40GiB    what to recompute\n"
        "  autorecompute run STUDY -- python train.py --batch-size 32            train with it\n"
        "  autorecompute train train.py --memory-limit 40GiB                     both in one",
    )
    parser.add_argument("--version", action="version", version=f"autorecompute {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for add in (
        _add_tune, _add_train, _add_plans, _add_show, _add_report, _add_studies, _add_emit, _add_run, _add_check,
        _add_doctor,
    ):  # fmt: skip
        add(verbs)
    return parser


def _add(verbs: Any, name: str, run: str, *, starts: bool = False, **texts: Any) -> argparse.ArgumentParser:
    if "\n" in texts.get("epilog", ""):
        texts["formatter_class"] = RAW
    parser: argparse.ArgumentParser = verbs.add_parser(name, **texts)
    parser.set_defaults(run=run, starts=starts)
    return parser


def _add_job(verbs: Any, name: str, run: str, **texts: Any) -> argparse.ArgumentParser:
    """Add a verb that starts the user's script, with what describes it."""
    parser = _add(verbs, name, run, starts=True, usage="%(prog)s [OPTION ...] SCRIPT [-- ARGUMENT ...]", **texts)
    # One that is missing may be seen after --, which is taken away before the parser sees it: see require_script.
    parser.add_argument("script", metavar="SCRIPT", type=Path, nargs="?", help="the training script")
    parser.add_argument(REST, nargs="*", default=(), metavar="-- ARGUMENT", help="arguments of the script")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument(
        "--replace-checkpointing",
        action="store_true",
        help="switch off the checkpointing that the script does itself, such as gradient_checkpointing=True, and "
        "recompute in its place",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="offer nothing whose gradients differ in the order of a sum, as logits in chunks do",
    )
    return parser


def _add_trial_options(parser: argparse.ArgumentParser) -> None:
    """Add what every verb takes that starts the script for nothing but its steps."""
    parser.add_argument("--batch-flag", metavar="FLAG", help="the script's flag that takes the batch")
    parser.add_argument("--launcher", default="", metavar="COMMAND", help="what starts the script instead of python")
    parser.add_argument(
        "--backend",
        choices=(AUTO, *PACKAGES),
        default=AUTO,
        help="the training system that recomputes (default: the one that the script uses)",
    )
    parser.add_argument(
        "--debug-script", action="store_true", help="leave the terminal to the script, for breakpoint() and pdb in it"
    )


def _add_limit_and_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="what the peak may reach, such as 40GiB (default: what the device has)"
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: made from the command)")


def asked_job(args: argparse.Namespace) -> Job:
    """Return the job that the arguments of every such verb describe."""
    from autorecompute.trials import Job

    if args.replace_checkpointing and args.backend not in {AUTO, plain_name()}:
        raise UsageError(
            f"Only in plain PyTorch the script's checkpointing can be replaced. Leave out --backend {args.backend}, or "
            "--replace-checkpointing."
        )
    return Job(
        script=args.script,
        is_module=args.is_module,
        arguments=tuple(args.rest),
        batch_flag=args.batch_flag,
        launcher=args.launcher,
        backend=args.backend,
        replaces_checkpointing=args.replace_checkpointing,
        is_exact=args.exact,
        longest=getattr(args, "longest", None),  # of the verbs that train with every batch, none
    )


AUTO_BATCH = "auto"
LONGEST_SAMPLE = 1 << 24


def _positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def _global_batch(text: str) -> int:
    """Return samples of a step, few enough to look for their divisors."""
    number = _positive(text)
    if number > LARGEST_STEP:
        raise argparse.ArgumentTypeError(f"{text} is more than the {LARGEST_STEP} samples that a step may have")
    return number


def _length(text: str) -> int:
    """Return tokens of a sample, few enough to be those of one."""
    number = _positive(text)
    if number > LONGEST_SAMPLE:
        raise argparse.ArgumentTypeError(f"{text} is more than the {LONGEST_SAMPLE} tokens that a sample may have")
    return number


def _target_batch(text: str) -> int | str:
    """Return a batch, or that the best one is looked for."""
    if text == AUTO_BATCH:
        return AUTO_BATCH
    if text.strip().isalpha():
        raise argparse.ArgumentTypeError(f"'{text}' is neither a number nor '{AUTO}'")
    return _positive(text)


def _batch_list(text: str) -> tuple[int, ...]:
    """Return batches that are written as ``8,16,32``, in ascending order; none may come twice."""
    batches = sorted(_positive(part) for part in text.split(","))
    for batch, following in pairwise(batches):
        if batch == following:
            raise argparse.ArgumentTypeError(f"batch {batch} is named twice")
    return tuple(batches)


def in_a_name(batches: tuple[int, ...]) -> str:
    """Return the batches in the name of a study: ``8_16_32``, or ``auto``."""
    return "_".join(map(str, batches))[:30] or AUTO_BATCH


def parse_limit(text: str | None) -> int | None:
    """Return the value of ``--memory-limit`` in bytes; ``None`` where it is not given."""
    if text is None:
        return None
    limit_bytes = parse_bytes(text)
    if limit_bytes < MIB:
        has_unit = text.strip()[-1:].isalpha()
        advice = "Give it 1MiB at least" if has_unit else f"Write a unit with it, such as {text}GiB"
        raise UsageError(f"--memory-limit {text} is {limit_bytes} bytes. {advice}.")
    return limit_bytes


def _dimension(text: str) -> tuple[str, int]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not written like sequence=512")
    return name, _positive(value)


def _add_tune(verbs: Any) -> None:
    parser = _add_job(
        verbs,
        "tune",
        "tune.run",
        help="find the config to train with",
        description="Finds by measurement what to recompute under a memory limit, and prints how to train with it.",
        epilog="example:\n  autorecompute tune train.py --target-batch 32 --memory-limit 40GiB -- --epochs 1",
    )
    _add_trial_options(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--target-batch",
        type=_target_batch,
        metavar="N",
        help="samples a forward on one device, or 'auto' for the batch with the most samples a second",
    )
    group.add_argument(
        "--global-batch",
        type=_global_batch,
        metavar="N",
        help="samples a step: find micro-batch, accumulation and recompute together",
    )
    group.add_argument("--batches", type=_batch_list, metavar="N,N,...", help="tune and compare exactly these batches")
    parser.add_argument(
        "--accumulation-flag",
        metavar="FLAG",
        help="with --global-batch: the script's flag that takes the passes of a step (default: the one it has)",
    )
    _add_limit_and_study(parser)
    _add_longest(parser)
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="share the study with other workers: a database of Optuna, such as postgresql://USER@HOST/DATABASE "
        f"(default: {STORAGE_VARIABLE}, else a file in the study's folder)",
    )
    parser.add_argument(
        "--max-trials", type=_positive, default=40, metavar="N", help="configs to measure at most (default 40)"
    )
    parser.add_argument("--timeout", metavar="TIME", help="end with an answer within this time, such as 30m")
    parser.add_argument(
        "--train-for",
        metavar="TIME",
        help="length of the training that the answer is for, such as 10h: what measuring on would gain over it is held "
        "against what that takes (default 1h)",
    )
    parser.add_argument("--steps", type=_positive, default=2, metavar="N", help="timed steps of a trial (default 2)")
    parser.add_argument("--warmup", type=_positive, default=2, metavar="N", help="steps before them (default 2)")
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default=SAMPLERS[0], help="what chooses the next trial (default model)"
    )
    parser.add_argument("--fresh", action="store_true", help="take nothing over from other studies")
    parser.add_argument(
        "--knobs", action="store_true", help="then try other settings on the winner, which takes fresh processes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(storage_of_environment=os.environ.get(STORAGE_VARIABLE))


def _add_longest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--longest",
        type=_length,
        metavar="TOKENS",
        help="tune for batches of every length up to this one: the config of the longest, and faster ones for shorter",
    )


def _add_train(verbs: Any) -> None:
    parser = _add_job(
        verbs,
        "train",
        "train.run",
        help="train, and tune in the first steps of that training",
        description="Trains the unmodified script to its own end. Its first steps are trials:\n"
        "each runs a config that is very likely to fit. The fastest then stays on. A trial step\n"
        "can still run out of memory. For plain PyTorch, in one process or several ranks.",
        epilog="example:\n  autorecompute train train.py --memory-limit 40GiB -- --epochs 3",
    )
    _add_limit_and_study(parser)
    _add_longest(parser)
    parser.add_argument(
        "--tuning-steps",
        type=_positive,
        default=40,
        metavar="N",
        help="spend so many steps on trials at most, and 5 %% of those that a scheduler lets expect (default 40)",
    )
    parser.add_argument(
        "--launcher", default="", metavar="COMMAND", help='what starts the ranks, such as "torchrun --nproc-per-node 2"'
    )
    parser.set_defaults(batch_flag=None)


def _add_plans(verbs: Any) -> None:
    parser = _add_job(
        verbs,
        "plans",
        "plans.run",
        help="what could be recomputed, and what it would save",
        description="Runs the script up to its first training step and prints what could be recomputed.",
        epilog="example:\n  autorecompute plans train.py --batch 32 --details -- --epochs 1",
    )
    _add_trial_options(parser)
    parser.add_argument("--batch", type=_positive, metavar="N", help="state savings at this batch")
    parser.add_argument(
        "--dim",
        type=_dimension,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="state savings at this size of another dimension, such as sequence=512; may be repeated",
    )
    parser.add_argument("--details", action="store_true", help="print which activations the plans are about, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all of it")
    parser.add_argument(
        "--fake",
        action="store_true",
        help="run the script on fake tensors, which have no data: for models too large for this machine",
    )
    parser.add_argument(
        "--card",
        metavar="NAME,...",
        help="with --fake: take the kernels of this card, and tell what PyTorch's allocator would reserve on it; "
        "several, such as 4090,H100,24GiB, make one table",
    )
    parser.add_argument(
        "--ranks",
        type=_positive,
        default=0,
        metavar="N",
        help="with --fake: simulate the first of N ranks that train together",
    )
    peak = parser.add_argument_group("the peak, predicted without training")
    peak.add_argument("--peak", action="store_true", help="memory over one step, and what each plan saves at the peak")
    peak.add_argument(
        "--with",
        dest="beside",
        metavar="CONFIG",
        help="--peak, and this config beside no recompute: all, none, another preset, numbers of plans like "
        "1,4, or a file of plans (default: what the environment switches on, else all)",
    )
    peak.add_argument(
        "--batches",
        type=_batch_list,
        default=(),
        metavar="N,N,...",
        help="the peak of each preset at each of these batches",
    )
    peak.add_argument(
        "--longest", type=_length, metavar="TOKENS", help="the peak of batches of this length, and shorter"
    )
    peak.add_argument("--picture", type=Path, metavar="FILE", help="draw both timelines: .png, .svg or .pdf")
    peak.add_argument("--memory-limit", metavar="SIZE", help="does it fit, and with what: 40GiB, 900MiB")
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help="problems only, the summary, details; the training system's own log goes to stderr (default: what its own "
        "variable says)",
    )


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--why", action="store_true", help="tell which part differs from the nearest stored study")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_show(verbs: Any) -> None:
    parser = _add(
        verbs,
        "show",
        "studies.run_show",
        help="the table of a study, or the studies there are",
        description="Prints every trial of a study and its answer; without STUDY, the studies in ./studies.",
    )
    parser.add_argument("study", nargs="?", metavar="STUDY", help=STUDY)
    _add_show_arguments(parser)


def _add_report(verbs: Any) -> None:
    parser = _add(
        verbs,
        "report",
        "answers.run_report",
        help="a study as one HTML page",
        description="Writes one HTML page that needs nothing from elsewhere: what to use, what it buys, why, how sure.",
        epilog="example: autorecompute report bert -o bert.html",
    )
    parser.add_argument("study", metavar="STUDY", help=STUDY)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="where to (default: report.html in the study's folder)"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


def _add_studies(verbs: Any) -> None:
    parser = verbs.add_parser(
        "studies",
        help="list, move and remove studies",
        description="Lists, exports, imports and removes the studies in ./studies.",
        epilog="example: autorecompute studies export bert -o bert.jsonl.gz",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _add(actions, "list", "studies.run_list", help="the studies there are")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    show = _add(actions, "show", "studies.run_show", help="every trial of a study, and its answer")
    show.add_argument("study", metavar="STUDY", help=STUDY)
    _add_show_arguments(show)
    export = _add(
        actions,
        "export",
        "studies.run_export",
        help="a study as one portable file",
        description="Writes all that a study measured as JSON lines: no logs, no absolute paths, no pickle. Its "
        "command is in it, with the arguments.",
    )
    export.add_argument("study", metavar="STUDY", help=STUDY)
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="compressed where it ends in .gz")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    importing = _add(actions, "import", "studies.run_import", help="a study from such a file")
    importing.add_argument("file", type=Path, metavar="FILE", help="what 'studies export' wrote; - reads it from stdin")
    importing.add_argument("--study", metavar="NAME", help="what to call it (default: as it was called)")
    importing.add_argument("--force", action="store_true", help="replace a study of this name")
    delete = _add(actions, "delete", "studies.run_delete", help="remove studies")
    delete.add_argument("studies", nargs="+", metavar="STUDY", help="names of studies, or paths of their folders")
    delete.add_argument("--force", action="store_true", help="ask nothing")
    prune = _add(
        actions,
        "prune",
        "studies.run_prune",
        help="remove what reuse does not need",
        description="Removes the output of finished studies' processes, studies that measured nothing, and what "
        "commands that were ended have left.",
    )
    prune.add_argument("--dry-run", action="store_true", help="only print what would go, and its size")


EMIT_EXAMPLES = """examples:
  eval "$(autorecompute emit bert)"                              for this shell
  autorecompute emit bert --format dotenv -o bert.env            for docker run --env-file bert.env
  autorecompute emit bert --format json                          for a program
  autorecompute emit plans.json --unmeasured blocks -o some.json what plans --fake --json showed, before any step
"""


def _add_emit(verbs: Any) -> None:
    parser = _add(
        verbs,
        "emit",
        "answers.run_emit",
        help="print the variables to train with",
        description="Prints the variables to train with. Comments say what else the script needs.",
        epilog=EMIT_EXAMPLES,
    )
    parser.add_argument("study", metavar="STUDY", help=f"{STUDY}; with --unmeasured a file")
    parser.add_argument(
        "--format", choices=("shell", "dotenv", "json", "python"), help="default: shell; json with --unmeasured"
    )
    parser.add_argument(
        "--unmeasured",
        metavar="CONFIG",
        help="give out a config that was only planned, marked as unmeasured: a preset, best, or the hash of a config "
        "of the frontier, from the file that 'plans --fake --json' printed",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write this file instead of printing")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


RUN_EXAMPLES = """examples:
  autorecompute run bert -- python train.py --batch-size 32
  autorecompute run bert -- torchrun --nproc-per-node 2 train.py --batch-size 32

The command gets the study's variables and AUTORECOMPUTE_BATCH_SIZE, and its Python processes are prepared for the
config as the study's trials were. The batch is yours to give, as when the study was tuned. Python with -I, -S or -E
cannot be prepared.
"""


def _add_run(verbs: Any) -> None:
    parser = _add(
        verbs,
        "run",
        "answers.run",
        starts=True,
        help="train with the config of a study",
        description="Replaces itself by the command, with the study's config in the environment.",
        usage="%(prog)s [-h] STUDY -- COMMAND [ARGUMENT ...]",
        epilog=RUN_EXAMPLES,
    )
    parser.add_argument("study", metavar="STUDY", help=STUDY)


CHECK_EPILOG = """example:
  autorecompute check bert -- train.py --batch-size 32

exit codes:
  0 the config is valid here, 4 it is not or could not be confirmed, 5 the script fails, 2 there is no such study or
  the command gives another batch, 3 the machine or the installation lacks something.
"""


def _add_check(verbs: Any) -> None:
    parser = _add(
        verbs,
        "check",
        "check.run",
        starts=True,
        help="is a study's config still valid here?",
        description="Runs a few steps under the config and compares plans, peak, gradients and speed with the study's.",
        usage="%(prog)s [-h] [--steps N] [--json] STUDY -- [COMMAND] SCRIPT [ARGUMENT ...]",
        epilog=CHECK_EPILOG,
    )
    parser.add_argument("study", metavar="STUDY", help=STUDY)
    parser.add_argument("--steps", type=_positive, default=3, metavar="N", help="timed steps (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


DOCTOR_EXAMPLES = """examples:
  autorecompute doctor           what is installed, what is missing, and the command that repairs it
  autorecompute doctor --fix     build what can be built here first
  autorecompute doctor --json    for a program
"""


def _add_doctor(verbs: Any) -> None:
    parser = _add(
        verbs,
        "doctor",
        "doctor.run",
        help="what is installed, what is missing, and the repair",
        description="Looks at every piece that training needs. Exit code 3 where nothing can train.",
        epilog=DOCTOR_EXAMPLES,
    )
    parser.add_argument("--backend", choices=tuple(PACKAGES), help="look at what this training system needs alone")
    parser.add_argument("--fix", action="store_true", help="build what is missing and can be built here, then look")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
