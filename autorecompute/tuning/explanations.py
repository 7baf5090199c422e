"""The sentences that explain an answer."""

from __future__ import annotations

import math
import os
import statistics
from typing import TYPE_CHECKING

from autorecompute.plans.savings import BATCH, explain_worthless
from autorecompute.search.candidates import predict_frontier
from autorecompute.search.model_searcher import LIKELY
from autorecompute.studies.records import read_batches
from autorecompute.studies.storage import read_trials
from autorecompute.training_job import ALLOCATOR, THRESHOLD_VARIABLE
from autorecompute.tuning.race import Finalist, fitting_finalists, lag, race_winner
from autorecompute.tuning.rivals import FORECAST_SHARE
from autorecompute.units import MIB, format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autorecompute.measurement import Measurement, Prediction, Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.result import Best, Rejection, Result
    from autorecompute.studies import StudyFolder
    from autorecompute.training_job import Detection


STARTS_OF_AN_ANSWER = 4
"""The script is started twice for an answer, to be measured and to be confirmed; what lies between takes about as long
in a script that starts in seconds."""


MORE_TIME = 2
"""So many times what was given is the least that is advised: it was too little."""


def _advise_on_time(given_seconds: float | None, start_seconds: float = 0.0) -> str:
    """Return how much time to give, as an option; never less than twice what was given."""
    enough = max(STARTS_OF_AN_ANSWER * start_seconds, MORE_TIME * (given_seconds or 0.0))
    return f"--timeout {math.ceil(enough)}s at least" if enough else "more with --timeout"


def explain_too_little_time(folder: StudyFolder, start_seconds: float, given_seconds: float | None) -> str:
    """Return that there was no time for a single trial, and how much to try.

    A start took no time where none came to its end.
    """
    trials = read_trials(folder.database, folder.name_in_database)
    which, kept = "another" if trials else "the first", ""
    if trials:
        kept = f" {format_count(len(trials), 'trial')} kept in {folder.path}. Rerun the command to continue."
    advice = f"Give it {_advise_on_time(given_seconds, start_seconds)}."
    if not start_seconds:
        return f"The time was over before {which} trial. {advice}{kept}"
    return (
        f"The time was over before {which} trial: a start of the script takes {format_seconds(start_seconds)}, and "
        f"an answer two of them and some trials. {advice}{kept}"
    )


def explain_unconfirmed(folder: StudyFolder) -> str:
    """Tell of a training's answer that no process has confirmed; it stays in the study. Empty where there is none."""
    result = folder.result()
    if result is None or result.best is None or result.best.confirmed:
        return ""
    return f"What a training found is not confirmed yet: {result.best.description}."


def explain_late_batches(folder: StudyFolder, batches: Sequence[int], given_seconds: float | None) -> str:
    """Return that the time of a tuning over several batches was over before a batch was done, and what is kept."""
    advice = f"Give it {_advise_on_time(given_seconds)}."
    if not read_batches(folder, batches).without:
        return f"The time was over before the first trial. {advice}"
    return (
        f"The time was over before another batch was done. {advice} What was measured is kept in {folder.path}. Rerun "
        "the command to continue."
    )


WHOLE_PROCESS_SHARE = 0.05
"""Share of the limit that a whole process needs beyond its timed steps, with start and export, as a rule."""


def advise_on_glibc(detection: Detection) -> str:
    """Return a sentence on what has a whole process hold less; empty where that is done, or the user has decided."""
    if detection.device.kind != "cpu" or ALLOCATOR in detection.versions or THRESHOLD_VARIABLE in os.environ:
        return ""
    return f"{THRESHOLD_VARIABLE}={MIB} in the environment has glibc give back what was freed."


