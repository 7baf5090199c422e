"""What every verb takes that starts the user's script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.backends.registry import AUTO, PACKAGES
from autorecompute.cli.parsing import add_rest
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from autorecompute.trials import Job


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every verb that starts the user's script takes."""
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the training script")
    add_rest(parser)
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("--batch-flag", metavar="FLAG", help="the script's flag that takes the batch")
    parser.add_argument("--launcher", default="", metavar="COMMAND", help="what starts the script instead of python")
    parser.add_argument(
        "--backend",
        choices=(AUTO, *PACKAGES),
        default=AUTO,
        help="the training system that recomputes (default: the one that the script uses)",
    )
    add_replacement(parser)
    parser.add_argument(
        "--debug-script", action="store_true", help="leave the terminal to the script, for breakpoint() and pdb in it"
    )


def add_replacement(parser: argparse.ArgumentParser) -> None:
    """Add what switches the script's own checkpointing off."""
    parser.add_argument(
        "--replace-checkpointing",
        action="store_true",
        help="switch off the checkpointing that the script does itself, such as gradient_checkpointing=True, and "
        "recompute in its place",
    )


def asked_job(args: argparse.Namespace) -> Job:
    """Return what the arguments of every such verb ask to train.

    Raises:
        UsageError: there is no such script, its launcher cannot be read, or the backend replaces no checkpointing.
    """
    from autorecompute.backends.registry import plain_name
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
    )
