"""An answer in words and figures, for the screen and the page, and as it stands on the screen."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from autorecompute.backends.registry import backend_of
from autorecompute.figures import Figures, format_interval, format_relative
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.ranges import INLINED, Count, Ratio
from autorecompute.reports.console import fit_table, make_console, shorten
from autorecompute.result import SearchEnd
from autorecompute.studies.checked import describe_unconfirmed
from autorecompute.studies.folder import PAGE
from autorecompute.training_job import ALLOCATOR
from autorecompute.units import format_bytes, format_count, format_rate, format_samples, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from autorecompute.backends.interface import Emission
    from autorecompute.figures import CurvePoint, KnobFigures
    from autorecompute.measurement import Trial
    from autorecompute.result import Best, Result
    from autorecompute.studies.folder import StudyFolder

ROUGH = 0.05  # median error of peaks above which measurements decide, and people are told so


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of a study's predictions, made before each trial."""

    trials: Annotated[Count, "Number of trials with both a predicted and a measured peak."]
    peak_median_error: Annotated[Ratio, "Median share by which the peaks were off."]
    peak_worst_error: Annotated[Ratio, "The same at worst."]
    within_interval: Annotated[Count, "Number of peaks within their 90 % interval."]
    step_median_error: Annotated[Ratio | None, "The same of step times; ``None`` without a reference."]
    steps: Annotated[Count, "Number of trials with both a predicted and a measured step time."]
    steps_within_interval: Annotated[Count, "Number of step times within their 90 % interval."]

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        steps = ""
        if self.step_median_error is not None:
            held = f"{self.steps_within_interval} of {self.steps} within theirs"
            steps = f"; step times {self.step_median_error:.1%} off in the median, {held}"
        is_rough = self.peak_median_error > ROUGH
        rough = f"; peaks are more than {ROUGH:.0%} off, so the search relied on its trials" if is_rough else ""
        return (
            f"predicted before each trial: peaks {self.peak_median_error:.1%} off in the median and "
            f"{self.peak_worst_error:.1%} at worst, {self.within_interval} of {self.trials} within their 90 % "
            f"interval{steps}{rough}"
        )


def expected_step_seconds(trial: Trial) -> float | None:
    """Return the expected step time; ``None`` where there is none, or it is relative to nothing that was measured."""
    step = trial.prediction.step if trial.prediction is not None else None
    return None if step is None or trial.reference_seconds is None else step * trial.reference_seconds


def peak_error(trial: Trial) -> float | None:
    """Return the share by which the measured peak was above the expected one; ``None`` without both."""
    peak = trial.measurement.peak_bytes
    return peak / trial.prediction.peak_bytes - 1 if peak is not None and trial.prediction is not None else None


def step_error(trial: Trial) -> float | None:
    """Return the share by which the measured step was longer than expected; ``None`` without both or a reference."""
    relative = trial.relative_throughput
    step = trial.prediction.step if trial.prediction is not None else None
    return 1 / relative / step - 1 if relative and step else None


def summarise(trials: Sequence[Trial]) -> Summary | None:
    """Summarise the errors of the predictions; return ``None`` where nothing was predicted."""
    peaks = [abs(error) for trial in trials if (error := peak_error(trial)) is not None]
    steps = [abs(error) for trial in trials if (error := step_error(trial)) is not None]
    if not peaks:
        return None
    predicted = [(trial, trial.prediction) for trial in trials if trial.prediction is not None]
    return Summary(
        trials=len(peaks),
        peak_median_error=statistics.median(peaks),
        peak_worst_error=max(peaks),
        within_interval=sum(
            _is_between(said.peak_low, trial.measurement.peak_bytes, said.peak_high) for trial, said in predicted
        ),
        step_median_error=statistics.median(steps) if steps else None,
        steps=len(steps),
        steps_within_interval=sum(
            _is_between(said.step_low, 1 / trial.relative_throughput, said.step_high)
            for trial, said in predicted
            if trial.relative_throughput
        ),
    )


def _is_between(low: float | None, value: float | None, high: float | None) -> bool:
    return low is not None and value is not None and high is not None and low <= value <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """A config that fits and was not the best."""

    description: Annotated[str, "The config in a few words."]
    figures: Annotated[Figures, INLINED]