def explain_no_fit(  # noqa: PLR0913  (all that is known)
    trials: Sequence[Trial],
    detection: Detection,
    limit_bytes: int,
    unconfirmed: Sequence[str] = (),
    rejections: Sequence[Rejection] = (),
    *,
    memory: MemoryModel | None = None,
) -> str:
    """Return a sentence on the least peak seen, and what it would take to fit.

    ``unconfirmed`` are reasons other than memory, the last one at the end. A model of memory forecasts peaks where none
    was measured.
    """
    # A trial that failed may have a peak, too, which is not that of a whole step.
    measured = [trial for trial in trials if trial.measurement.outcome.is_measured]
    if not measured:
        return (
            f"No config holds {format_bytes(limit_bytes)}, and none ran to its end. "
            f"{_smaller_batch(detection, limit_bytes, memory)}{_explain_detected(detection)}"
        )
    needed_without = _needed_without(measured, rejections, limit_bytes)
    too_large = {known.config for known in rejections if known.outcome.is_about_memory}
    least = min(measured, key=lambda trial: (trial.config not in too_large, trial.measurement.peak_bytes or 0))
    peak_bytes = least.measurement.peak_bytes or 0
    if least.config in too_large:
        reason = next(known.reason for known in rejections if known.config == least.config)
        # The leanest config should need as much more as a whole process as those that ran.
        excess = max((known.excess_bytes or 0 for known in rejections), default=0)
        leanest = min(trial.measurement.peak_bytes or 0 for trial in measured)
        enough = max(leanest + excess, limit_bytes + MIB) if excess else limit_bytes * 11 // 10
        return (
            f"{least.description} held {format_bytes(limit_bytes)} while it trained, with "
            f"{format_bytes(peak_bytes)}, but its whole process did not. Not confirmed: {reason}. "
            f"{_higher_limit(enough, needed_without)}. "
            f"{advise_on_glibc(detection)}".rstrip()
        )
    if peak_bytes <= limit_bytes:
        why = unconfirmed[-1] if unconfirmed else f"{least.description} held the limit and was not tried any further"
        return f"No config was confirmed. {why}. Train without recompute at a smaller batch."
    enough = round(peak_bytes * (1 + WHOLE_PROCESS_SHARE))
    share = (limit_bytes - detection.resting_bytes) / max(enough - detection.resting_bytes, 1)
    batch = int(detection.batch * share)
    smaller = f", or by a rough estimate --target-batch {batch}" if 0 < batch < detection.batch else ""
    return (
        f"No config holds {format_bytes(limit_bytes)} in {format_count(len(trials), 'trial')}. The least peak was "
        f"{format_bytes(peak_bytes)} with {least.description}. {_higher_limit(enough, needed_without, smaller)}."
        f"{_explain_detected(detection)}"
    )


def _smaller_batch(detection: Detection, limit_bytes: int, memory: MemoryModel | None) -> str:
    """Suggest a batch where no peak was measured: half of it, or one that is forecast to fit."""
    if detection.batch == 1:
        return "Train a smaller model."
    half = f"Train with a smaller batch: --target-batch {detection.batch // 2}"
    if memory is None:
        return half
    dims = {**detection.dims, BATCH: detection.batch}
    least = predict_frontier(memory, dims)[0]
    forecast = f"{format_bytes(least.peak_bytes)} is the least that is forecast, with "
    forecast += f"{memory.space.describe(least.config)}"
    batch = memory.largest_batch(least.config, dims, round(FORECAST_SHARE * limit_bytes))
    if not 0 < batch < detection.batch:
        return f"{forecast}. {half}"
    return f"{forecast}: --target-batch {batch} should fit."


def _needed_without(measured: Sequence[Trial], rejections: Sequence[Rejection], limit_bytes: int) -> int | None:
    """Return the measured bytes without recompute, of a whole process where one ran.

    ``None`` if it is unknown or fits.
    """
    peaks = [trial.measurement.peak_bytes or 0 for trial in measured if trial.config.is_none]
    own = [known for known in rejections if known.config.is_none]
    needed = max(peaks, default=0) + max((known.excess_bytes or 0 for known in own or rejections), default=0)
    return needed if needed > limit_bytes else None


def _higher_limit(enough: int, needed_without: int | None, or_else: str = "") -> str:
    """Suggest a limit: never more than the batch needs without any recompute."""
    if needed_without is None or enough < needed_without:
        return f"Try --memory-limit {_whole_mib(enough)}{or_else}"
    return (
        f"Try --memory-limit {_whole_mib(needed_without)}{or_else}: without recompute it needs "
        f"{format_bytes(needed_without)}"
    )


def _whole_mib(number_of_bytes: int) -> str:
    return f"{-(-number_of_bytes // MIB)}MiB"


