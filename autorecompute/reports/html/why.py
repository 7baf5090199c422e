"""Explanation of the answer: the trials and the memory of a step."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.jsontext import UnreadableError
from autorecompute.plans import Config
from autorecompute.reports.html.charts import draw_plane, draw_timelines
from autorecompute.studies.analysis import DETECTION_FILE, read_analysis, read_detection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.memory import MemoryModel, Timeline
    from autorecompute.plans import Plan
    from autorecompute.reports.html.parts import Part
    from autorecompute.result import Best

    LayerRow = tuple[str, int, int, str]


STAR = "*"
"""Stands in a plan's label for the numbers of the layers that it is of."""

WHOLE = "all of it"


def explain(part: Part, best: Best | None, about: str = "") -> dict[str, Any]:
    """Explain a study by its trials and its model of memory.

    Args:
        part: The study.
        best: The config to train with, where it was tuned in this study.
        about: The batch that the study is of, in a sentence, where that has to be said.

    Returns:
        The values of the page's section, by the names that its template has for them.

    Raises:
        SetupError: what the study keeps cannot be read.
    """
    shown = _config_to_show(part, best.config if best is not None else None)
    steps = None if shown is None else _steps(part, shown)
    plane, has_star = draw_plane(part.trials, best, part.problem.limit_bytes)
    return {
        "about": about,
        "plane": plane,
        "has_star": has_star,
        "timelines": "" if steps is None else draw_timelines(*steps),
        "shown": "" if shown is None else part.space.describe(shown),
        "layers": [] if steps is None or shown is None else list(map_layers(*steps, part.space.plans, shown)),
    }


def _config_to_show(part: Part, config: Config | None) -> Config | None:
    """Return the config to train with where it recomputes; else the one that would need least."""
    if config is not None and part.space.is_mix(config) and not config.is_none:
        return config
    mixes = [t for t in part.trials if part.space.is_mix(t.config) and not t.config.is_none]
    measured = [(t.measurement.peak_bytes, t.number, t.config) for t in mixes if t.measurement.peak_bytes]
    return min(measured)[-1] if measured else None


def _steps(part: Part, config: Config) -> tuple[Timeline, Timeline] | None:
    """Return a step without recompute and one with the config; ``None`` where none can be simulated."""
    memory = _memory_of(part)
    try:
        return None if memory is None else (memory.timeline(Config(), part.dims), memory.timeline(config, part.dims))
    except KeyError:
        return None  # a dimension of the target batch that the study did not write down


def _memory_of(part: Part) -> MemoryModel | None:
    backend, detection = registry.controller(part.problem.backend), read_detection(part.folder)
    if detection is not None and detection.space == part.space:
        try:
            return backend.memory_of(detection)
        except UnreadableError as error:
            raise SetupError(f"{part.folder.path / DETECTION_FILE} cannot be read: it {error}. Restore it.") from error
    small = read_analysis(part.folder)
    return None if small is None else backend.memory_model(part.space, small)


def map_layers(before: Timeline, after: Timeline, plans: Sequence[Plan], config: Config) -> Iterator[LayerRow]:
    """Yield the layers in the order of the forward pass; nothing where the parts of the step are no layers.

    Layers in a row that are alike come as one, ``h.0 to h.4``.

    Args:
        before: A step without recompute, whose operations are named after the layers.
        after: The same with the config.
        plans: The plans of the model; those of layers that are alike have a star in their labels.
        config: What is recomputed.

    Yields:
        A name, the bytes that each such layer keeps for the backward pass before and after, and what is recomputed in
        it, in words.
    """
    kept, kept_after = _kept_by_layer(before), _kept_by_layer(after)
    options = _options_by_layer(list(kept), plans, config)
    if not options:
        return

    def likeness(name: str) -> tuple[object, ...]:
        place = "" if name in options else name
        return (place, name.rstrip("0123456789"), kept[name], kept_after[name], options.get(name, ""))

    for _, group in itertools.groupby(sorted(kept, key=lambda name: name not in options), likeness):
        first, *others = group
        name = f"{first} to {others[-1]}" if others else first
        yield name, kept[first], kept_after[first], options.get(first, "")


def _kept_by_layer(timeline: Timeline) -> Counter[str]:
    profile, kept = timeline.profile, Counter[str]()
    for operation in profile.operations[: profile.backward]:
        kept[operation.operator] += 0  # one that keeps nothing is a layer, too
    for tensor, size in zip(profile.tensors, timeline.sizes, strict=True):
        if profile.is_stashed(tensor):
            kept[profile.operations[tensor.first].operator] += size
    return kept


def _options_by_layer(names: Sequence[str], plans: Sequence[Plan], config: Config) -> dict[str, str]:
    """Return the recomputed parts of each layer that a plan is of."""
    found: dict[str, list[str]] = {}
    for plan in plans:
        stem, star, part = plan.label.partition(STAR)
        alike = re.compile(re.escape(stem) + r"\d+")
        layers = [name for name in names if alike.fullmatch(name)] if star else []
        for place, name in enumerate(layers):
            told = found.setdefault(name, [])
            # A plan may have several places in each layer.
            if config.count_of(plan) * len(layers) > place * plan.occurrences:
                told.append(part.strip(".,/ ") or WHOLE)
    return {name: ", ".join(told) for name, told in found.items()}
