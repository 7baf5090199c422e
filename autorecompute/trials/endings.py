"""Endings of workers, as measurements or sentences."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.backends.registry import render
from autorecompute.errors import AutorecomputeError, ScriptError, SetupError, TooLargeError, UsageError, WrongBatchError
from autorecompute.measurement import Measurement, Outcome
from autorecompute.ranges import NEGLIGIBLE_SHARE
from autorecompute.worker.protocol import Ended, Failed, Message

if TYPE_CHECKING:
    from autorecompute.plans import Config
    from autorecompute.training_job import Detection

LEAST_ROOM_BYTES = 16 * 1024
"""On a disk with less a script cannot print, and fails of that."""

NO_MEMORY = "killed by the kernel, which ran out of memory"
IN_BACKGROUND = (
    "The script's process ended and left one behind that it had forked, as a daemon does, and only the script's own "
    "process is measured. Train in the foreground, and leave the background to the shell or a service manager."
)
NO_RANKS = (
    "The launcher sets no RANK: two of its processes are rank {rank}. Have it set RANK and WORLD_SIZE for each, as "
    "torchrun does."
)
ABSENT = (
    "WORLD_SIZE tells of {of} ranks, and {came} came within {seconds:.0f} s. Start them all with --launcher, as in "
    '--launcher "torchrun --nproc-per-node 2", or unset WORLD_SIZE.'
)
AT_ONCE = (
    "It called os._exit(0) or the like, which ends a process at once. Train in it first, and not in a thread that "
    "this ends."
)

TAIL_LINES = 5
BUSY = "host busy"
LAST_WORDS_LINES = 60
"""A launcher adds forty lines of its own to the last words of a rank."""


def as_measurement(message: Message) -> Measurement:
    """Return a measurement for a worker's last message, which was another one.

    Raises:
        SetupError: the installation does not allow training.
    """
    if isinstance(message, Failed):
        if message.is_setup:
            raise SetupError(message.message)
        return Measurement(outcome=message.outcome, message=message.message, trace=message.trace)
    if isinstance(message, Ended):
        text = f"the script ended by itself after {message.steps} steps, with exit code {message.exit_code}"
        said = f": {message.message}" if message.message else ""
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message=f"{text}{said}")
    return as_measurement(_as_failed(message))


def unwritable(config: Config, detection: Detection) -> Measurement | None:
    """Return the failure of a config that no process could be given; ``None`` where one can.

    Raises:
        SetupError: these versions read no config at all.
    """
    try:
        render(config, (), detection.versions, Path())
    except UsageError as error:
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message=str(error))
    return None


def too_short(message: Message, steps: int, where: str) -> ScriptError:
    """Return the error of a script that ended by itself before it had taken the steps of one trial."""
    assert isinstance(message, Ended), "only an end is too short"
    # Where live tensors are counted, that takes one step more.
    least = max(steps, message.steps) + 1
    return ScriptError(
        f"The script ended after {message.steps} steps; a trial needs at least {least}. Let it train longer, ask for "
        f"fewer with --steps and --warmup, or check that its data fills batches of the target's size. "
        f"{where}"
    )


def failure_to_start(message: Message, log: Path, output: str, where: str) -> AutorecomputeError:
    """Return the error of a worker that came to no training session."""
    if not output:
        where = "It printed nothing."
    if not isinstance(message, Failed | Ended):
        message = _as_failed(message)
    if isinstance(message, Failed) and message.is_setup:
        return SetupError(message.message)
    if shutil.disk_usage(log.parent).free < LEAST_ROOM_BYTES:
        return SetupError(
            f"The disk is full at {log}, where the script writes. Trials so far are kept: free some space and run the "
            "same command again."
        )
    if isinstance(message, Failed) and (message.is_usage or message.outcome is Outcome.WRONG_BATCH):
        return (UsageError if message.is_usage else WrongBatchError)(message.message)
    if isinstance(message, Failed):
        kind = TooLargeError if message.outcome.is_about_memory else ScriptError
        return kind(f"{_describe_failure(message, output)}Outcome: {message.outcome}. {where}")
    if message.exit_code:
        return ScriptError(
            f"The script left with exit code {message.exit_code} before it trained. Check its arguments, which "
            f"follow --.{_quote(output, TAIL_LINES)}{where}"
        )
    return ScriptError(f"The script ended before it trained. {message.advice} {where}")


def _as_failed(message: Message) -> Failed:
    """Return the failure for a message that was no answer."""
    return Failed(outcome=Outcome.CRASH, message=f"unexpected message from the worker: {type(message).__name__}")


def _describe_failure(failed: Failed, output: str) -> str:
    """Return the script's own traceback, what the worker said of the failure, or its last words where it died of it."""
    if failed.trace:
        trace = "".join(f"  {line}\n" for line in failed.trace)
        return f"The script fails before it trains. {failed.message}\n{trace}"
    if failed.message.endswith("."):
        return f"{failed.message} "
    return f"The script fails before it trains: {failed.message}.{_quote(output, LAST_WORDS_LINES)}"


def _quote(output: str, lines: int) -> str:
    tail = "".join(f"  {line}\n" for line in output.splitlines()[-lines:])
    return f" It printed last:\n{tail}" if tail else " "


def mark_busy_host(measurement: Measurement) -> Measurement:
    """Return the measurement, marked where other processes had more than a negligible share of the cores."""
    share = measurement.others_share
    others = tuple(mark for mark in measurement.marks if not mark.startswith(BUSY))
    if share is None or share <= NEGLIGIBLE_SHARE:
        return replace(measurement, marks=others)
    return replace(measurement, marks=(*others, f"{BUSY}: {100 * share:.0f} % of the cores by others"))
