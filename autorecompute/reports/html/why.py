"""Explanation of the answer: the trials and the memory of a step."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.codec import UnreadableError
from autorecompute.errors import SetupError
from autorecompute.figures import format_relative
from autorecompute.plans import Config
from autorecompute.reports.html.charts import ChartPoint, Plane, draw_plane, draw_timelines
from autorecompute.studies.analysis import DETECTION_FILE, read_analysis, read_detection
from autorecompute.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel, Timeline
    from autorecompute.plans import Plan
    from autorecompute.reports.html.parts import Part
    from autorecompute.result import Best


STAR = "*"
"""Stands in a plan's label for the numbers of the layers that it is of."""

WHOLE = "all of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """Layers in a row of which the same is known, or what lies outside of all of them.

    Attributes:
        name: Their names: ``h.0 to h.4``.
        before_bytes: What each of them keeps for the backward pass without recompute.
        after_bytes: The same with the config.
        options: What is recomputed in each of them, in words.
    """

    name: str
    before_bytes: int
    after_bytes: int
    options: str

    @property
    def before(self) -> str:
        """Return the bytes that each keeps without recompute, in words."""
        return format_bytes(self.before_bytes)

    @property
    def after(self) -> str:
        """Return the same with the config."""
        return format_bytes(self.after_bytes)


def map_layers(before: Timeline, after: Timeline, plans: Sequence[Plan], config: Config) -> tuple[LayerRow, ...]:
    """Return the layers in the order of the forward pass; nothing where the parts of the step are no layers.

    Args:
        before: A step without recompute, whose operations are named after the layers.
        after: The same with the config.
        plans: The plans of the model; those of layers that are alike have a star in their labels.
        config: What is recomputed.
    """
    kept, kept_after = _kept_by_layer(before), _kept_by_layer(after)
    options = _options_by_layer(list(kept), plans, config)
    if not options:
        return ()
    rows = [
        LayerRow(name=name, before_bytes=kept[name], after_bytes=kept_after[name], options=options.get(name, ""))
        for name in sorted(kept, key=lambda name: name not in options)
    ]
    return tuple(_joined(rows, options))


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


def _joined(rows: Sequence[LayerRow], options: dict[str, str]) -> Iterator[LayerRow]:
    """Layers in a row that are alike, as one."""

    def likeness(row: LayerRow) -> tuple[object, ...]:
        place = "" if row.name in options else row.name
        return (place, row.name.rstrip("0123456789"), row.before_bytes, row.after_bytes, row.options)

    for _, group in itertools.groupby(rows, likeness):
        first, *others = group
        name = f"{first.name} to {others[-1].name}" if others else first.name
        yield LayerRow(name=name, before_bytes=first.before_bytes, after_bytes=first.after_bytes, options=first.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The part of the page that explains.

    Attributes:
        about: Which batch it is about, where that is not the one to train with; else empty.
        plane: The chart of memory against throughput; empty where nothing was measured.
        has_star: Whether the config to train with is drawn there.
        timelines: The chart of a step before and after; empty where nothing is known of steps.
        shown: The config of the step after, in words.
        layers: What each layer keeps before and after; empty where nothing is known of layers.
    """

    about: str
    plane: str
    has_star: bool
    timelines: str
    shown: str
    layers: tuple[LayerRow, ...]


def explain(part: Part, best: Best | None, about: str = "") -> Why:
    """Explain a study by its trials and its model of memory.

    Args:
        part: The study.
        best: The config to train with, where it was tuned in this study.
        about: Which batch the study is of, where that has to be said.

    Raises:
        SetupError: what the study keeps cannot be read.
    """
    space, config = part.space, best.config if best is not None else None
    memory = _memory_of(part)
    shown = _config_to_show(part, config)
    timelines, layers = "", tuple[LayerRow, ...]()
    if memory is not None and shown is not None and (steps := _steps(part, memory, shown)) is not None:
        timelines, layers = draw_timelines(*steps), map_layers(*steps, space.plans, shown)
    plane = _plane(part, best)
    return Why(
        about=about,
        plane=draw_plane(plane) if plane.points else "",
        has_star=plane.best is not None,
        timelines=timelines,
        shown=space.describe(shown) if shown is not None else "",
        layers=layers,
    )


def _memory_of(part: Part) -> MemoryModel | None:
    backend, detection = registry.controller(part.problem.backend), read_detection(part.folder)
    if detection is not None and detection.space == part.space:
        try:
            return backend.memory_of(detection)
        except UnreadableError as error:
            raise SetupError(f"{part.folder.path / DETECTION_FILE} cannot be read: it {error}. Restore it.") from error
    small = read_analysis(part.folder)
    return None if small is None or backend.memory_model is None else backend.memory_model(part.space, small)


def _steps(part: Part, memory: MemoryModel, config: Config) -> tuple[Timeline, Timeline] | None:
    try:
        return memory.timeline(Config(), part.dims), memory.timeline(config, part.dims)
    except KeyError:
        # A dimension that the study did not write down: no step can be simulated at the target batch.
        return None


def _config_to_show(part: Part, config: Config | None) -> Config | None:
    """Return the config to train with where it recomputes; else the one that would need least."""
    if config is not None and part.space.is_mix(config) and not config.is_none:
        return config
    mixes = [t for t in part.trials if part.space.is_mix(t.config) and not t.config.is_none]
    chosen = [t for t in mixes if t.measurement.peak_bytes]
    return min(chosen, key=lambda trial: trial.measurement.peak_bytes or 0).config if chosen else None


def _plane(part: Part, best: Best | None) -> Plane:
    measured = [t for t in part.trials if t.measurement.peak_bytes is not None and t.measurement.samples_per_second]
    is_relative = all(trial.relative_throughput for trial in measured)
    return Plane(
        points=[_point(trial, is_relative=is_relative) for trial in measured],
        best=_best_point(best, is_relative=is_relative),
        limit_bytes=part.problem.limit_bytes,
        measure="throughput, none = 1" if is_relative else "samples/s",
    )


def _point(trial: Trial, *, is_relative: bool) -> ChartPoint:
    measurement = trial.measurement
    speed = trial.relative_throughput if is_relative else measurement.samples_per_second
    assert measurement.peak_bytes is not None, "only what was measured is drawn"
    assert speed is not None, "only what was timed is drawn"
    figures = ", ".join(
        [
            format_bytes(measurement.peak_bytes),
            format_rate(measurement.samples_per_second),
            format_relative(trial.relative_throughput),
        ]
    )
    title = f"{trial.number}: {trial.description}\n{figures}"
    return ChartPoint(peak_bytes=measurement.peak_bytes, throughput=speed, title=title, fits=trial.fits)


def _best_point(best: Best | None, *, is_relative: bool) -> ChartPoint | None:
    speed = None if best is None else best.relative_throughput if is_relative else best.samples_per_second
    if best is None or speed is None:
        return None
    return ChartPoint(peak_bytes=best.peak_bytes, throughput=speed, title=f"{best.description}, as confirmed")
