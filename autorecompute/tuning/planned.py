"""What was planned and not measured is measured: the config that ``emit --unmeasured`` gave out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import UsageError
from autorecompute.search import PlannedFirst

if TYPE_CHECKING:
    from autorecompute.search import Searcher
    from autorecompute.tuning.context import TuningContext


def measure_planned(searcher: Searcher, context: TuningContext, least_fit: float = 0.0) -> Searcher:
    """A searcher that begins with the unmeasured config that the environment switches on, where it does.

    A file that cannot be read, or is of another model, is told and left out: it only is a wish.

    Args:
        searcher: Who goes on.
        context: What the tuning works with.
        least_fit: How surely the config has to fit.
    """
    detection = context.detection
    try:
        config = backend_of(detection.versions).planned(os.environ)
    except UsageError as error:
        context.progress.note(f"no planned config is measured: {error}")
        return searcher
    if config is None or config.is_none:
        return searcher
    if not detection.space.is_mix(config):
        context.progress.note("the planned config is not measured: the model does not offer all of it")
        return searcher
    return PlannedFirst(searcher, detection.space.normalize(config), least_fit)
