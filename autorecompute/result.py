"""The result of a tuning, and the evidence that later trainings add to it."""

from __future__ import annotations

import contextlib
import enum
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from autorecompute import codec
from autorecompute.figures import (
    Comparison,
    CurvePoint,
    Figures,
    KnobFigures,
    Ranking,
    Verdict,
    format_interval,
    format_relative,
)
from autorecompute.measurement import GradientCheck, Outcome, Prediction
from autorecompute.plans import Config, Lengths
from autorecompute.ranges import (
    Batch,
    Bytes,
    Number,
    PositiveBytes,
    PositiveCount,
    Rate,
    Ratio,
    RatioEnd,
    Seconds,
    require_versions,
)
from autorecompute.training_job import CHECKPOINTING, KEPT, Device
from autorecompute.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path


GO_ON = "Rerun the command to continue; --timeout gives it more time"
CHECKPOINTING_OF_BLOCKS = "gradient checkpointing"
NO_LARGER = "no larger batch was made to fit with recompute"
OWN_ALONE = "with the script's own checkpointing alone"

HOPELESS = 0.05  # a preset that is less likely than this to hold the limit leaves nothing open


class SearchEnd(enum.StrEnum):
    """Why no further config was measured."""

    NOTHING_LEFT = "nothing_left"
    """Every config worth a trial was measured."""
    TRIALS = "trials"
    """The trials that the user allowed were used up."""
    TIME = "time"
    """The time that the user allowed was used up."""
    INTERRUPTED = "interrupted"
    """The user stopped it; this is the best that was confirmed until then."""
    TRAINING = "training"
    """The training that was tuned ended, or had no steps left for trials, before two configs were compared."""

    @property
    def is_early(self) -> bool:
        """Tell whether there is more to be found with more time."""
        return self in {SearchEnd.TIME, SearchEnd.INTERRUPTED, SearchEnd.TRAINING}


