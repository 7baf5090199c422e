"""What the page tells, in its order: what to use, what it buys, why, how sure, and all trials."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autorecompute.backends.registry import backend_of, render
from autorecompute.reports.answer import (
    NOT_OUR_COMMAND,
    Line,
    answer_lines,
    certainties,
    circumstances,
    describe_disturbed,
    exports,
    remarks,
    run_command,
    where_exported,
)
from autorecompute.reports.curve import curve_cells
from autorecompute.reports.html.charts import draw_curve, draw_predictions
from autorecompute.reports.html.parts import main_part, read_parts
from autorecompute.reports.html.rows import WORDS, Cell, trial_columns, trial_rows
from autorecompute.reports.html.why import Why, explain
from autorecompute.reports.knob_table import knob_cells
from autorecompute.reports.predictions import expected_step_seconds
from autorecompute.studies.confirmed_here import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.units import MIB, format_bytes, format_count, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

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
    """Return what there is to tell of a study, finished or not.

    Args:
        folder: The study.
        page: The file that links lead from.

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
