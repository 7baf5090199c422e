"""A batch without recompute, in a fresh process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import ScriptError
from autorecompute.measurement import Outcome
from autorecompute.tuning.answer.rivals import figures_of
from autorecompute.tuning.budget import Task
from autorecompute.units import format_bytes, format_rate

if TYPE_CHECKING:
    from autorecompute.figures import Figures
    from autorecompute.measurement import Measurement
    from autorecompute.studies.batch_studies import BatchRecord
    from autorecompute.tuning.context import TuningContext


def measure_without(context: TuningContext, batch: int, limit_bytes: int, *, is_due: bool) -> Figures:
    """Return the figures of the batch, told to whoever watches.

    Args:
        context: What the tuning works with.
        batch: Samples a forward.
        limit_bytes: What its peak may reach.
        is_due: Whether the script has to bear the batch.

    Raises:
        ScriptError: it has to, and fails for another reason than memory.
    """
    context.note(f"batch {batch}: measuring without recompute")
    with context.budget.timing(Task.CONFIRMATION):
        measurement = _watch(context, batch).under(limit_bytes)
    outcome = measurement.outcome
    if not outcome.is_measured and not outcome.is_about_memory and is_due:
        raise ScriptError(
            f"The script fails at batch {batch} without any recompute. {measurement.message}\n"
            f"Outcome: {outcome}. Its output: {context.bench.log}"
        )
    figures = replace(figures_of(measurement), batch=batch)
    speed = f", {format_rate(figures.samples_per_second)}" if figures.samples_per_second else ""
    context.note(f"batch {batch}: {figures.outcome}, peak {format_bytes(figures.peak_bytes)}{speed}")
    return figures


def _watch(context: TuningContext, batch: int) -> Measurement:
    """Return a fresh process, and a second one where that was lost."""
    measurement = context.watch({}, batch)
    return context.watch({}, batch) if measurement.outcome is Outcome.LOST else measurement


def lost(record: BatchRecord) -> list[int]:
    """Return the batches whose processes were lost: nothing is known of them."""
    return [figures.batch for figures in record.without if figures.batch and figures.outcome is Outcome.LOST]


def without_lost(record: BatchRecord) -> BatchRecord:
    """Return what another run may build on: it measures again what was lost."""
    gone = lost(record)
    known = tuple(figures for figures in record.without if figures.batch not in gone)
    return replace(record, without=known, is_complete=record.is_complete and not gone)