def describe_batch(batch: int, passes: int | None) -> str:
    """Return a batch in words; where an effective batch was asked for, as what makes it."""
    return f"batch {batch}" if passes is None else f"micro-batch {batch} x {passes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A config for batches that are shorter than the longest."""

    length: Annotated[PositiveCount, "Tokens that a sample has at most."]
    config: Annotated[Config, "What it recomputes."]
    description: Annotated[str, "The same in a few words."]
    peak_bytes: Annotated[PositiveBytes, "Peak of its trial at this length."]
    samples_per_second: Annotated[Rate, "Throughput of its trial at this length."]
    speedup: Annotated[Ratio, "Throughput over that of the longest's config at this length."]

    @property
    def what(self) -> str:
        """Return what it recomputes, in words that stand alone."""
        return "no recompute" if self.config.is_none else self.description

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        return (
            f"up to {self.length} tokens: {self.what}, {self.speedup:.2f}x the longest's config, "
            f"{self.length * self.samples_per_second:,.0f} tokens/s, peak {format_bytes(self.peak_bytes)} in its trial"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The config to train with."""

    config: Annotated[Config, "What it recomputes."]
    description: Annotated[str, "The same in a few words."]
    batch: Annotated[Batch, "Samples a forward."]
    accumulation: Annotated[
        PositiveCount | None, "Passes of an optimizer step; ``None`` where that is the script's matter."
    ] = None
    samples_per_second: Annotated[Rate, "Throughput of the confirming run."]
    relative_throughput: Annotated[
        Ratio | None, "Throughput over that without recompute, interleaved, before any knob."
    ]
    peak_bytes: Annotated[PositiveBytes, "Peak of the confirming run, over the whole life of its process."]
    limit_bytes: Annotated[PositiveBytes, "What the peak may reach."]
    relative_low: Annotated[RatioEnd | None, "Lower end of its 95 % interval; ``None`` below two rounds."] = None
    relative_high: Annotated[RatioEnd | None, "Upper end of it."] = None
    ranking: Annotated[Ranking | None, "How the race ended that it won; ``None`` where it won none."] = None
    losses: Annotated[tuple[float, ...], "Losses of the confirming run's timed steps."] = ()
    gradients: Annotated[GradientCheck | None, "Gradient check; ``None`` where nothing is recomputed."] = None
    knobs: Annotated[tuple[str, ...], "Names of the other settings that are on."] = ()
    longest: Annotated[PositiveCount | None, "Tokens of the longest sample, where that was given."] = None
    buckets: Annotated[tuple[Bucket, ...], "Configs of shorter batches, the shortest first."] = ()
    confirmed: Annotated[bool, "Whether a fresh process under nothing but what is emitted gave these figures."]

    def __post_init__(self) -> None:
        if self.lengths is None and self.buckets:
            raise ValueError("has configs of shorter batches, and no length of the longest")

    @property
    def lengths(self) -> Lengths | None:
        """Return the config of each length; ``None`` where one is for all."""
        if self.longest is None or not self.buckets:
            return None
        return Lengths(
            batch=self.batch,
            ends=(*(bucket.length for bucket in self.buckets), self.longest),
            configs=(*(bucket.config for bucket in self.buckets), self.config),
        )

    @property
    def sentences_of_lengths(self) -> tuple[str, ...]:
        """Return for which lengths of a batch which config is, a line each; none where one is for all."""
        if self.longest is None:
            return ()
        rate = f"{self.longest * self.samples_per_second:,.0f} tokens/s"
        return (
            *(bucket.sentence for bucket in self.buckets),
            f"up to {self.longest} tokens: {self.description}, {rate}",
        )

    @property
    def size(self) -> str:
        """Return the batch, with how often it makes a step where that is known: ``micro-batch 8 x 4``."""
        return describe_batch(self.batch, self.accumulation)

    @property
    def relative_sentence(self) -> str:
        """Return the relative throughput with its 95 % interval, if it has one that tells: ``0.87x (0.85-0.89)``."""
        ratio = format_relative(self.relative_throughput)
        if self.relative_throughput is None or self.relative_low is None or self.relative_high is None:
            return ratio
        return f"{ratio} ({format_interval(self.relative_low, self.relative_high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A config that held the limit in its trial, and cannot be the answer all the same."""

    config: Annotated[Config, "What it recomputes."]
    outcome: Annotated[Outcome, "Its outcome as a trial: wrong gradients, or a whole process that needs too much."]
    reason: Annotated[str, "The same in a sentence that names it."]
    excess_bytes: Annotated[Bytes | None, "Bytes of its whole process beyond its timed steps, if they were why."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Study that a tuning started from, or had its answer from."""

    study: Annotated[str, "Name of the stored study."]
    differences: Annotated[tuple[str, ...], "What the problem differs in; empty where its answer was taken over."] = ()

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        if not self.differences:
            return f"takes over the trials and the answer of study {self.study}: the same problem"
        return f"warm start from study {self.study}: {'; '.join(self.differences)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer of a study."""

    study: Annotated[str, "Name of the study."]
    problem: Annotated[str, "Digest of the problem it solves."]
    verdict: Annotated[Verdict | None, "Verdict on recompute; ``None`` where time or trials were over before it."]
    best: Annotated[Best | None, "The config to train with; ``None`` where none fits."]
    baseline: Annotated[Figures, "The figures without recompute."]
    presets: Annotated[dict[str, Figures], "Figures of presets, ``all_on`` among them."] = field(default_factory=dict)
    expected: Annotated[dict[str, Prediction], "Forecast of each unmeasured preset."] = field(default_factory=dict)
    rival: Annotated[Figures | None, "Largest batch to fit without recompute, if sought; the fastest of several."] = (
        None
    )
    compared: Annotated[bool, "False where time or a passing fault kept finalists or a rival from being run."] = True
    comparison: Annotated[Comparison | None, "Recompute beside the rival; ``None`` without a comparison."] = None
    checkpointing: Annotated[Figures | None, "Gradient checkpointing of all blocks; ``None`` if not measured."] = None
    beside_checkpointing: Annotated[Comparison | None, "The answer beside that; ``None`` where that does not fit."] = (
        None
    )
    curve: Annotated[tuple[CurvePoint, ...], "Every measured batch, the smallest first; empty for a single batch."] = ()
    raced: Annotated[dict[str, Ratio], "Relative throughput of finalists, by hash."] = field(default_factory=dict)
    raced_over_limit: Annotated[tuple[str, ...], "Hashes of configs over the limit in the race alone."] = ()
    reserve_bytes: Annotated[Bytes, "Room kept below the limit for what a process holds beyond its tensors."] = 0
    short_of_reserve: Annotated[tuple[str, ...], "Hashes of configs that held the limit, and left less room."] = ()
    rejected: Annotated[dict[str, Outcome], "Faults found in fitting configs, by hash."] = field(default_factory=dict)
    is_over_batch: Annotated[bool, "Whether no smaller batch was compared, as its loss would be another one."] = False
    warnings: Annotated[tuple[str, ...], "What the script does that recompute does not bear."] = ()
    unconfirmed: Annotated[tuple[str, ...], "Reasons beside memory that kept fitting configs from being best."] = ()
    trials: Annotated[Number, "How many configs were measured."]
    search_end: Annotated[SearchEnd, "Why it were not more."] = SearchEnd.NOTHING_LEFT
    wall_seconds: Annotated[Seconds, "Time spent measuring them, over all sessions."] = 0.0
    device: Annotated[Device, "Where it was measured."]
    versions: Annotated[dict[str, str], "Software it was measured with."]
    command: Annotated[list[str], "The command line that was tuned."]
    script_at: Annotated[Number, "Place of the script or module among its words; 0 where typed into a notebook."] = 1
    command_gives_batch: Annotated[bool, "False if the tuner gave the DataLoader its batch: whoever trains has to."]
    transferred_from: Annotated[Transfer | None, "The stored study that it started from."] = None
    knobs: Annotated[tuple[KnobFigures, ...], "Effects of other settings on the winner; empty where untried."] = ()

    def __post_init__(self) -> None:
        require_versions(self.versions, "backend")
        if self.script_at and self.script_at >= len(self.command):
            raise ValueError(f"has {len(self.command)} words in its command, and its script at {self.script_at}")

    def ending(self, search_end: SearchEnd) -> Result:
        """Return the answer of a search that ended so: without a config and with more to try, it says nothing."""
        is_open = search_end is SearchEnd.TRIALS and any(self._may_fit(name) for name in self.presets)
        if self.best is None and (search_end.is_early or is_open):
            return replace(self, search_end=search_end, verdict=None, compared=False)
        return replace(self, search_end=search_end)

    def _may_fit(self, preset: str) -> bool:
        """Tell whether a preset should fit that was not measured; without forecasts, one speaks for all."""
        if self.presets[preset].outcome is not None:
            return False
        expected = self.expected.get(preset)
        if expected is None:
            return all(figures.outcome is None for figures in self.presets.values())
        return expected.fits >= HOPELESS

    def can_go_on(self, max_trials: int) -> bool:
        """Tell whether the search that came to this ended for want of trials or time, and has some now."""
        if self.search_end is SearchEnd.TRIALS:
            return self.trials < max_trials
        return self.search_end.is_early

    @property
    def verdict_sentence(self) -> Annotated[str, "The finding about recompute, in words."]:
        """Return the verdict in words, the same in every output, and no more than was found."""
        match self.verdict:
            case None:
                words = "no answer yet: no config was confirmed so far"
            case Verdict.UNDECIDED:
                words = f"undecided: {self._describe_undecided()}"
            case Verdict.NO_FIT:
                words = "no fit: no config holds the limit"
            case Verdict.NOT_NEEDED:
                own = self.versions.get(CHECKPOINTING) == KEPT
                without = OWN_ALONE if own else "without recompute"
                words = f"not needed: the batch fits {without}"
                if self.best is not None and self.best.accumulation is not None:
                    words = f"not needed: {self.best.size} {without} is the fastest of all that may fit"
            case Verdict.RECOMPUTE_PAYS:
                words = f"recompute pays: the batch fits only with it, and {self._describe_rivals()}"
            case Verdict.DOES_NOT_PAY if self.search_end.is_early:
                words = f"does not pay so far: {self._describe_faster()} than the best found so far"
            case Verdict.DOES_NOT_PAY:
                words = f"does not pay: {NO_LARGER if self.comparison is None else self._describe_faster()}"
                if self.best is not None and not self.best.config.is_none:
                    words += f"; 'tune --global-batch {self.best.batch}' finds how to accumulate it"
        return words

    @property
    def headline(self) -> Annotated[str, "The answer beside what people do by hand; empty where nothing was compared."]:
        """Return how much faster the answer is than gradient checkpointing, and than a batch without recompute."""
        best, usual, rival = self.best, self.checkpointing, self.rival
        if best is None:
            return ""
        parts = []
        if self.beside_checkpointing is not None:
            at = "" if usual is None or usual.batch in {None, best.batch} else f" at {self._sized(usual.batch)}"
            parts.append(f"{self.beside_checkpointing.figure} {CHECKPOINTING_OF_BLOCKS}{at}")
        elif usual is not None and usual.outcome is not None and usual.outcome.is_about_memory:
            parts.append(f"fits where {CHECKPOINTING_OF_BLOCKS} does not")
        if self.comparison is not None and rival is not None and not best.config.is_none:
            parts.append(f"{self.comparison.figure} {self._sized(rival.batch)} without recompute")
        return ", ".join(parts)

    def _describe_faster(self) -> str:
        """Name the batch that is faster without recompute."""
        which = "a smaller batch" if self.rival is None else self._sized(self.rival.batch)
        return f"{which} without recompute is faster"

    def _sized(self, batch: int | None) -> str:
        """Return another batch in the words of the answer's."""
        best = self.best
        if best is None or best.accumulation is None or not batch:
            return f"batch {batch}"
        return describe_batch(batch, best.batch * best.accumulation // batch)

    @property
    def _is_of_several(self) -> bool:
        return bool(self.curve) and self.best is not None

    def _describe_rivals(self) -> str:
        if self.comparison is None:
            if self.is_over_batch:
                return "a smaller one trains to other weights"
            return "no smaller one fits without"
        if self._is_of_several:
            return "none of the batches that were measured without recompute is more than 2 % faster"
        return "the largest batch that fits without recompute is not more than 2 % faster"

    def _describe_undecided(self) -> str:
        """Describe the open question, and the way to decide it."""
        if self._is_of_several and not self.compared:
            so_far = "this is the best of the batches so far, and"
            if self.search_end.is_early:
                return f"{so_far} not all were compared. {GO_ON}"
            return (
                f"{so_far} the trials were used up before all were tuned. The same command goes on with a higher "
                "--max-trials"
            )
        if self.best is not None and not self.best.confirmed:
            return (
                "found while training, where no smaller batch is tried. 'autorecompute tune SCRIPT --study NAME' "
                "confirms it, and compares it with one where --target-batch gives the batch"
            )
        if self.comparison is None and self.compared:
            return (
                "the batch fits only with recompute, and no smaller one was seen to fit without it. Up to three are "
                "tried where --target-batch gives the batch"
            )
        question = "whether recompute is faster than a smaller batch without it"
        if self.comparison is None or not self.comparison.pairs:
            return f"{question} was not compared side by side" + ("" if self.compared else f". {GO_ON}")
        pairs = format_count(self.comparison.pairs, "pair")
        way_out = "A quiet machine or more --steps decides it: tune again with --fresh --study NAME"
        return f"{question} is within the noise of {pairs}. {way_out if self.compared else GO_ON}"


VARIABLE = "AUTORECOMPUTE_EVIDENCE"  # names the file; unset where no study is behind a config

NAME = "evidence.jsonl"
LARGEST_FILE = 1 << 20  # bytes that are read: thousands of trainings


_taken: list[str] = []
"""The file that :func:`take` has found."""


def take(environment: MutableMapping[str, str]) -> None:
    """Keep evidence in the file that an environment names, and take its name out: a script must not see it."""
    _taken[:] = [environment.pop(VARIABLE, "")]


def add_evidence(config: Config, reason: str) -> None:
    """Add that the gradients of a config are wrong, to the file for it if there is one and it can be written."""
    if not (file := "".join(_taken) or os.environ.get(VARIABLE)):
        return
    line = codec.encode(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason)) + b"\n"
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        with os.fdopen(descriptor, "wb", buffering=0) as stream:
            stream.write(line)


def read_evidence(file: Path) -> list[Rejection]:
    """Read the rejections that trainings added, each config once; a line that was cut short is left out.

    Raises:
        OSError: it cannot be read.
    """
    if not file.is_file():
        return []
    with file.open("rb") as stream:
        lines = stream.read(LARGEST_FILE).splitlines()
    found: dict[Config, Rejection] = {}
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            rejection = codec.decode(line, Rejection)
            found.setdefault(rejection.config, rejection)
    return list(found.values())
