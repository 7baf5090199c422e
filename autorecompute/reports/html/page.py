"""The page: what it tells, and its file."""

from __future__ import annotations

import base64
import hashlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute import __version__
from autorecompute.backends.registry import backend_of, render
from autorecompute.errors import SetupError
from autorecompute.reports.answer import (
    ANSWER_COLUMNS,
    BEST,
    NOT_OUR_COMMAND,
    answer_lines,
    certainties,
    circumstances,
    describe_disturbed,
    exports,
    remarks,
    run_command,
    where_exported,
)
from autorecompute.reports.html.charts import draw_curve
from autorecompute.reports.html.parts import WORDS, main_part, read_parts, trial_columns, trial_rows
from autorecompute.reports.html.why import explain
from autorecompute.reports.screen import COLUMNS, FIGURES, curve_cells, knob_cells
from autorecompute.studies.checked import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.units import format_bytes, format_count, format_rate, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.reports.html.parts import Part
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder


UNANSWERED = "No answer yet: run its tune command again to go on. Here is what was measured so far."
OF_AN_ANSWER = (
    "run", "exports", "where_exported", "remarks", "circumstances", "lines", "curve", "curve_rows", "knobs", "untried",
    "hints",
)  # fmt: skip
"""Names of what only an answer has to tell."""

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"


def make_page(folder: StudyFolder, page: Path) -> str:
    """Return the report of a study, finished or not, as one HTML page.

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
            return _fill(_tell(folder, page))
    except ModuleNotFoundError as error:
        raise SetupError(f'A report needs {error.name}. Install it: pip install "autorecompute[report]".') from error


def _fill(told: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["size"] = format_bytes
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in (STYLE, SCRIPT))
    text = environment.get_template(TEMPLATE).render(
        **told,
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        best=BEST,
        answer_headings=ANSWER_COLUMNS,
        curve_headings=(*FIGURES, "config", "study"),
        knob_headings=COLUMNS,
        version=__version__,
    )
    # A path that is no UTF-8 comes as surrogates, which no page can hold.
    return printable(text.lstrip()).encode(errors="replace").decode()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _tell(folder: StudyFolder, page: Path) -> dict[str, Any]:
    """Return all words and figures of the page, by the names that its template has for them."""
    result = folder.result()
    parts = read_parts(folder, result)
    main = main_part(parts, result)
    answer = (
        {"verdict": UNANSWERED, "sure": _measured(parts)} if result is None else _tell_answer(result, parts, folder)
    )
    return {
        **dict.fromkeys(OF_AN_ANSWER, ()),
        **answer,
        "study": folder.name,
        "facts": _facts(folder, result, parts),
        "why": _explain(folder, main, result) if main is not None else None,
        "columns": trial_columns(parts),
        "words": WORDS,
        "rows": trial_rows(parts, page),
    }


def _explain(folder: StudyFolder, main: Part, result: Result | None) -> dict[str, Any]:
    best = result.best if result is not None else None
    if folder.problem().batch != SEVERAL_BATCHES or (best is not None and best.batch == main.problem.batch):
        return explain(main, best)
    about = f"This is about batch {main.problem.batch}, the largest that was tuned."
    if best is not None:
        answer = "without recompute" if best.config.is_none else "whose study is gone"
        about += f" The answer is batch {best.batch}, {answer}."
    return explain(main, None, about)


def _tell_answer(result: Result, parts: Sequence[Part], folder: StudyFolder) -> dict[str, Any]:
    best, own = result.best, _own_trials(result, parts)
    batch = best.batch if best is not None else None
    told: dict[str, Any] = {
        "verdict": result.verdict_sentence,
        "where_exported": where_exported(result),
        "circumstances": [*circumstances(result), *_what_it_would_take(result, parts)],
        "lines": answer_lines(result, own),
        "curve": draw_curve(result.curve, batch) if result.curve else "",
        "curve_rows": [curve_cells(point, batch) for point in result.curve],
        "knobs": [knob_cells(knob) for knob in result.knobs if knob.outcome is not None],
        "untried": [f"{knob.name} was {knob.sentence}" for knob in result.knobs if knob.outcome is None],
        "hints": [
            (hint.name, " ".join(f"{name}={value}" for name, value in hint.variables.items()), hint.effect, hint.needs)
            for hint in backend_of(result.versions).HINTS
        ],
        "sure": [*_confirmed(result), *certainties(result, own), *result.unconfirmed, *_measured(parts)],
    }
    if best is not None and not is_confirmed_here(folder, best):
        told["remarks"] = [describe_unconfirmed(result.study)]
    elif best is not None:
        rendered = render(best.config, best.knobs, result.versions, folder.best)
        told["run"], told["exports"] = run_command(result), exports(rendered)
        told["remarks"] = [*remarks(result, rendered), *([NOT_OUR_COMMAND] if folder.is_imported else [])]
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


def _own_trials(result: Result, parts: Sequence[Part]) -> tuple[Trial, ...]:
    """Return the trials that the answer was chosen from, as the last screen has them: at the batch to train with."""
    batch = result.best.batch if result.best is not None else None
    if not result.curve:
        return parts[0].trials
    return next((part.trials for part in parts if part.problem.batch == batch), ())


def _facts(folder: StudyFolder, result: Result | None, parts: Sequence[Part]) -> dict[str, str]:
    """Return what the study is about, by name."""
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


def _measured(parts: Sequence[Part]) -> list[str]:
    trials = [trial for part in parts for trial in part.trials]
    if not trials:
        return []
    steps = sum(len(trial.measurement.step_seconds) for trial in trials)
    sentences = [f"{format_count(len(trials), 'trial')} with {format_count(steps, 'timed step')} in all"]
    if disturbed := describe_disturbed(trials):
        sentences.append(f"{disturbed}, marked in the list")
    return sentences
