"""The page: its file, the studies that it is about, its explanation, and a row for each trial."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
import shlex
import urllib.parse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute import __version__
from autorecompute.backends.registry import backend_of, controller, render
from autorecompute.codec import UnreadableError
from autorecompute.errors import SetupError
from autorecompute.figures import format_relative
from autorecompute.measurement import Trial
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.reports import answer
from autorecompute.reports.charts import draw_curve, draw_plane, draw_timelines, style
from autorecompute.studies import Problem, Sizes, StudyFolder, list_studies
from autorecompute.studies.analysis import DETECTION_FILE, read_analysis, read_detection
from autorecompute.studies.checked import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.records import trials_of, trials_of_answer
from autorecompute.units import format_bytes, format_count, format_rate, format_samples, format_seconds, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.memory import MemoryModel, Timeline
    from autorecompute.plans import Plan, Space
    from autorecompute.result import Result

    Cell = dict[str, str]
    LayerRow = tuple[str, int, int, str]


UNANSWERED = "No answer yet: run its tune command again to go on. Here is what was measured so far."
OF_AN_ANSWER = (
    "run", "exports", "where_exported", "remarks", "circumstances", "lines", "curve", "curve_rows", "knobs", "untried",
    "hints", "headline",
)  # fmt: skip
"""Names of what only an answer has to tell."""

HERE = Path(__file__).parent / "html"


def make_page(folder: StudyFolder, page: Path) -> str:
    """Return the report of a study, finished or not, as one HTML page, its logs linked relative to the page's file.

    Raises:
        UsageError: there is no such study, or another version of autorecompute made it.
        SetupError: the study cannot be read, or jinja2 or matplotlib is not installed.
    """
    folder.head()
    try:
        import jinja2  # noqa: F401  (looked for before anything is done)
        from matplotlib import rc_context

        with rc_context(style()):  # type: ignore[arg-type]  # names as plain text
            return _fill(_tell(folder, page))
    except ModuleNotFoundError as error:
        raise SetupError(f'A report needs {error.name}. Install it: pip install "autorecompute[report]".') from error


def _fill(told: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["size"] = format_bytes
    css, script = ((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    text = environment.get_template("report.html.j2").render(
        **told,
        style=css,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        best=answer.BEST,
        answer_headings=answer.ANSWER_COLUMNS,
        curve_headings=answer.CURVE_COLUMNS,
        knob_headings=answer.KNOB_COLUMNS,
        version=__version__,
    )
    # A path that is no UTF-8 comes as surrogates, which no page can hold.
    return printable(text.lstrip()).encode(errors="replace").decode()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A study with its trials and the sizes that they were measured at."""

    folder: StudyFolder
    problem: Problem
    sizes: Sizes
    trials: tuple[Trial, ...]

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of its steps."""
        return {**self.sizes.dims, BATCH: self.problem.batch}

    @property
    def space(self) -> Space:
        """Return its plans."""
        return self.sizes.space


def _read_parts(folder: StudyFolder, result: Result | None) -> list[Part]:
    """Return the study itself, or the studies of its batches, the smallest batch first."""
    if folder.head().problem.batch != SEVERAL_BATCHES:
        return [_read_part(folder)]
    if result is not None:
        names = [point.recomputed.study for point in result.curve if point.recomputed is not None]
    else:
        # Nobody has drawn the curve yet: the studies stand beside this one.
        own = re.compile(rf"{re.escape(folder.name)}-b\d+")
        names = [study.name for study in list_studies(folder.path.parent) if own.fullmatch(study.name)]
    found = (StudyFolder(name, folder.path.parent) for name in names)
    return sorted((_read_part(part) for part in found if part.exists()), key=lambda part: part.problem.batch)


def _read_part(folder: StudyFolder) -> Part:
    head = folder.head()
    return Part(folder=folder, problem=head.problem, sizes=head.sizes, trials=tuple(trials_of(folder)))


def _tell(folder: StudyFolder, page: Path) -> dict[str, Any]:
    """Return all words and figures of the page, by the names that its template has for them."""
    head, result = folder.head(), folder.result()
    parts, problem = _read_parts(folder, result), head.problem
    wanted = result.best.batch if result is not None and result.best is not None else None
    telling = [part for part in parts if part.trials]
    # The part to look into is that of the batch to train with, or the largest that was tuned.
    main = next((part for part in telling if part.problem.batch == wanted), telling[-1] if telling else None)
    told = {"verdict": UNANSWERED, "sure": _measured(parts)}
    return {
        **dict.fromkeys(OF_AN_ANSWER, ()),
        **(told if result is None else _tell_answer(result, parts, folder)),
        "study": folder.name,
        "facts": {
            "script": shlex.join(head.command),
            "device": problem.device,
            "memory limit": format_bytes(problem.limit_bytes),
            "batch": str(problem.batch or "one of several"),
            "versions": f"{problem.software}, autorecompute {head.autorecompute}",
            "begun": head.created,
            "problem": problem.digest,
            **({} if result is not None else {"trials": str(sum(len(part.trials) for part in parts))}),
        },
        "why": _explain(main, result, is_of_several=problem.batch == SEVERAL_BATCHES) if main else None,
        "columns": TRIAL_COLUMNS if len(parts) == 1 else ("batch", *TRIAL_COLUMNS),
        "words": WORDS,
        "rows": _trial_rows(parts, page),
    }


def _tell_answer(result: Result, parts: Sequence[Part], folder: StudyFolder) -> dict[str, Any]:
    best, own = result.best, trials_of_answer(folder, result)
    batch = best.batch if best is not None else None
    told: dict[str, Any] = {
        "headline": result.headline,
        "verdict": result.verdict_sentence,
        "where_exported": answer.where_exported(result),
        "circumstances": [*answer.circumstances(result), *_what_it_would_take(result, parts)],
        "lines": answer.answer_lines(result, own),
        "curve": draw_curve(result.curve, batch) if result.curve else "",
        "curve_rows": [answer.curve_cells(point, batch) for point in result.curve],
        "knobs": [answer.knob_cells(knob) for knob in result.knobs if knob.outcome is not None],
        "untried": [f"{knob.name} was {knob.sentence}" for knob in result.knobs if knob.outcome is None],
        "hints": [
            (hint.name, " ".join(f"{name}={value}" for name, value in hint.variables.items()), hint.effect, hint.needs)
            for hint in backend_of(result.versions).HINTS
        ],
        "sure": [*answer.certainties(result, own), *result.unconfirmed, *_measured(parts)],
    }
    if best is not None:
        fresh = "A fresh process with only the emitted variables set"
        by = fresh if best.confirmed else "No fresh process has confirmed it; it"
        figures = f"{format_bytes(best.peak_bytes)} and {format_rate(best.samples_per_second)}"
        told["sure"].insert(0, f"{by} had a peak of {figures}")
    if best is not None and not is_confirmed_here(folder, best):
        told["remarks"] = [describe_unconfirmed(result.study)]
    elif best is not None:
        rendered = render(best.config, best.knobs, result.versions, folder.best, best.lengths)
        told["run"], told["exports"] = answer.run_command(result, folder), answer.exports(rendered)
        told["remarks"] = [*answer.remarks(result, rendered), *([answer.NOT_OUR_COMMAND] if folder.is_imported else [])]
    return told


def _what_it_would_take(result: Result, parts: Sequence[Part]) -> list[str]:
    peaks = [(trial.measurement.peak_bytes, part) for part in parts for trial in part.trials]
    known = [(peak, part) for peak, part in peaks if peak is not None]
    if result.best is not None or not known:
        return []
    least, part = min(known, key=lambda pair: pair[0])
    limit = part.problem.limit_bytes
    if least <= limit:
        return []
    lowest = f"the lowest peak of any config was {format_bytes(least)} at batch {part.problem.batch}"
    return [f"{lowest}, {format_bytes(least - limit)} over the limit: raise the limit, or train a smaller batch"]


def _measured(parts: Sequence[Part]) -> list[str]:
    trials = [trial for part in parts for trial in part.trials]
    if not trials:
        return []
    steps = sum(len(trial.measurement.step_seconds) for trial in trials)
    sentences = [f"{format_count(len(trials), 'trial')} with {format_count(steps, 'timed step')} in all"]
    if disturbed := answer.describe_disturbed(trials):
        sentences.append(f"{disturbed}, marked in the list")
    return sentences


STAR = "*"  # stands in a plan's label for the numbers of the layers that it is of

WHOLE = "all of it"


def _explain(part: Part, result: Result | None, *, is_of_several: bool) -> dict[str, Any]:
    """Return the explanation of a study by its trials and its model of memory, by the names in the template."""
    best = result.best if result is not None else None
    about = ""
    if is_of_several and (best is None or best.batch != part.problem.batch):
        about = f"This is about batch {part.problem.batch}, the largest that was tuned."
        if best is not None:
            which = "without recompute" if best.config.is_none else "whose study is gone"
            about += f" The answer is batch {best.batch}, {which}."
        best = None
    shown = _config_to_show(part, best.config if best is not None else None)
    steps = None if shown is None else _steps(part, shown)
    plane, has_star = draw_plane(part.trials, best, part.problem.limit_bytes)
    return {
        "about": about,
        "plane": plane,
        "has_star": has_star,
        "timelines": "" if steps is None else draw_timelines(*steps),
        "shown": "" if shown is None else part.space.describe(shown),
        "layers": [] if steps is None or shown is None else list(_map_layers(*steps, part.space.plans, shown)),
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
    backend, detection = controller(part.problem.backend), read_detection(part.folder)
    if detection is not None and detection.space == part.space:
        try:
            return backend.memory_of(detection)
        except UnreadableError as error:
            raise SetupError(f"{part.folder.path / DETECTION_FILE} cannot be read: it {error}. Restore it.") from error
    small = read_analysis(part.folder)
    return None if small is None or backend.memory_model is None else backend.memory_model(part.space, small)


def _map_layers(before: Timeline, after: Timeline, plans: Sequence[Plan], config: Config) -> Iterator[LayerRow]:
    """Yield the layers in the order of the forward pass; nothing where the parts of the step are no layers.

    Layers in a row that are alike come as one, ``h.0 to h.4``. A row has a name, the bytes that each such layer keeps
    for the backward pass before and after, and what is recomputed in it, in words. The operations of both steps are
    named after the layers, and the plans of layers that are alike have a star in their labels.
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


