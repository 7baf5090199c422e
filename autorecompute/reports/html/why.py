"""Why the answer is what it is: the plane of memory and throughput, the step before and after, what each plan does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.figures import format_relative
from autorecompute.jsontext import UnreadableError
from autorecompute.plans import Config
from autorecompute.reports.html.charts import ChartPoint, Plane, draw_plane, draw_timelines
from autorecompute.reports.html.layers import LayerRow, map_layers
from autorecompute.search.hindsight import Hindsight, look_back
from autorecompute.studies import detected
from autorecompute.studies.analysis import read_analysis
from autorecompute.units import MIB, format_bytes, format_rate

if TYPE_CHECKING:
    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.plans import Plan
    from autorecompute.reports.html.parts import Part
    from autorecompute.result import Best
    from autorecompute.search.hindsight import Expected, PlanHindsight


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What a plan does, as people read it; a dash where nothing is known.

    Attributes:
        name: The plan.
        use: Whether the config to train with has it on, or at how many of its places.
        on: Whether it is on at each of its places, in the order of the model; empty where it is off or has one place.
        places: At how many places of the model or its graph it can be on.
        peak: How the peak changes with this plan alone.
        step: How the step time changes with it.
        left_out: The peak with all plans on but this one.
    """

    name: str
    use: str
    on: tuple[bool, ...] = ()
    places: str = "-"
    peak: str = "-"
    step: str = "-"
    left_out: str = "-"


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
        plans: What each plan does.
        configs: How many configs the model was asked about; 0 where there is none.
        all_on_peak: The peak with all plans on, as the model has it; empty where there is none.
    """

    about: str
    plane: str
    has_star: bool
    timelines: str
    shown: str
    layers: tuple[LayerRow, ...]
    plans: tuple[PlanRow, ...]
    configs: int
    all_on_peak: str = ""


def explain(part: Part, best: Best | None, about: str = "") -> Why:
    """What the trials of a study and its model of memory tell.

    Args:
        part: The study.
        best: The config to train with, where it was tuned in this study.
        about: Which batch the study is of, where that has to be said.

    Raises:
        SetupError: what the study keeps cannot be read.
    """
    space, config = part.space, best.config if best is not None else None
    memory = _memory_of(part)
    hindsight = _look_back(part, memory) if memory is not None else None
    shown = _config_to_show(part, config)
    timelines, layers = "", tuple[LayerRow, ...]()
    if memory is not None and hindsight is not None and shown is not None:
        before, after = memory.timeline(Config(), part.dims), memory.timeline(shown, part.dims)
        timelines, layers = draw_timelines(before, after), map_layers(before, after, space.plans, shown)
    all_on = hindsight.all_on if hindsight is not None else None
    plane = _plane(part, best, hindsight)
    return Why(
        about=about,
        plane=draw_plane(plane) if plane.points else "",
        has_star=plane.best is not None,
        timelines=timelines,
        shown=space.describe(shown) if shown is not None else "",
        layers=layers,
        plans=_plan_rows(part, config, hindsight),
        configs=hindsight.configs if hindsight is not None else 0,
        all_on_peak=format_bytes(all_on.peak_bytes) if all_on is not None else "",
    )


def _memory_of(part: Part) -> MemoryModel | None:
    backend, detection = registry.controller(part.problem.backend), detected.read_detection(part.folder)
    if detection is not None and detection.space == part.space:
        try:
            return backend.memory_of(detection)
        except UnreadableError as error:
            raise SetupError(f"{part.folder.path / detected.FILE} cannot be read: it {error}. Restore it.") from error
    small = read_analysis(part.folder)
    return None if small is None else backend.memory_model(part.space, small)


def _look_back(part: Part, memory: MemoryModel) -> Hindsight | None:
    try:
        return look_back(part.space, memory, part.dims, limit_bytes=part.problem.limit_bytes, trials=part.trials)
    except KeyError:
        # A dimension that the study did not write down: its peaks cannot be simulated at the target batch.
        return None


def _config_to_show(part: Part, config: Config | None) -> Config | None:
    """The config to train with where it recomputes; else the one that would need least."""
    if config is not None and part.space.is_mix(config) and not config.is_none:
        return config
    mixes = [t for t in part.trials if part.space.is_mix(t.config) and not t.config.is_none]
    chosen = [t for t in mixes if t.measurement.peak_bytes]
    return min(chosen, key=lambda trial: trial.measurement.peak_bytes or 0).config if chosen else None


def _plane(part: Part, best: Best | None, hindsight: Hindsight | None) -> Plane:
    measured = [t for t in part.trials if t.measurement.peak_bytes is not None and t.measurement.samples_per_second]
    is_relative = all(trial.relative_throughput for trial in measured)
    fastest = max((trial.measurement.samples_per_second or 0.0 for trial in measured), default=0.0)
    # The model's step times are relative to the reference's or, without one, to the fastest trial's.
    unit = 1.0 if is_relative else fastest
    known = hindsight if hindsight is not None and hindsight.has_reference == is_relative else None
    return Plane(
        points=[_point(trial, is_relative=is_relative) for trial in measured],
        frontier=[_expected_point(told, unit) for told in known.frontier] if known else [],
        presets={name: _expected_point(told, unit) for name, told in known.presets.items()} if known else {},
        best=_best_point(best, is_relative=is_relative),
        limit_bytes=part.problem.limit_bytes,
        measure="throughput, none = 1" if is_relative else "samples/s",
    )


def _expected_point(told: Expected, unit: float) -> ChartPoint:
    return ChartPoint(peak_bytes=told.peak_bytes, throughput=unit / told.step, title="")


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


def _plan_rows(part: Part, config: Config | None, hindsight: Hindsight | None) -> tuple[PlanRow, ...]:
    if hindsight is None:
        return tuple(
            PlanRow(name=plan.label, use=_describe_use(plan, config), on=_places_on(plan, config))
            for plan in part.space.plans
        )
    return tuple(_plan_row(effect, config, hindsight.none) for effect in hindsight.effects)


def _plan_row(effect: PlanHindsight, config: Config | None, none: Expected) -> PlanRow:
    alone, left_out = effect.alone, effect.left_out
    return PlanRow(
        name=effect.plan.label,
        use=_describe_use(effect.plan, config),
        on=_places_on(effect.plan, config),
        places=str(effect.plan.occurrences),
        peak="-" if alone is None else format_change(alone.peak_bytes - none.peak_bytes),
        step="-" if alone is None else f"{alone.step / none.step - 1:+.1%}",
        left_out="-" if left_out is None else format_bytes(left_out.peak_bytes),
    )


def _describe_use(plan: Plan, config: Config | None) -> str:
    count = 0 if config is None else config.count_of(plan)
    if count == 0:
        return "off"
    return "on" if count >= plan.occurrences else f"{count} of {plan.occurrences}"


def _places_on(plan: Plan, config: Config | None) -> tuple[bool, ...]:
    count = 0 if config is None else config.count_of(plan)
    if count == 0 or not plan.counts:
        return ()
    return tuple(place < count for place in range(plan.occurrences))


def format_change(change_bytes: int) -> str:
    """A change with its sign, in the unit that others beside it have."""
    # 1023 KiB beside 1 MiB would look like more.
    size = abs(change_bytes)
    size = round(size / MIB) * MIB if size >= MIB // 2 else size
    return f"{'+' if change_bytes >= 0 else '-'}{format_bytes(size)}"
