"""``autorecompute plans``: what could be recomputed, and what it would save."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.cli.batch_options import batch_list, positive
from autorecompute.cli.looking import log_variables, look, shows_peak
from autorecompute.cli.scripts import add_script_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.memory import PeakView
    from autorecompute.reports.overview import Overview

LEVELS = ("verbose", "devinfo", "info", "warning")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "plans",
        help="what could be recomputed, and what it would save",
        description="Runs the script up to its first training step and prints what could be recomputed.",
        epilog="example:\n  autorecompute plans train.py --batch 32 --details -- --epochs 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_script_arguments(parser)
    parser.add_argument("--batch", type=positive, metavar="N", help="state savings at this batch")
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
        metavar="NAME",
        help="with --fake: take this card's kernels, and tell what PyTorch's allocator would reserve on it: H100, A100",
    )
    parser.add_argument(
        "--ranks",
        type=positive,
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
        type=batch_list,
        default=(),
        metavar="N,N,...",
        help="the peak of each preset at each of these batches",
    )
    peak.add_argument("--picture", type=Path, metavar="FILE", help="draw both timelines: .png, .svg or .pdf")
    peak.add_argument("--memory-limit", metavar="SIZE", help="does it fit, and with what: 40GiB, 900MiB")
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help="problems only, the summary, details; the training system's own log goes to stderr (default: what its own "
        "variable says)",
    )
    parser.set_defaults(run=run)


def _dimension(text: str) -> tuple[str, int]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not written like sequence=512")
    return name, positive(value)


def run(args: argparse.Namespace) -> int:
    """Detect, profile if that is wanted, and print."""
    from autorecompute import codec
    from autorecompute.reports.picture import save_picture
    from autorecompute.reports.plans_json import Plans

    level = args.log_level or _level_in_environment()
    overviews, view = look(args, level)
    for problem in overviews[0].offer.problems:
        print(f"autorecompute: {problem}", file=sys.stderr)
    if view is not None and args.picture is not None:
        save_picture(view, args.picture)
    if args.json:
        print(codec.dumps(Plans.of(overviews, view)))
    else:
        _print(args, level, overviews, view)
    return 0


def _print(args: argparse.Namespace, level: str | None, overviews: Sequence[Overview], view: PeakView | None) -> None:
    from autorecompute.reports.estimates import print_presets
    from autorecompute.reports.forecasts import (
        print_batches,
        print_effects,
        print_forecasts,
        print_frontier,
    )
    from autorecompute.reports.peak import print_peak
    from autorecompute.reports.plans_text import print_details, print_summary
    from autorecompute.reports.ranks import print_rank

    if level != "warning":
        print_summary(overviews[0])
    if args.details or level in {"devinfo", "verbose"}:
        for rank, overview in enumerate(overviews):
            print_details(overview, rank=rank if len(overviews) > 1 else None)
    if view is not None and shows_peak(args):
        print_peak(view, is_detailed=args.details)
        print_effects(view)
    if view is not None and view.limit_bytes is not None:
        print_forecasts(view)
    if view is not None and (view.limit_bytes is not None or view.batches):
        print_frontier(view)
        print_batches(view)
    if view is not None:
        print_presets(view)
        print_rank(view)


def _level_in_environment() -> str | None:
    word = next((os.environ[name] for name in log_variables() if name in os.environ), "").lower()
    return "warning" if word in {"error", "fatal"} else word if word in LEVELS else None
