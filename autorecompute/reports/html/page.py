"""The page: what it tells, and its file."""

from __future__ import annotations

import base64
import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute import __version__
from autorecompute.backends.registry import backend_of, render
from autorecompute.errors import SetupError
from autorecompute.reports.answer import (
    NOT_OUR_COMMAND,
    Line,
    answer_lines,
    certainties,
    circumstances,
    describe_disturbed,
    expected_step_seconds,
    exports,
    remarks,
    run_command,
    where_exported,
)
from autorecompute.reports.html.charts import draw_curve, draw_predictions
from autorecompute.reports.html.parts import WORDS, Cell, main_part, read_parts, trial_columns, trial_rows
from autorecompute.reports.html.why import Why, explain
from autorecompute.reports.screen import COLUMNS, FIGURES, curve_cells, knob_cells
from autorecompute.studies.checked import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.units import MIB, format_bytes, format_count, format_rate, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.backends.interface import Emission
    from autorecompute.measurement import Trial
    from autorecompute.reports.html.parts import Part
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder


UNANSWERED = "No answer yet: run its tune command again to go on. Here is what was measured so far."


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All words and figures of a page, ready to be set.

    Attributes:
        study: Name of the study.
        verdict: What was found out about recompute, in a sentence.
        facts: What the study is about, by name.
        run: The command that trains with the answer, in a notebook the call; empty where there is none.
        where_exported: In which scripts they have an effect.
        remarks: What else has to be done.
        circumstances: Under what the answer holds.
        lines: The answer's table.
        curve: The chart of throughput by batch; empty where one batch was tuned.
        curve_rows: Its figures.
        knobs: What other settings did, a row for each that was tried.
        untried: Settings that were not tried, a sentence each.
        hints: Settings that no verb tries: name, variables, what each may change, and where.
        why: The explanation; ``None`` where no config was measured.
        sure: How sure it is, a sentence each.
        predictions: The chart of predictions; empty where nothing was predicted.
        columns: Headings of the list of trials.
        words: The headings whose columns are no figures.
        rows: The trials.
    """

    study: str
    verdict: str
    facts: dict[str, str]
    run: str = ""
    exports: tuple[str, ...] = ()
    where_exported: str = ""
    remarks: tuple[str, ...] = ()
    circumstances: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    curve: str = ""
    curve_rows: tuple[tuple[str, ...], ...] = ()
    knobs: tuple[tuple[str, ...], ...] = ()
    untried: tuple[str, ...] = ()
    hints: tuple[tuple[str, str, str, str], ...] = ()
    why: Why | None = None
    sure: tuple[str, ...] = ()
    predictions: str = ""
    columns: tuple[str, ...]
    words: frozenset[str] = WORDS
    rows: tuple[tuple[Cell, ...], ...]


def tell(folder: StudyFolder, page: Path) -> Story:
    """Tell the story of a study, finished or not.

    Raises:
        UsageError: there is no such study, or another version of autorecompute made it.
        SetupError: it cannot be read.
    """
    result = folder.result()
    parts = read_parts(folder, result)
    main = main_part(parts, result)
    trials = main.trials if main is not None else ()
    return Story(
        study=folder.name,
        facts=_facts(folder, result, parts),
        why=_explain(folder, main, result) if main is not None else None,
        predictions=_draw_predictions(trials),
        columns=trial_columns(parts),
        rows=tuple(tuple(row) for row in trial_rows(parts, page)),
        **(
            _told_by(result, parts, folder) if result is not None else {"verdict": UNANSWERED, "sure": _measured(parts)}
        ),
    )


def _explain(folder: StudyFolder, main: Part, result: Result | None) -> Why:
    best = result.best if result is not None else None
    if folder.problem().batch != SEVERAL_BATCHES or (best is not None and best.batch == main.problem.batch):
        return explain(main, best)
    about = f"This is about batch {main.problem.batch}, the largest that was tuned."
    if best is not None:
        answer = "without recompute" if best.config.is_none else "whose study is gone"
        about += f" The answer is batch {best.batch}, {answer}."
    return explain(main, None, about)


def _told_by(result: Result, parts: Sequence[Part], folder: StudyFolder) -> dict[str, Any]:
    best, own = result.best, _own_trials(result, parts)
    may_train = best is not None and is_confirmed_here(folder, best)
    rendered = render(best.config, best.knobs, result.versions, folder.best) if best is not None and may_train else None
    return {
        "verdict": result.verdict_sentence,
        "run": run_command(result) if rendered is not None else "",
        "exports": tuple(exports(rendered)) if rendered is not None else (),
        "where_exported": where_exported(result),
        "remarks": _remarks(result, rendered, folder),
        "circumstances": (*circumstances(result), *_what_it_would_take(result, parts)),
        "lines": tuple(answer_lines(result, own)),
        "curve": draw_curve(result.curve, best.batch if best is not None else None) if result.curve else "",
        "curve_rows": tuple(curve_cells(point, best.batch if best is not None else None) for point in result.curve),
        "knobs": tuple(knob_cells(knob) for knob in result.knobs if knob.outcome is not None),
        "untried": tuple(f"{knob.name} was {knob.sentence}" for knob in result.knobs if knob.outcome is None),
        "hints": tuple(_hints(result)),
        "sure": (*_confirmed(result), *certainties(result, own), *result.unconfirmed, *_measured(parts)),
    }


def _remarks(result: Result, rendered: Emission | None, folder: StudyFolder) -> tuple[str, ...]:
    if rendered is None:
        return () if result.best is None else (describe_unconfirmed(result.study),)
    return (*remarks(result, rendered), *([NOT_OUR_COMMAND] if folder.is_imported else []))


def _hints(result: Result) -> Iterator[tuple[str, str, str, str]]:
    for hint in backend_of(result.versions).HINTS:
        variables = " ".join(f"{name}={value}" for name, value in hint.variables.items())
        yield hint.name, variables, hint.effect, hint.needs


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


def _own_trials(result: Result, parts: Sequence[Part]) -> tuple[Trial, ...]:
    """Trials that the answer was chosen from, as the last screen has them: at the batch to train with."""
    batch = result.best.batch if result.best is not None else None
    if not result.curve:
        return parts[0].trials
    return next((part.trials for part in parts if part.problem.batch == batch), ())


def _facts(folder: StudyFolder, result: Result | None, parts: Sequence[Part]) -> dict[str, str]:
    head = folder.head()
    problem = head.problem
    facts = {
        "script": shlex.join(head.command),
        "device": problem.device,
        "memory limit": format_bytes(problem.limit_bytes),
        "batch": str(problem.batch or "one of several"),
        "versions": f"{problem.software}, autorecompute {head.autorecompute}",
        "begun": head.created,
        "problem": problem.digest,
    }
    if result is None:
        facts["trials"] = str(sum(len(part.trials) for part in parts))
    return facts


def _confirmed(result: Result) -> list[str]:
    best = result.best
    if best is None:
        return []
    fresh = "A fresh process with only the emitted variables set"
    by = fresh if best.confirmed else "No fresh process has confirmed it; it"
    return [f"{by} had a peak of {format_bytes(best.peak_bytes)} and {format_rate(best.samples_per_second)}"]


def _measured(parts: Sequence[Part]) -> tuple[str, ...]:
    trials = [trial for part in parts for trial in part.trials]
    if not trials:
        return ()
    steps = sum(len(trial.measurement.step_seconds) for trial in trials)
    sentences = [f"{format_count(len(trials), 'trial')} with {format_count(steps, 'timed step')} in all"]
    if disturbed := describe_disturbed(trials):
        sentences.append(f"{disturbed}, marked in the list")
    return tuple(sentences)


def _draw_predictions(trials: Sequence[Trial]) -> str:
    told = [trial for trial in trials if trial.prediction is not None and trial.measurement.peak_bytes is not None]
    if not told:
        return ""
    peaks, steps = [], []
    for trial in told:
        assert trial.prediction is not None, "they were chosen for it"
        peak = (trial.measurement.peak_bytes or 0) / MIB
        peaks.append((trial.prediction.peak_bytes / MIB, peak, f"{trial.number}: {trial.description}"))
        expected, measured = expected_step_seconds(trial), trial.measurement.median_step_seconds
        if expected is not None and measured is not None:
            steps.append((expected, measured, f"{trial.number}: {trial.description}"))
    return draw_predictions(peaks, steps)


HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"


def make_page(folder: StudyFolder, page: Path) -> str:
    """Return the report of a study as one HTML page.

    Args:
        folder: The study.
        page: The file it is for: the logs are linked relative to that.

    Raises:
        UsageError: there is no such study, or another version of autorecompute made it.
        SetupError: the study cannot be read, or jinja2 or matplotlib is not installed.
    """
    folder.head()
    try:
        import jinja2  # noqa: F401  (looked for before anything is done)
        from matplotlib import rc_context

        from autorecompute.reports.html.charts import style

        with rc_context(style()):  # type: ignore[arg-type]  # names as plain text
            return _fill(tell(folder, page))
    except ModuleNotFoundError as error:
        raise SetupError(f'A report needs {error.name}. Install it: pip install "autorecompute[report]".') from error


def _fill(story: Story) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script = _read(STYLE), _read(SCRIPT)
    text = environment.get_template(TEMPLATE).render(
        story=story,
        style=style,
        script=script,
        policy=_policy(style, script),
        curve_headings=(*FIGURES, "config", "study"),
        knob_headings=COLUMNS,
        version=__version__,
    )
    # A path that is no UTF-8 comes as surrogates, which no page can hold.
    return printable(text.lstrip()).encode(errors="replace").decode()


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
