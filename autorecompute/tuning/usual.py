"""Compares the answer with what people do by hand: gradient checkpointing of all blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.figures import LEAST_RATIO, Comparison, Figures
from autorecompute.measurement import Outcome
from autorecompute.trials.bench import drifts, takes_turns
from autorecompute.tuning.budget import Task
from autorecompute.tuning.race import CARD_ROUND_EFFORT, ROUND_EFFORT, round_steps
from autorecompute.tuning.rivals import LEAST_PAIRS, PAIR_IN_PLACE, PAIRS, PAIRS_IN_PLACE, compare_in_pairs, figures_of

if TYPE_CHECKING:
    from autorecompute.plans import Config
    from autorecompute.result import Result
    from autorecompute.tuning.context import TuningContext


LEAST_PAIRS_IN_PLACE = 3
"""The ratio is the first figure that anyone reads: two pairs tell who is faster, and not by how much."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Gradient checkpointing of all blocks at the answer's batch, and how the answer compares with it."""

    figures: Figures
    comparison: Comparison | None = None


def usual_config(context: TuningContext) -> Config | None:
    """Return the config that people switch on by hand; ``None`` where the model has no such preset."""
    detection = context.detection
    return detection.space.presets.get(backend_of(detection.versions).USUAL_PRESET)


def compare_with_usual(context: TuningContext, config: Config, limit_bytes: int) -> Usual | None:
    """Compare a config with gradient checkpointing in the process that lives, in pairs.

    ``None`` where the model has no blocks, or there is no time. One that does not hold the limit is not compared.
    """
    bench, budget, usual = context.bench, context.budget, usual_config(context)
    starts = [] if bench.is_live else [Task.START]
    if usual is None or not budget.allows(*starts, *PAIR_IN_PLACE):
        return None
    context.note("comparing with gradient checkpointing of all blocks, in the same process")
    first = replace(ROUND_EFFORT if drifts(bench) else CARD_ROUND_EFFORT, steps=round_steps(bench))
    in_turns = takes_turns(bench)
    effort = replace(first, warmup=0) if in_turns else first
    measured = bench.measure(usual, first).under(limit_bytes)
    begun = bench.starts

    def may_go_on() -> bool:
        # A process that ended is not started again for this.
        return bench.starts == begun and bench.is_live and budget.allows(*PAIR_IN_PLACE)

    def run(one: Config) -> float | None:
        found = bench.measure(one, effort)
        return found.samples_per_second if found.outcome is Outcome.OK else None

    figures = replace(figures_of(measured), batch=context.problem.batch)
    if measured.outcome is not Outcome.OK or usual == config or not may_go_on():
        return Usual(figures)
    own, others = run(config), measured.samples_per_second
    if not own or not others:
        return Usual(figures)
    comparison = compare_in_pairs(
        lambda: run(config),
        lambda: run(usual),
        own / others,
        least_ratio=LEAST_RATIO,
        are_neighbours=in_turns,
        has_time=may_go_on,
        least=LEAST_PAIRS_IN_PLACE if in_turns else LEAST_PAIRS,
        most=PAIRS_IN_PLACE if in_turns else PAIRS,
    )
    return Usual(figures, comparison)


def recall_usual(earlier: Result | None, config: Config) -> Usual | None:
    """Return an earlier session's comparison of the same config; ``None`` without one."""
    if earlier is None or earlier.best is None or earlier.best.config != config or earlier.checkpointing is None:
        return None
    return Usual(earlier.checkpointing, earlier.beside_checkpointing)
