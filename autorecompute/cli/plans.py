"""`plans`: shows what a script could recompute, and the peaks that this would have."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from autorecompute import codec
from autorecompute.backends.registry import AUTO, backend_of, find_card, gather, plain_name
from autorecompute.cli.parsers import LEVELS, asked_job, parse_limit
from autorecompute.errors import NothingFitsError, ScriptError, SetupError, UsageError, WrongBatchError
from autorecompute.files import shown
from autorecompute.plans import Config, choose_config
from autorecompute.plans.savings import SEQUENCE
from autorecompute.reports import plans_text as text
from autorecompute.reports.charts import require_picture_file, save_picture
from autorecompute.reports.console import make_console
from autorecompute.reports.peak_view import PeakView
from autorecompute.reports.plans_json import Overview, Plans
from autorecompute.reports.plans_text import choose_dims
from autorecompute.search.candidates import predict_frontier
from autorecompute.trials import Bench, following
from autorecompute.trials.private import make_private_folder
from autorecompute.tuning.searcher_factory import PROFILED_BATCH, informative_configs, survey
from autorecompute.units import format_bytes
from autorecompute.waiting import interruptible
from autorecompute.worker.protocol import MODULE_FLAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autorecompute.backends.interface import ControllerBackend
    from autorecompute.memory import MemoryModel
    from autorecompute.plans import Space
    from autorecompute.training_job import Detection
    from autorecompute.trials import Job


DETECTION_BATCH = 8
"""Plans do not depend on the batch: a script that takes one is given no more than this to find them."""

STEPS_A_CONFIG = 2  # one to warm up, one to profile


def look(args: argparse.Namespace, level: str | None) -> tuple[list[Overview], PeakView | None]:
    """Return the overview of each rank, the first one first, and the view of its peak, if that is wanted."""
    limit_bytes = parse_limit(args.memory_limit)
    if args.card is not None and not args.fake:
        raise UsageError("--card says what fake tensors stand for. Add --fake, or leave it out.")
    if args.ranks and not args.fake:
        raise UsageError("--ranks says how many ranks fake tensors stand for. Add --fake, or start them by --launcher.")
    job = _on_fakes(asked_job(args), args) if args.fake else asked_job(args)
    if job.takes_batch and args.batch is None and args.batches:
        args.batch = args.batches[0]
    if job.takes_batch and args.batch is None:
        raise UsageError("The script's arguments take a batch and none is given. Add --batch N.")
    if args.picture is not None:
        require_picture_file(args.picture)
    if args.launcher and _peak_options(args):
        raise UsageError("One process is profiled at a time: leave out --launcher, or --peak and --memory-limit.")
    if args.log_level is not None:
        os.environ |= dict.fromkeys(gather("LOG_VARIABLES"), args.log_level.upper())
    follows = level not in {None, "warning"} and not args.debug_script
    try:
        return _look_at(_small_batch(job, args), job, args, limit_bytes, follows=follows)
    except WrongBatchError:
        if job.takes_batch:
            raise
        # Nobody asked for the small batch: a script without a DataLoader is profiled at its own.
        return _look_at(None, job, args, limit_bytes, follows=follows)


def _on_fakes(job: Job, args: argparse.Namespace) -> Job:
    """Return the job with the backend that runs on fake tensors."""
    plain = plain_name()
    if args.backend not in {AUTO, plain}:
        raise UsageError(f"Only plain PyTorch runs on fake tensors. Leave out --backend {args.backend}, or --fake.")
    if args.launcher:
        raise UsageError("One process runs on fake tensors. Leave out --launcher, or --fake; --ranks N stands for it.")
    card: str | None = None if args.card is None else find_card(args.card)
    if args.card is not None and card is None:
        raise UsageError(
            f"The card {shown(args.card)} is not known. Give its memory, such as 24GiB, or choose among: "
            f"{', '.join(gather('CARDS'))}."
        )
    return replace(job, backend=plain, fakes=True, card=card or "", ranks=args.ranks)


def _look_at(
    batch: int | None, job: Job, args: argparse.Namespace, limit_bytes: int | None, *, follows: bool
) -> tuple[list[Overview], PeakView | None]:
    with _bench(batch, job, follows=follows, debugs=args.debug_script) as bench:
        detections = bench.detect_ranks()
        asked = [(detection, choose_dims(detection, args.batch, args.dim)) for detection in detections]
        overviews = [
            Overview(
                detection=detection,
                offer=backend_of(detection.versions).offer(detection, os.environ, dims),
                dims=dims,
                command=_tune_command(args, job),
            )
            for detection, dims in asked
        ]
        view = _survey(args, bench, overviews[0], limit_bytes) if _peak_options(args) else None
    return overviews, view


def _peak_options(args: argparse.Namespace) -> list[str]:
    """Return the options among those given that need the peak of a step."""
    given = {
        "--peak": args.peak,
        "--with": args.beside is not None,
        "--memory-limit": args.memory_limit is not None,
        "--picture": args.picture,
        "--batches": args.batches,
        "--card": args.card,
        "--ranks": args.ranks,
        "--longest": args.longest,
    }
    return [option for option, is_given in given.items() if is_given]


@contextlib.contextmanager
def _bench(batch: int | None, job: Job, *, follows: bool, debugs: bool) -> Iterator[Bench]:
    print(f"running {job.script} up to its first training step", file=sys.stderr, flush=True)
    logs = make_private_folder("plans-")
    try:
        # A crash must not keep its last words back: what is to be seen is passed on while it is written.
        follower = following(logs, sys.stderr.buffer) if follows else contextlib.nullcontext()
        # Followed inside the bench: what a launcher has to say of being ended is of no interest.
        with interruptible(), Bench(job, batch, logs, debugs=debugs) as bench, follower:
            bench.output_at = "Its output is above."
            yield bench
    except ScriptError:
        if not follows:
            # The folder goes. A worker that was replaced has a log of its own.
            for log in sorted(logs.iterdir()):
                sys.stderr.write(log.read_text(errors="replace"))
        raise
    finally:
        shutil.rmtree(logs, ignore_errors=True)


def _small_batch(job: Job, args: argparse.Namespace) -> int | None:
    """Return the batch that the script is run at; ``None`` for its own."""
    if job.fakes:
        batch: int | None = args.batch
        return batch
    if _peak_options(args):
        return PROFILED_BATCH
    return min(args.batch, DETECTION_BATCH) if args.batch is not None and job.takes_batch else None


def _survey(args: argparse.Namespace, bench: Bench, overview: Overview, limit_bytes: int | None) -> PeakView:
    detection, space = overview.detection, overview.detection.space
    backend = backend_of(detection.versions)
    config = overview.offer.config if overview.offer.is_on else space.all_on
    if args.beside is not None:
        config = choose_config(args.beside, space, overview.plans)
    if args.longest is not None and backend.memory_by_length(detection) is None:
        raise UsageError(f"The backend {backend.NAME} cannot give batches another length. Leave --longest out.")
    known = backend.memory_of(detection)
    if known is None and backend.memory_model is None:
        options, notes = " and ".join(_peak_options(args)), "".join(f"\n  {note}" for note in overview.offer.notes)
        raise SetupError(
            f"No peak can be forecast for this model. Leave out {options} to see its plans, or measure them: "
            f"{overview.command}{notes}"
        )
    if known is not None and args.fake and limit_bytes is not None:
        _require_room_at_rest(known, overview, limit_bytes)
    model, config = (known, config) if known is not None else _profile(bench, space, config, backend)
    dims = {**model.dims, **overview.dims}
    return PeakView(
        model=model,
        config=config,
        dims=dims,
        limit_bytes=limit_bytes,
        command=overview.command,
        batches=args.batches,
        frontier=() if known is None else predict_frontier(known, dims),
        by_length={} if known is None or args.longest is None else _by_length(backend, detection, known),
    )


def _by_length(backend: ControllerBackend, detection: Detection, longest: MemoryModel) -> dict[int, MemoryModel]:
    shorter = backend.memory_by_length(detection) or {}
    return {**dict(sorted(shorter.items())), detection.dims[SEQUENCE]: longest}


def _profile(bench: Bench, space: Space, config: Config, backend: ControllerBackend) -> tuple[MemoryModel, Config]:
    """Profile steps, and return what they tell with the config, or with no recompute where it could not be profiled."""
    configs = informative_configs(space, [config])
    print(f"profiling a step of each of {len(configs)} configs", file=sys.stderr)
    progress = track(configs, "profiling", console=Console(stderr=True), transient=True)
    found = survey(bench, _noticing_restarts(progress, bench))
    if config not in found.profiles:
        print(f"autorecompute: {space.describe(config)} could not be profiled and is not shown", file=sys.stderr)
        config = Config()
    assert backend.memory_model is not None, "this system profiles steps"
    return backend.memory_model(space, found), config


def _require_room_at_rest(model: MemoryModel, overview: Overview, limit_bytes: int) -> None:
    """Refuse a limit below what is held between two steps, which no recompute changes."""
    weights = overview.detection.resting_bytes
    rest = model.base_bytes({**model.dims, **overview.dims})
    if rest > limit_bytes:
        raise NothingFitsError(
            f"Between two steps {format_bytes(rest)} are held: {format_bytes(weights)} are weights, and the rest is "
            f"the optimizer's state and the batch. That is above the limit of {format_bytes(limit_bytes)}, and "
            "recompute takes nothing off it. Raise --memory-limit, or train fewer or smaller weights."
        )


def _noticing_restarts(configs: Iterable[Config], bench: Bench) -> Iterator[Config]:
    is_told = False
    for config in configs:
        yield config
        if bench.starts > 1 and not is_told:
            is_told = True
            told = f"the script ended and is started again: let it take {STEPS_A_CONFIG} steps a config"
            print(told, file=sys.stderr)


def _tune_command(args: argparse.Namespace, job: Job) -> str:
    options = {
        "target-batch": args.batch,
        "longest": args.longest,
        "memory-limit": args.memory_limit,
        "batch-flag": args.batch_flag,
        "launcher": (f"torchrun --nproc-per-node {args.ranks}" if args.ranks else args.launcher) or None,
        "backend": args.backend if args.backend != AUTO else None,
    }
    flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
    flags += ["--replace-checkpointing"] if args.replace_checkpointing else []
    flags += ["--exact"] if args.exact else []
    script = [MODULE_FLAG, str(args.script)] if args.is_module else [str(args.script)]
    rest = ["--", *job.arguments] if job.arguments else []
    return shlex.join(["autorecompute", "tune", *script, *flags, *rest])


def run(args: argparse.Namespace) -> None:
    """Detect, profile if that is wanted, and print."""
    level = args.log_level
    if level is None:
        word = next((os.environ[name] for name in gather("LOG_VARIABLES") if name in os.environ), "").lower()
        level = "warning" if word in {"error", "fatal"} else word if word in LEVELS else None
    if "," in (args.card or ""):
        _compare_cards(args, level)
        return
    overviews, view = look(args, level)
    for problem in overviews[0].offer.problems:
        print(f"autorecompute: {problem}", file=sys.stderr)
    if view is not None and args.picture is not None:
        save_picture(view, args.picture)
    if args.json:
        print(codec.dumps(Plans.of(overviews, view)))
    else:
        _print(args, level, overviews, view)


def _compare_cards(args: argparse.Namespace, level: str | None) -> None:
    """Look at the script on each of several cards, and print one table."""
    if args.json or args.picture is not None:
        raise UsageError("--json and --picture tell of one card. Name one with --card, or leave these out.")
    views: list[PeakView] = []
    for card in args.card.split(","):
        _, view = look(argparse.Namespace(**{**vars(args), "card": card.strip()}), level)
        assert view is not None, "a card's peak is asked for"
        views.append(view)
    text.print_cards(views, make_console())


def _print(args: argparse.Namespace, level: str | None, overviews: Sequence[Overview], view: PeakView | None) -> None:
    console = make_console()
    if level != "warning":
        text.print_summary(overviews[0], console, is_detailed=args.details)
    if args.details or level in {"devinfo", "verbose"}:
        for rank, overview in enumerate(overviews):
            text.print_details(overview, console, rank=rank if len(overviews) > 1 else None)
    if view is None:
        return
    if args.peak or args.beside is not None:
        text.print_peak(view, console, is_detailed=args.details)
        text.print_effects(view, console)
    if view.limit_bytes is not None:
        text.print_forecasts(view, console)
    text.print_lengths(view, console)
    if view.limit_bytes is not None or view.batches:
        text.print_frontier(view, console)
        text.print_batches(view, console)
    text.print_presets(view, console)
    text.print_rank(view, console)