def explain_untuned(batches: Sequence[int], max_trials: int) -> str:
    """Return that listed batches had no trials left, and what to do."""
    names = ", ".join(map(str, batches))
    return (
        f"batch {names} was not tuned: {format_count(max_trials, 'trial')} were used up. Allow more with --max-trials, "
        "and rerun the command"
    )


def explain_early_end(  # noqa: PLR0913  (all that is known)
    trials: Sequence[Trial],
    detection: Detection,
    limit_bytes: int,
    unconfirmed: Sequence[str] = (),
    rejections: Sequence[Rejection] = (),
    *,
    memory: MemoryModel | None = None,
    winner: Trial | None = None,
) -> str:
    """Return the same where rerunning the command continues; takes what :func:`explain_no_fit` takes.

    The winner is that of a race among these trials, where there was one.
    """
    rejected = {known.config for known in rejections}
    fitting = [entry.trial for entry in fitting_finalists(trials) if entry.trial.config not in rejected]
    if fitting:
        reasons = [*(known.reason for known in rejections), *unconfirmed]
        why = (
            f"No config was confirmed: {reasons[-1]}."
            if reasons
            else "The time was over before a config was confirmed."
        )
        return (
            f"{why} The best that fits so far, not confirmed: {(winner or fitting[0]).description}. The same command "
            "goes on from there; --timeout gives it more time."
        )
    found = explain_no_fit(trials, detection, limit_bytes, unconfirmed, rejections, memory=memory)
    return f"The time was over before a config that fits was found; --timeout gives it more. {found}"


def explain_too_few_trials(
    trials: int, limit_bytes: int, expected: Mapping[str, Prediction], rejections: Sequence[Rejection] = ()
) -> str:
    """Return that more trials may find a config that fits, and the preset that should.

    ``expected`` are the predictions of the presets that were not measured.
    """
    found = f"No config that holds {format_bytes(limit_bytes)} was found in {format_count(trials, 'trial')}."
    why = f"Not confirmed: {rejections[-1].reason}." if rejections else ""
    fitting = {name: one for name, one in expected.items() if one.peak_bytes <= limit_bytes and one.fits >= LIKELY}
    should = ""
    if fitting:
        name, least = min(fitting.items(), key=lambda pair: pair[1].peak_bytes)
        should = f"The preset '{name}' should hold it, with about {format_bytes(least.peak_bytes)}."
    way_out = "Allow more trials with --max-trials, and rerun the command to continue."
    return " ".join(filter(None, [found, why, should, way_out]))


def explain_no_batch(result: Result, limit_bytes: int) -> str:
    """Return the same for an answer of several batches."""
    curve = result.curve
    if not curve:
        return "The time was over before the first trial. Give it more with --timeout."
    if result.search_end.is_early:
        return "The time was over before a batch that fits was found. Give it more with --timeout."
    if result.verdict is None:
        return (
            f"No batch that holds {format_bytes(limit_bytes)} was found in {format_count(result.trials, 'trial')}. "
            "Allow more trials with --max-trials, and rerun the command to continue."
        )
    # Smaller ones that fit were asked for earlier.
    smallest = next((point for point in curve if not point.fits_without), curve[0])
    least = smallest.recomputed.least_peak_bytes if smallest.recomputed is not None else smallest.without.peak_bytes
    why = "none of its trials ran to its end" if least is None else f"its least peak was {format_bytes(least)}"
    if least is not None and least <= limit_bytes:
        why = f"with {format_bytes(least)} it did while it trained, but its whole process did not"
    or_else = ", or a smaller batch" if smallest.batch > 1 else ""
    return (
        f"No batch from {smallest.batch} on holds {format_bytes(limit_bytes)}: {why}. "
        f"Try a higher --memory-limit{or_else}."
    )


def explain_interruption(folder: StudyFolder, so_far: Result | None = None) -> str:
    """Tell of an interrupted tuning's kept trials, and of the best config that is known."""
    trials = read_trials(folder.database, folder.name_in_database)
    rejected = {known.config for known in folder.rejections()}
    fitting = [entry.trial for entry in fitting_finalists(trials) if entry.trial.config not in rejected]
    best = race_winner(folder, trials, rejected) or next(iter(fitting), None)
    found = f" The best that fits so far, not confirmed: {best.description}." if best else ""
    if so_far is not None and so_far.best is not None:
        found = f" The best that is confirmed so far: {so_far.best.description}."
    kept = f"{format_count(len(trials), 'trial')} kept in {folder.path}"
    return f"interrupted. {kept}.{found} Rerun the command to continue."


