"""The problem that a study solves, and whether two are the same."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal, Self

from autorecompute import __version__, codec
from autorecompute.codec import Absent
from autorecompute.plans import Choice, Space
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.ranges import INLINED, LARGEST_BATCH, Bytes, Count, Number, PositiveBytes, Range
from autorecompute.units import describe_software, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.training_job import Detection


COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a problem's identity that another problem has otherwise."""

    part: Annotated[str, "Its name, ``batch`` for instance."]
    here: Annotated[str, "What it is, in words."]
    there: Annotated[str, "What the other has."]

    @property
    def sentence(self) -> str:
        """Return the same in words, ``batch 32, not 16``."""
        return f"{self.part} {self.here}, not {self.there}"


def compare(here: Mapping[str, str], there: Mapping[str, str]) -> list[Difference]:
    """Return the parts that differ, in the order they have here; one that is missing is ``-``."""
    names = dict.fromkeys([*here, *there])
    pairs = [(name, here.get(name, "-"), there.get(name, "-")) for name in names]
    return [Difference(part=name, here=mine, there=theirs) for name, mine, theirs in pairs if mine != theirs]


DIGEST_LENGTH = 16
SHORT_LENGTH = 6  # hexadecimal digits that tell two sets of plans of the same size apart

MEMORY_TOLERANCE = 0.005
"""Another kernel or driver keeps a little more or less of one machine's memory for itself, at each start."""

