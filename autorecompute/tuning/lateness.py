"""Sentences for a tuning whose time was over before its first trial: what is kept, and how much time to give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autorecompute.studies.batch_studies import read_batches
from autorecompute.studies.storage import read_trials
from autorecompute.units import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.studies import StudyFolder

OUT_OF_TIME = "The time was over before the first trial. Give it more with --timeout."
OUT_OF_TIME_AGAIN = "The time was over before another batch was done. Give it more with --timeout."

STARTS_OF_AN_ANSWER = 4
"""The script is started twice for an answer, to be measured and to be confirmed; what lies between takes about as long
in a script that starts in seconds."""


def explain_too_little_time(start_seconds: float, waited_seconds: float = 0.0, kept: str = "") -> str:
    """Return that there was no time for a single trial, and how much to try.

    Args:
        start_seconds: What a start of the script took; 0 where none came to its end.
        waited_seconds: What the wait for the device took, while another tuning held it.
        kept: What :func:`explain_kept` says; empty where nothing was measured before.
    """
    return f"{_explain_lateness(start_seconds, waited_seconds, 'another' if kept else 'the first')} {kept}".rstrip()


def explain_kept(folder: StudyFolder) -> str:
    """Return what is kept of earlier sessions, and that it counts; empty where there is nothing."""
    trials = read_trials(folder.database, folder.name_in_database)
    if not trials:
        return ""
    return f"{format_count(len(trials), 'trial')} kept in {folder.path}. Rerun the command to continue."


def explain_unconfirmed(folder: StudyFolder) -> str:
    """Return what a training found and no process has confirmed, which stays in the study.

    Empty where there is nothing.
    """
    result = folder.result()
    if result is None or result.best is None or result.best.confirmed:
        return ""
    return f"What a training found is not confirmed yet: {result.best.description}."


def _explain_lateness(start_seconds: float, waited_seconds: float, which: str) -> str:
    if waited_seconds > start_seconds:
        return (
            f"The time was over before {which} trial: {format_seconds(waited_seconds)} of it went into waiting for "
            "the device, which another tuning held. Run the same command once that is through, or give it as much more "
            "with --timeout."
        )
    if not start_seconds:
        return f"The time was over before {which} trial. Give it more with --timeout."
    enough = math.ceil(STARTS_OF_AN_ANSWER * start_seconds)
    return (
        f"The time was over before {which} trial: a start of the script takes {format_seconds(start_seconds)}, and "
        f"an answer two of them and some trials. Give it about --timeout {enough}s at least."
    )


def explain_late_batches(folder: StudyFolder, batches: Sequence[int]) -> str:
    """Return that the time of a tuning over several batches was over before a batch was done, and what is kept.

    Args:
        folder: The study that stands for all batches.
        batches: Those that were asked for.
    """
    if not read_batches(folder, batches).without:
        return OUT_OF_TIME
    return f"{OUT_OF_TIME_AGAIN} What was measured is kept in {folder.path}. Rerun the command to continue."