def explain_interrupted_batches(folder: StudyFolder, so_far: Result | None = None) -> str:
    """Return the same of a tuning over several batches."""
    best = so_far.best if so_far is not None else None
    found = f" The best so far: {best.size}, {best.description}." if best is not None else ""
    return f"interrupted. What was measured is kept in {folder.path}.{found} Rerun the command to continue."


def _explain_detected(detection: Detection) -> str:
    reason = explain_worthless(detection.plans, {**detection.dims, BATCH: detection.batch})
    return f" {reason}" if reason else ""


def summarize_search(  # noqa: PLR0913  (all that is known)
    best: Best | None,
    limit_bytes: int,
    *,
    trials: Sequence[Trial],
    first: Trial | None,
    standings: Sequence[Finalist],
    refused: Sequence[str],
    spent_steps: int,
    spent_seconds: float,
    notes: Sequence[str] = (),
) -> str:
    """Compare the config that a training goes on with to its first one, and tell the cost of the trials.

    The standings were compared in turns, the fastest first. Each refused config comes with the reason. Notes are
    further sentences without a full stop.
    """
    began = next((entry for entry in standings if entry.trial == first), None)
    if not trials:
        end = "keeping the current config: none was measured"
    elif best is None:
        tried, limit = format_count(len(trials), "config"), format_bytes(limit_bytes)
        peaks = [trial.measurement.peak_bytes for trial in trials if trial.measurement.peak_bytes is not None]
        least = f"; the least peak was {format_bytes(min(peaks))}, a limit needs that" if peaks else ""
        end = f"keeping the current config: {tried} tried, and none can be used at {limit}{least}"
    else:
        end, cost = describe(best), f"The trials took {format_count(spent_steps, 'step')}"
        if began is None or began is standings[0]:
            end += f"; {_describe_lead(trials, standings)}. {cost}"
        else:
            ratio = math.exp(lag(began, standings[0]))
            end += f", {ratio:.2f}x of {name_of(began.trial)} ({format_bytes(began.peak_bytes)}), which it began with"
            end += f". {_describe_return(step_seconds(began), ratio, spent_steps, spent_seconds) or cost}"
    if refused:
        end += f". Not used: {refused[0]}{f', and {len(refused) - 1} more' if len(refused) > 1 else ''}"
    return ". ".join([end, *notes])


def _describe_lead(trials: Sequence[Trial], standings: Sequence[Finalist]) -> str:
    if sum(trial.measurement.outcome.is_measured for trial in trials) == 1:
        return "no other was measured"
    return "no other was faster" if standings else "no steps were left to compare it in turns with others"


def _describe_return(first_seconds: float, ratio: float, spent_steps: int, spent_seconds: float) -> str:
    """After how many steps the training is where it would be if it had stayed with what it began with."""
    gained = first_seconds - first_seconds / ratio
    lost_seconds = spent_seconds - spent_steps * first_seconds
    if gained <= 0:
        return ""
    steps = spent_steps + math.ceil(max(lost_seconds, 0.0) / gained)
    return f"The trials are earned back after {format_count(steps, 'step')}"


def step_seconds(entry: Finalist) -> float:
    """Median wall time of a step, in the race where it ran in one."""
    raced = [seconds for run in entry.rounds for seconds in run.step_seconds]
    return statistics.median(raced or entry.trial.measurement.step_seconds)


def describe(best: Best) -> str:
    """Return the config with its peak and its speed."""
    peak, limit = format_bytes(best.peak_bytes), format_bytes(best.limit_bytes)
    return f"{name_of(best)}, peak {peak} of {limit}, {format_rate(best.samples_per_second)}"


def name_of(tried: Best | Trial) -> str:
    """Return the config as a sentence has it."""
    return "no recompute" if tried.config.is_none else tried.description


OVER_BATCH = "the loss of a sample depends on the others in its batch, as a contrastive one does"


def explain_unsplittable(detection: Detection, measurements: Iterable[Measurement]) -> str:
    """Return why two halves of a batch train to other weights than the whole; empty where nothing says so."""
    if detection.unsplittable:
        return detection.unsplittable
    if not any(one.is_over_batch for one in measurements):
        return ""
    return OVER_BATCH