MOST_PLANS = 1_000  # training systems find dozens, and all that is done with them takes their number squared
SAVED_SAMPLES = 8  # activations of this many are added up, where two models are held beside each other
SEVERAL_BATCHES = 0  # the batch of a study that looks for the best one, and has a study of its own for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """All that a study's figures depend on. Equal problems have equal answers."""

    graph: Annotated[str, "Digest of the training graph: what it computes and how it is wired, no names."]
    plans: Annotated[tuple[str, ...], "Keys of the plans that can be switched on."]
    batch: Annotated[
        Annotated[int, Range(SEVERAL_BATCHES, LARGEST_BATCH)],
        "Samples a forward; 0 in a study that looks for the best batch.",
    ]
    limit_bytes: Annotated[PositiveBytes, "What the peak may reach."]
    device: Annotated[str, "Kind and name of the device."]
    device_bytes: Annotated[Bytes, "Its memory."]
    torch: Annotated[str, "Version of torch."]
    backend: Annotated[str, "The training system."]
    plan_versions: Annotated[dict[str, str], "Versions that plans depend on."] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if len(self.plans) > MOST_PLANS:
            raise ValueError(f"has {len(self.plans)} plans, {MOST_PLANS} is the most")
        for key in self.plans:
            for text in key.split(","):
                Choice.parse(text)

    @classmethod
    def of(cls, detection: Detection, limit_bytes: int) -> Self:
        """Return the problem that was detected, under this limit."""
        return cls(
            graph=detection.graph,
            plans=tuple(sorted(plan.id for plan in detection.plans)),
            batch=detection.batch,
            limit_bytes=limit_bytes,
            device=f"{detection.device.kind} {detection.device.name}",
            device_bytes=detection.device.total_bytes,
            torch=detection.versions["torch"],
            backend=detection.versions["backend"],
            plan_versions={name: detection.versions[name] for name in detection.plan_versions},
        )

    @property
    def digest(self) -> str:
        """Return sixteen hexadecimal digits, equal for equal problems."""
        return _digest(codec.to_plain(self))

    @property
    def parts(self) -> dict[str, str]:
        """Return each part of the identity in words, by its name."""
        return {
            "graph": self.graph[:DIGEST_LENGTH],
            "plans": f"{format_count(len(self.plans), 'plan')} ({_digest(self.plans)[:SHORT_LENGTH]})",
            "batch": "one of several" if self.batch == SEVERAL_BATCHES else str(self.batch),
            "limit": f"{format_bytes(self.limit_bytes)} ({self.limit_bytes} bytes)",
            "device": self.device,
            "device memory": f"{format_bytes(self.device_bytes)} ({self.device_bytes} bytes)",
            "torch": self.torch,
            **self.plan_versions,
            "backend": self.backend,
        }

    @property
    def software(self) -> str:
        """Return the software that it trains with, in words."""
        return describe_software({"torch": self.torch, **self.plan_versions})

    def has_same_plans(self, other: Problem) -> bool:
        """Tell whether the plans are the same and mean the same."""
        mine, theirs = ((it.plans, it.backend, it.plan_versions) for it in (self, other))
        return mine == theirs

    def differences(self, other: Problem) -> list[str]:
        """Return the parts in which the other problem differs, in words: ``batch 32, not 16``."""
        return [difference.sentence for difference in compare(self.parts, self.seen_here(other).parts)]

    def seen_here(self, other: Problem) -> Problem:
        """Return the other problem, with this device's memory where a restart may change it by as much."""
        largest = max(self.device_bytes, other.device_bytes)
        is_alike = abs(self.device_bytes - other.device_bytes) <= MEMORY_TOLERANCE * largest
        return replace(other, device_bytes=self.device_bytes) if is_alike else other


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes that were detected besides the problem: figures depend on them, and they may differ between its runs."""

    dims: Annotated[dict[str, Count], "Dimensions of the first batch beside its samples, such as the length."] = field(
        default_factory=dict
    )
    resting_bytes: Annotated[Bytes, "Memory held between two steps, as far as it was known."] = 0
    saved_bytes: Annotated[
        Bytes, "Savings of all plans for a few samples, whatever the batch; 0 where nothing tells."
    ] = 0
    space: Annotated[Space, "The plans with all known of them."] = field(default_factory=lambda: Space(plans=()))

    @classmethod
    def of(cls, detection: Detection, rest_bytes: int | None = None) -> Self:
        """Return those of what was detected, with what is held between two steps where that is known."""
        dims = {name: size for name, size in detection.dims.items() if name != BATCH}
        resting_bytes = detection.resting_bytes if rest_bytes is None else rest_bytes
        savings = [evaluate(plan.saving, {**dims, BATCH: SAVED_SAMPLES}) for plan in detection.plans]
        saved_bytes = sum(max(saving or 0, 0) for saving in savings)
        return cls(dims=dims, resting_bytes=resting_bytes, saved_bytes=saved_bytes, space=detection.space)

    @property
    def parts(self) -> dict[str, str]:
        """Return each dimension by its name."""
        return {name: str(size) for name, size in sorted(self.dims.items())}


LEAST_RATIO = 0.9  # amounts of memory of one training are closer together, from start to start


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Subject and origin of a study."""

    study: Annotated[str, "Its name."]
    created: Annotated[str, "When it was begun, in UTC."]
    autorecompute: Annotated[str, "The version that began it."]
    command: Annotated[tuple[str, ...], "The command that was tuned."]
    problem: Annotated[Problem, "The problem."]
    sizes: Annotated[Sizes, "The sizes that it was met at."]

    @classmethod
    def of(cls, study: str, command: Sequence[str], problem: Problem, sizes: Sizes) -> Self:
        """Return the head of a study that begins now."""
        return cls(
            study=study,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            autorecompute=__version__,
            command=tuple(command),
            problem=problem,
            sizes=sizes,
        )

    @property
    def parts(self) -> dict[str, str]:
        """Return each part of the identity in words, by its name."""
        return {**self.problem.parts, **self.sizes.parts, COMMAND: shlex.join(self.command)}

    def compare(self, other: Head) -> list[Difference]:
        """Return the parts that differ."""
        there = replace(other, problem=self.problem.seen_here(other.problem))
        return [*self._other_amounts(other), *compare(self.parts, there.parts)]

    def differences(self, other: Head) -> tuple[str, ...]:
        """Return in what the other differs, in words; nothing where one answer holds for both.

        The same graph can be trained by another optimizer: commands that differ are told where nothing else does.
        """
        found = self.compare(other)
        told = tuple(difference.sentence for difference in found if difference.part != COMMAND)
        return told or ("another command",) * bool(found)

    def conflicts(self, stored: Head) -> list[str]:
        """Return the differences that make this another problem than that of a study, in words.

        Batches of texts differ in length from start to start: with the same command, other dimensions are no conflict.
        """
        dims = [] if self.command == stored.command else compare(self.sizes.parts, stored.sizes.parts)
        others = [difference.sentence for difference in (*self._other_amounts(stored), *dims)]
        return [*self.problem.differences(stored.problem), *others]

    def _other_amounts(self, other: Head) -> list[Difference]:
        """Return the amounts of memory that differ with the same plans at the same dimensions.

        A model of the same modules and operators may keep more: a convolution with another stride, or attention with
        more heads. With another optimizer, more is held between two steps; on a CPU, so it may be for other reasons.
        """
        if self.problem.plans != other.problem.plans or self.sizes.dims != other.sizes.dims:
            return []
        amounts = {"activations": (self.sizes.saved_bytes, other.sizes.saved_bytes)}
        if not self.problem.device.startswith("cpu "):
            amounts["memory between steps"] = (self.sizes.resting_bytes, other.sizes.resting_bytes)
        return [
            Difference(part=part, here=format_bytes(here), there=format_bytes(there))
            for part, (here, there) in amounts.items()
            if 0 < min(here, there) < LEAST_RATIO * max(here, there)
        ]


def _digest(plain: object) -> str:
    canonical = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Subject of the study: its ``study.json``."""

    format: Annotated[Number, "Counts up when studies can no longer be read as they were."]
    digest: Annotated[str, "Sixteen hexadecimal digits, equal for equal problems."]
    head: Annotated[Head, INLINED]
    machine: Annotated[str | Absent, "Digest of the machine that began it; not there where it was imported."]
    is_imported: Annotated[Literal[True] | Absent, "True where it came from an archive; not there otherwise."]