TRIAL_COLUMNS = (
    "#", "config", "outcome", "peak", "predicted peak", "samples/s", "relative", "step", "spread", "predicted step",
    "why", "log",
)  # fmt: skip
WORDS = frozenset({"config", "outcome", "why", "log"})  # the headings whose columns are no figures


def _trial_rows(parts: Sequence[Part], page: Path) -> list[list[Cell]]:
    """Return a row for each trial of all parts."""
    rows = []
    for part in parts:
        batch = [] if len(parts) == 1 else [_number(str(part.problem.batch), part.problem.batch)]
        rows += [[*batch, *_cells(trial, _log_link(part, trial, page))] for trial in part.trials]
    return rows


def _cells(trial: Trial, link: str) -> list[Cell]:
    measurement, prediction = trial.measurement, trial.prediction
    speed, median = measurement.samples_per_second, measurement.median_step_seconds
    remarks = "; ".join(filter(None, [measurement.message, *measurement.marks]))
    step, steps = answer.expected_step_seconds(trial), measurement.step_seconds
    spread = (max(steps) - min(steps)) / 2 / median if median else None
    expected = prediction.peak_bytes if prediction is not None else None
    # The choices, where the description does not say them.
    choices = " ".join(trial.config.texts) if trial.description.endswith(")") else ""
    return [
        _number(str(trial.number), trial.number),
        _cell(trial.description, trial.description, folded=choices),
        _cell(str(measurement.outcome), str(measurement.outcome), small=remarks),
        _number(format_bytes(measurement.peak_bytes), measurement.peak_bytes),
        _number(format_bytes(expected), expected),
        _number(format_samples(speed), speed),
        _number(format_relative(trial.relative_throughput), trial.relative_throughput),
        _number(format_seconds(median), median),
        _number("-" if spread is None else f"± {spread:.0%}", spread),
        _number(format_seconds(step), step),
        _cell(trial.reason, trial.reason),
        _cell("log" if link else "-", link=link),
    ]


def _cell(text: str, key: str = "", *, small: str = "", folded: str = "", link: str = "") -> Cell:
    """Return a text, what it is sorted by, what stands below it or is unfolded, and where it leads."""
    return {"text": text, "key": key, "small": small, "folded": folded, "link": link}


def _number(text: str, value: float | None) -> Cell:
    return _cell(text, "" if value is None else repr(value))


def _log_link(part: Part, trial: Trial, page: Path) -> str:
    log = part.folder.trial(trial.number) / "output.log"
    if not log.is_file():
        return ""
    path = os.path.relpath(log, page.absolute().parent)
    # A relative link must not begin like a scheme: ``a:b/output.log``.
    return "./" + urllib.parse.quote(path, errors="surrogateescape")
