"""Configs under a knob that remakes the training graph, or the way plans are looked for in it.

ORT ignores plans that it does not find, without a word: a config that lost half of its plans would be compared as if it
had them. So the plans are detected again under the knob, and gradients are compared there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.extra import OrtDetection
from autorecompute.backends.ortmodule.grammar import RECOMPUTE, Level, level_of, option_of
from autorecompute.knobs import Setup
from autorecompute.measurement import GradientCheck, Measurement
from autorecompute.plans import Config, Space
from autorecompute.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Detection
    from autorecompute.plans import Plan
    from autorecompute.trials import Bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setup under a knob.

    Attributes:
        setup: What to train with.
        message: What its config has to do with the one it came from; empty where they are the same plans.
        gradients: Its gradients beside those without recompute; ``None`` where nothing is recomputed.
    """

    setup: Setup
    message: str = ""
    gradients: GradientCheck | None = None


def find_candidates(
    bench: Bench, turned: Setup, before: Detection, *, within_layers: bool, adds_all: bool
) -> list[Candidate]:
    """The setup's config as far as it exists under its variables, and on demand that of all plans there.

    Args:
        bench: Where processes see the variables.
        turned: What is wanted.
        before: What was detected without any of them.
        within_layers: Whether plans are looked for within the boundaries of transformer layers there.
        adds_all: Whether all plans without compromise are a candidate, too.

    Raises:
        ScriptError: the script fails there.
        SetupError: the installation does not allow it.
        UsageError: the batch no longer reaches the model.
    """
    detection = bench.detect()
    plans = OrtDetection.of(detection).layer_plans if within_layers else detection.plans
    space = Space(plans=plans)
    messages = {_existing(turned.config, plans): _describe_loss(turned.config, before.plans, plans)}
    if adds_all:
        every = Config.of(plan for plan in plans if option_of(plan) == RECOMPUTE)
        messages.setdefault(every, "with all plans that there are then")
    return [
        Candidate(
            setup=replace(turned, config=config, description=space.describe(config)),
            message=message,
            gradients=check_gradients(bench, config),
        )
        for config, message in messages.items()
    ]


def _existing(config: Config, plans: Sequence[Plan]) -> Config:
    if level_of(config) is not Level.CHOSEN:
        return config
    return Config(config.choices & {choice for plan in plans for choice in plan.choices})


def _describe_loss(config: Config, before: Sequence[Plan], after: Sequence[Plan]) -> str:
    wanted = [plan for plan in before if config.has(plan)]
    nodes = {plan.id: plan.occurrences for plan in after}
    lost = sum(plan.id not in nodes for plan in wanted)
    changed = sum(nodes.get(plan.id, plan.occurrences) != plan.occurrences for plan in wanted)
    parts = [f"{lost} of the winner's {format_count(len(wanted), 'plan')} do not exist then"] if lost else []
    parts += [f"{changed} of them cover other nodes"] if changed else []
    return ", ".join(parts)


def check_gradients(bench: Bench, config: Config) -> GradientCheck | None:
    """The config's gradients beside those without recompute; ``None`` where nothing is recomputed.

    Args:
        bench: Where processes see the variables.
        config: What to recompute there.

    Raises:
        ScriptError: the script fails before it trains.
    """
    if config.is_none:
        return None
    check = bench.check(config)
    if isinstance(check, Measurement):
        return GradientCheck(agrees=False, worst=math.nan, steps=0, message=f"{check.outcome}: {check.message}")
    return check