RUNNERS_UP = 3
FAR_APART = 1.5  # so many times as fast in one process as in another is no matter of a busy moment's noise any more
LOST_SHARE = 0.08  # a share of the reserved memory that is worth a sentence
CARD = "cuda"
NOT_OUR_COMMAND = "the command came with an archive, from whoever made it: read it before you run it"
BEST = "best"
AGAIN = "autorecompute.auto again"

ANSWER_COLUMNS = ("", "config", "peak", "throughput", "relative", "outcome")
"""Headings of the answer's table. The first column has the role: ``baseline``, ``preset``, ``best``, ``runner-up`` or
``smaller batch``."""


def answer_lines(result: Result, trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Return the rows of ``ANSWER_COLUMNS``: none, the presets, the best, who came after it, and the rival batch."""
    lines = [_line("baseline", "none", result.baseline)]
    for name, figures in result.presets.items():
        words, expected = name.replace("_", " "), result.expected.get(name)
        if expected is None:
            lines.append(_line("preset", words, figures))
        else:
            relative = "-" if expected.step is None else f"~{format_relative(1 / expected.step)}"
            peak = f"~{format_bytes(expected.peak_bytes)}"
            lines.append(("preset", words, peak, "-", relative, "expected, not measured"))
    if (best := result.best) is not None:
        speed, end = format_rate(best.samples_per_second), "confirmed" if best.confirmed else "not confirmed"
        lines.append((BEST, best.description, format_bytes(best.peak_bytes), speed, best.relative_sentence, end))
    lines += [_line("runner-up", other.description, other.figures) for other in runners_up(result, trials)]
    rival = result.rival
    if rival is not None and not (best is not None and best.config.is_none and best.batch == rival.batch):
        lines.append(_line("smaller batch", f"none at batch {rival.batch}", rival))
    return lines


def _line(role: str, config: str, figures: Figures) -> tuple[str, ...]:
    return (
        role,
        config,
        format_bytes(figures.peak_bytes),
        format_rate(figures.samples_per_second),
        format_relative(figures.relative_throughput),
        str(figures.outcome or "not measured"),
    )


def runners_up(result: Result, trials: Sequence[Trial]) -> list[RunnerUp]:
    """Return the fastest other configs that could have been the best, with their relative throughput in the race."""
    best = result.best.config if result.best is not None else None
    # No recompute has a line of its own.
    fitting = (trial for trial in trials if trial.fits and not trial.config.is_none and trial.config != best)
    others = [trial for trial in fitting if trial.config.hash not in result.short_of_reserve]
    speeds = {trial.number: result.raced.get(trial.config.hash, trial.relative_throughput or 0) for trial in others}
    # Who was raced comes first: one window says less than many rounds.

    def slowness(trial: Trial) -> tuple[bool, float, float]:
        # On a card that has no room for the reference nothing has a relative throughput.
        return trial.config.hash not in result.raced, -speeds[trial.number], trial.measurement.median_step_seconds or 0

    found = []
    for trial in sorted(others, key=slowness)[:RUNNERS_UP]:
        figures, config = Figures.of(trial), trial.config.hash
        relative = result.raced.get(config, figures.relative_throughput)
        over_limit = Outcome.OVER_LIMIT if config in result.raced_over_limit else figures.outcome
        outcome = result.rejected.get(config, over_limit)
        raced = replace(figures, relative_throughput=relative, outcome=outcome)
        found.append(RunnerUp(description=trial.description, figures=raced))
    return found


def describe_dropped(result: Result, trials: Sequence[Trial]) -> list[str]:
    """Name the configs that held the limit in their trial and are not the answer, with the reason, a sentence each."""
    best = result.best.config.hash if result.best is not None else None
    names = {trial.config.hash: trial.description for trial in trials if trial.config.hash != best}
    # Wrong gradients are told in a sentence of their own.
    about_memory = {config: outcome for config, outcome in result.rejected.items() if outcome.is_about_memory}
    rejected = {config: f"{outcome} in its own process" for config, outcome in about_memory.items()}
    raced = dict.fromkeys(result.raced_over_limit, f"{Outcome.OVER_LIMIT} in a round of the race")
    return [f"not taken: {names[config]}: {why}" for config, why in {**raced, **rejected}.items() if config in names]


def describe_short(result: Result) -> str:
    """Count the configs that held the limit in their trial and left too little below it; empty where none did."""
    short, none = result.short_of_reserve, Config().hash
    if not short:
        return ""
    among = ", no recompute among them" if none in short else ""
    who = "no recompute" if short == (none,) else f"{format_count(len(short), 'config')}{among}"
    room = format_bytes(result.reserve_bytes)
    return f"not taken: {who}: within the limit, with less than {room} left for what a process holds beyond its tensors"


def answer_sentences(result: Result, trials: Sequence[Trial]) -> list[str]:
    """Return the answer's speed, the verdict, and how sure it is, a sentence each."""
    speed = [f"speed: {result.headline}"] if result.headline else []
    return [*speed, f"verdict: {result.verdict_sentence}", *circumstances(result), *certainties(result, trials)]


EARLY_ENDS = {
    SearchEnd.TIME: "the time is over",
    SearchEnd.INTERRUPTED: "interrupted",
    SearchEnd.TRAINING: "the training ended, or had no steps left for trials",
}


def circumstances(result: Result) -> list[str]:
    """Return under what the answer holds, a sentence each."""
    best, start = result.best, result.transferred_from
    sentences = [] if start is None else [start.sentence]
    if best is None:
        return sentences
    if result.search_end.is_early:
        so_far = "the fastest so far, and no process has confirmed it"
        standing = "the best that was confirmed" if best.confirmed else so_far
        sentences.insert(0, f"{EARLY_ENDS[result.search_end]}: this is {standing}; rerun the command to continue")
    sentences += best.sentences_of_lengths
    limit = f"limit {format_bytes(best.limit_bytes)} on {result.device.name}, {best.size}"
    return [*sentences, f"{limit}; {format_count(result.trials, 'trial')} in {format_seconds(result.wall_seconds)}"]


def certainties(result: Result, trials: Sequence[Trial]) -> list[str]:
    """Return the sentences on how sure the answer is."""
    best, summary = result.best, summarise(trials)
    sentences: list[str] = []
    if best is not None:
        if best.ranking is not None:
            sentences.append(f"finalists: {best.ranking.sentence}")
        if (check := best.gradients) is not None:
            equality = "equal bit for bit" if check.worst == 0 else f"equal within {check.worst:.1e}"
            steps = format_count(check.steps, "step")
            sentences.append(f"gradients {equality} to those without recompute, over {steps}")
        told = "" if summary is None else summary.sentence
        sentences += [told, describe_compilations(trials), _describe_contradiction(best, trials)]
    if result.comparison is not None:
        sentences.append(f"recompute gives {result.comparison.sentence}")
    if result.beside_checkpointing is not None:
        sentences.append(
            f"the answer gives {result.beside_checkpointing.beside('gradient checkpointing of all blocks')}"
        )
    sentences += [*describe_dropped(result, trials), describe_short(result), describe_fragments(result, trials)]
    return [*filter(None, sentences), *(f"warning: {warning}" for warning in result.warnings)]


def describe_fragments(result: Result, trials: Sequence[Trial]) -> str:
    """Describe the memory that a card's allocator reserved beyond the winner's tensors; empty where it is little.

    On an H100, a tenth of the peaks and more was such memory, with the allocator's default settings. Segments that grow
    have little.
    """
    best = next((trial for trial in trials if result.best is not None and trial.config == result.best.config), None)
    if best is None or result.device.kind != CARD or result.versions.get(ALLOCATOR):
        return ""
    reserved, allocated = best.measurement.peak_bytes, best.measurement.allocated_bytes
    if not reserved or not allocated or reserved - allocated < LOST_SHARE * reserved:
        return ""
    return (
        f"its trial reserved {format_bytes(reserved)} of the card for {format_bytes(allocated)} of tensors: less may "
        "be lost with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set for a new tuning and for the training"
    )


def describe_compilations(trials: Sequence[Trial]) -> str:
    """Tell the compile time of a compiled model's trials; empty where none was compiled."""
    seconds = [trial.measurement.compile_seconds for trial in trials if trial.measurement.compile_seconds]
    longest = f", {format_seconds(max(seconds))} at most" if len(seconds) > 1 else ""
    whose = f"{format_count(len(seconds), 'trial')} compiled the model for {format_seconds(sum(seconds))}{longest}"
    return whose if seconds else ""


def describe_disturbed(trials: Sequence[Trial]) -> str:
    """Count the trials that something else on the machine disturbed; empty where none was."""
    marked = sum(bool(trial.measurement.marks) for trial in trials)
    return f"{format_count(marked, 'trial')} disturbed by something else on the machine" if marked else ""


def lines_to_paste(result: Result, rendered: Emission | None, folder: StudyFolder) -> list[str]:
    """Return the steps to train with the answer, commands on lines of their own; empty where there is none."""
    if rendered is None:
        return [] if result.best is None else [describe_unconfirmed(result.study)]
    variables = exports(rendered)
    by_hand = [f"{where_exported(result)}:", *(f"  {line}" for line in variables)] if variables else []
    return ["train with it:", f"  {run_command(result, folder)}", *by_hand, *remarks(result, rendered)]


def exports(rendered: Emission) -> list[str]:
    """Return the variables to train with without ``run``, as a shell sets them; empty where nothing has to be set."""
    return [f"export {name}={shlex.quote(value)}" for name, value in rendered.variables.items()]


def where_exported(result: Result) -> str:
    """Return in which scripts these variables have an effect, as what comes after the command of ``run``."""
    if not result.script_at:
        return f"with this set, or call {AGAIN}"
    return f"or, in {backend_of(result.versions).READ_BY}"


def run_command(result: Result, folder: StudyFolder) -> str:
    """Return the command that trains with the answer; in a notebook, where no command does, the call."""
    if not result.script_at:
        return "autorecompute.apply(model)"
    return f"autorecompute run {shlex.quote(folder.place)} -- {shlex.join(result.command)}"


def remarks(result: Result, rendered: Emission) -> list[str]:
    """Return the other steps to take."""
    lines = [] if rendered.variables else ["Or start it as it is: nothing has to be set."]
    if result.best is not None and not result.command_gives_batch:
        lines.append(f"Set the script's batch size to {result.best.batch}; tuning overrode its DataLoader.")
    return lines


def describe_page(folder: StudyFolder) -> str:
    """Return the path of the study's page, or the command that makes it."""
    page, answer = folder.path / PAGE, folder.path / "result.json"
    is_current = page.is_file() and answer.is_file() and page.stat().st_mtime >= answer.stat().st_mtime
    return f"page: {page if is_current else f'autorecompute report {shlex.quote(folder.place)}'}"


def _describe_contradiction(best: Best, trials: Sequence[Trial]) -> str:
    speeds = [trial.measurement.samples_per_second for trial in trials if trial.config == best.config]
    known = [speed for speed in speeds if speed]
    if not known or not best.samples_per_second or not best.confirmed:
        return ""
    trial = known[-1]
    if max(trial, best.samples_per_second) < FAR_APART * min(trial, best.samples_per_second):
        return ""
    return (
        f"warning: the winner gave {format_rate(best.samples_per_second)} in its own process and {format_rate(trial)} "
        "in its trial: something disturbed one of the two, and 'autorecompute check' measures it again"
    )


CONFIG_WIDTH = 40
CURVE_COLUMNS = ("batch", "without", "peak", "with", "peak", "config", "study")


def curve_cells(point: CurvePoint, chosen: int | None) -> tuple[str, ...]:
    """Return the cells of a batch under ``CURVE_COLUMNS``; the chosen one has a star."""
    batch = f"{'* ' if point.batch == chosen else ''}{point.batch}"
    found = point.recomputed
    if found is None:
        return (batch, *_cells(point.without), "", "", "", "")
    speed, peak = _cells(found.figures)
    if found.config is None:
        peak = format_bytes(found.least_peak_bytes)
    return (batch, *_cells(point.without), speed, peak, found.description, found.study)


def _cells(figures: Figures) -> tuple[str, str]:
    speed = format_samples(figures.samples_per_second)
    # What does not fit has a figure all the same: in brackets, as nobody can train that way.
    is_beyond = figures.samples_per_second is not None and figures.outcome is not Outcome.OK
    return (f"({speed})" if is_beyond else speed, format_bytes(figures.peak_bytes))


KNOB_COLUMNS = ("knob", "with : without", "95 %", "peak", "change", "")


def knob_cells(knob: KnobFigures) -> tuple[str, ...]:
    """Return the cells of a knob that was tried, under ``KNOB_COLUMNS``."""
    change = "-"
    if knob.peak_bytes is not None and knob.base_peak_bytes is not None:
        more = knob.peak_bytes - knob.base_peak_bytes
        change = f"{'+' if more >= 0 else '-'}{format_bytes(abs(more))}"
    end = f"{knob.outcome}: {knob.message}"
    if knob.throughput_ratio is not None:
        end = "; ".join(filter(None, ["kept" if knob.kept else "not kept", knob.message]))
    return (
        knob.name,
        format_relative(knob.throughput_ratio),
        "-" if knob.low is None or knob.high is None else format_interval(knob.low, knob.high),
        format_bytes(knob.peak_bytes),
        change,
        end,
    )


NAME_WIDTH = 60
TRIAL_COLUMNS = (
    "#", "config", "why", "peak", "expected", "samples/s", "relative", "step", "expected", "outcome",
)  # fmt: skip
SPARED = frozenset({"why", "expected", "step"})


def print_result(
    result: Result,
    trials: Sequence[Trial],
    folder: StudyFolder,
    rendered: Emission | None,
    console: Console | None = None,
) -> None:
    """Print the answer: the table, the verdict and the lines to paste. ``trials`` are those that it was chosen from."""
    console = console or make_console()
    if result.curve:
        chosen = result.best.batch if result.best is not None else None
        cells = [curve_cells(point, chosen) for point in result.curve]
        curve = [(*figures, shorten(config, CONFIG_WIDTH), study) for *figures, config, study in cells]
        console.print(Text("samples/s by batch", style="italic"))
        console.print(fit_table(CURVE_COLUMNS, curve, console.width, spared={"study"}), Text(), sep="\n")
    if result.trials or result.best is not None:
        rows: list[tuple[str | Text, ...]] = []
        for role, config, *figures, outcome in answer_lines(result, trials):
            styles = ("bold", "bold green") if role == BEST else ("", "")
            rows.append((Text(role, styles[0]), shorten(config, NAME_WIDTH), *figures, Text(outcome, styles[1])))
        console.print(fit_table(ANSWER_COLUMNS, rows, console.width), Text(), sep="\n")
    for line in (*answer_sentences(result, trials), f"study: {folder.path}", describe_page(folder), ""):
        console.print(Text(line))
    if result.knobs:
        _print_knobs(result.knobs, console)
    for line in lines_to_paste(result, rendered, folder):
        # A line to paste must not be broken or cut, however narrow the terminal is.
        console.print(Text(line), soft_wrap=True)


def _print_knobs(knobs: Sequence[KnobFigures], console: Console) -> None:
    rows: list[tuple[str | Text, ...]] = []
    for knob in knobs:
        if knob.outcome is not None:
            *figures, end = knob_cells(knob)
            rows.append((*figures, Text(end, style="bold green" if knob.kept else "")))
    if rows:
        console.print(fit_table(KNOB_COLUMNS, rows, console.width))
    for knob in knobs:
        if knob.outcome is None:
            console.print(Text(f"{knob.name} was {knob.sentence}"))
    console.print()


def print_trials(trials: Sequence[Trial], console: Console | None = None) -> None:
    """Print every trial of a study."""
    rows = [
        (
            str(trial.number),
            shorten(trial.description, NAME_WIDTH),
            shorten(trial.reason, NAME_WIDTH),
            format_bytes(trial.measurement.peak_bytes),
            "-" if trial.prediction is None else format_bytes(trial.prediction.peak_bytes),
            format_samples(trial.measurement.samples_per_second),
            format_relative(trial.relative_throughput),
            format_seconds(trial.measurement.median_step_seconds),
            format_seconds(expected_step_seconds(trial)),
            str(trial.measurement.outcome),
        )
        for trial in trials
    ]
    console = console or make_console()
    console.print(fit_table(TRIAL_COLUMNS, rows, console.width, SPARED))
    if disturbed := describe_disturbed(trials):
        numbers = ", ".join(str(trial.number) for trial in trials if trial.measurement.marks)
        console.print(Text(f"{disturbed}: {numbers}"))
