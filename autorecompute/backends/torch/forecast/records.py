"""The records of a detection in plain PyTorch: bytes as linear functions of the batch, and the options of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from autorecompute import codec
from autorecompute.memory import Machine, RankPeak
from autorecompute.plans import Config
from autorecompute.ranges import AnyBytes, Bytes, Count, Number, Operations, PositiveCount, Ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.training_job import Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Work of operators: what they compute and move.

    Attributes:
        operations: Floating point operations of matrix products and convolutions.
        moved_bytes: Bytes that are read and written.
        cost: Seconds on a machine whose speeds are known; else bytes that could have been moved meanwhile.
    """

    operations: Operations = 0.0
    moved_bytes: Operations = 0.0
    cost: Operations = 0.0

    def __add__(self, other: Amount) -> Self:
        return type(self)(
            operations=self.operations + other.operations,
            moved_bytes=self.moved_bytes + other.moved_bytes,
            cost=self.cost + other.cost,
        )

    def times(self, share: float) -> Self:
        """Return a share of it."""
        return type(self)(
            operations=share * self.operations, moved_bytes=share * self.moved_bytes, cost=share * self.cost
        )

    def beyond(self, other: Amount) -> Self:
        """Return the part of each amount that exceeds the other's."""
        return type(self)(
            operations=max(0.0, self.operations - other.operations),
            moved_bytes=max(0.0, self.moved_bytes - other.moved_bytes),
            cost=max(0.0, self.cost - other.cost),
        )


NOTHING = Amount()


CHECKPOINT: Final = "checkpoint"  # keep a call's inputs alone and run the whole call again in the backward pass

EVERY_2ND: Final = "every_2nd"
"""Like ``checkpoint``, but only every second occurrence, from the first on. A preset has it, and no plan."""

KEEP_MATMUL: Final = "keep_matmul"
"""Like ``checkpoint``, but the results of matrix products and convolutions are kept and not computed again."""

COMPILED: Final = "compiled"  # ends the name of a model that torch.compile runs
BUDGET: Final = "budget_"  # begins the options of a compiled model that give its compiler a memory budget: budget_0.5

RECOMPUTE: Final = "recompute"
"""Have the compiler of a compiled model make a cluster of its operators again, which it would keep by itself."""

GRAPH: Final = "graph"  # the site of what a compiler decides for the whole model

KEEPING: Final = "keep_"
"""Stands before a cluster that is kept and would be made again: by checkpointed blocks (``h.*:keep_attn/bmm``), under a
budget (``graph:budget_0.1_keep_h.*.attn/bmm``) or by the compiler itself (``graph:keep_h.*.attn/bmm``)."""

DROP: Final = "drop"
"""Drop what an operator made once it is not needed for the forward pass, and make it again when it is read."""

CHUNK: Final = "chunk"
"""Make the logits of a vocabulary head in chunks of rows where a loss is computed of them, and again in the backward
pass: sums come in another order."""

HEAD: Final = "/cross_entropy"  # ends the site of a head, behind its path

CALL_SECONDS: Final = {CHECKPOINT: 0.8e-3, KEEP_MATMUL: 4e-3, DROP: 0.1e-3}
"""Seconds that one occurrence adds to a step beyond its kernels: Python's part in it. Medians over the recorded models
(``studies/tables``), whose steps take 0.2 s in one thread. A search corrects them by its trials."""


def kept_cluster(site: str, option: str) -> str:
    """Return the cluster of operators that a choice has the compiler keep; empty where it names none."""
    _, keeps, name = option.partition(KEEPING)
    if not keeps or option == KEEP_MATMUL:
        return ""
    return name if site == GRAPH else f"{site}{'' if name.startswith('/') else '.'}{name}"


def keeping(site: str, cluster: str) -> str:
    """Return the option of blocks that are checkpointed, all but one cluster of operators in them."""
    return KEEPING + cluster.removeprefix(site).removeprefix(".")


def label_of(site: str, option: str) -> str:
    """Return the label of a choice for people."""
    what, keeps, _ = option.partition(KEEPING)
    if option == KEEP_MATMUL:
        return f"{site}, matrix products kept"
    if option == CHUNK:
        return f"{site} in chunks"
    budget = what.strip("_").replace("_", " ") if site == GRAPH else site
    if not keeps:
        return budget
    return f"{budget}, {kept_cluster(site, option)} kept".removeprefix(", ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step: the forward or the backward pass of one unit, of the head with the loss, or the optimizer.

    Attributes:
        phase: ``forward``, ``backward`` or ``outside`` both.
        name: The path of the unit; empty for what lies in none.
        owner: The unit whose recompute decides what the part takes, by its place in the model.
        change: Bytes that are alive after it beyond those alive before it.
        highest: The most bytes beyond those alive before it.
        fixed_change: Bytes of the change that do not grow with the batch, such as gradients of weights.
    """

    phase: str
    name: str
    owner: Number
    change: AnyBytes
    highest: AnyBytes
    fixed_change: AnyBytes = 0
    fixed_highest: AnyBytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionStep:
    """Difference of a step where one choice is on at all its occurrences.

    Attributes:
        units: The unit in which each occurrence lies, or those that it holds, by their places in the model; none for
            one that has to do with no unit.
        parts: The parts that differ, by their places.
        change: Bytes that are added to the change of each of them; so is ``highest``.
        work: Recompute as a share of all that a step computes.
        owners: The units whose recompute decides about each of them; where there are none, those of the parts. A part
            is told more than once where one unit changes a share of it and others the rest.
        beside: Site and option of another choice that is on as well: all figures are what there is beyond those of the
            two alone. Empty for one choice alone.
    """

    site: str
    option: str
    units: tuple[tuple[Number, ...], ...]
    parts: tuple[Count, ...]
    change: tuple[AnyBytes, ...]
    highest: tuple[AnyBytes, ...]
    work: Ratio
    owners: tuple[Number, ...] = ()
    again: Amount = NOTHING
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.parts) == len(self.change) == len(self.highest) == len(self.owners or self.parts):
            raise ValueError("has changes of other parts than it names")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Memory and work of steps on fake tensors, before a real one has run.

    Attributes:
        parts: The parts of a step without recompute, in order.
        later_bytes: Bytes that the process holds between two steps beyond what it held before the first: the
            optimizer's state, and the batch.
        batch_bytes: Part of them that grows with the batch.
        has_own_loss: True if the model returns its loss. Where the script computes it, a cross entropy took its place,
            and the peak may be another one.
        amount: Work of a step without recompute, the optimizer's among it.
        interactions: Further differences with two choices of which one keeps what the other drops.
    """

    batch: PositiveCount
    parts: tuple[Part, ...]
    options: tuple[OptionStep, ...]
    later_bytes: Bytes
    has_own_loss: bool
    batch_bytes: Bytes = 0
    amount: Amount = NOTHING
    interactions: tuple[OptionStep, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("is a step without parts")
        if any(place >= len(self.parts) for option in (*self.options, *self.interactions) for place in option.parts):
            raise ValueError("has a choice that changes a part which no step has")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsAtLength:
    """Memory and work of steps whose batches are so many tokens long."""

    length: PositiveCount
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCard:
    """Memory that PyTorch's allocator would hold on a card at the peak: in blocks that tensors have, and in all."""

    config: Config
    allocated_bytes: Bytes
    reserved_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPeak:
    """Forecast of a step of compiled code, by the compiler's graph.

    Attributes:
        config: Nothing, or what one plan does.
        peak_bytes: The most bytes alive beyond what is held between two steps.
        kept_bytes: Bytes that the forward pass keeps for the backward pass.
        work: Recompute beyond that without a plan, as a share of all that a step computes.
    """

    config: Config
    peak_bytes: Bytes
    kept_bytes: Bytes
    work: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDetection:
    """The part of a detection that only this training system has.

    Attributes:
        refusals: A sentence for each part that is left as it is, and why.
        own_checkpoints: Places where the script checkpoints itself, or would if that were not replaced.
        steps: Memory and work of steps; ``None`` where they cannot be run on fake tensors.
        no_steps: The reason why not, in a sentence; empty where they can.
        rough_steps: The same as far as one forward pass tells, where they cannot.
        on_fakes: True if the whole script ran on fake tensors.
        assumed: Lines of it that looked at a number which was not there.
        on_card: For each preset, where a card was asked for.
        of_rank: For each preset, where one rank of several was asked for.
        is_apart: True if nothing joins the ranks that were asked for: each trains a model of its own.
        machine: The machine whose seconds ``Steps`` and ``OptionStep`` tell; ``None`` where they tell no seconds.
        compiled_peaks: For each plan of a compiled model; none where nobody knows.
        by_blocks: True if blocks are compiled, each kind once for all of them, and not the model as a whole.
        is_thawed: True if peaks are of a step that trains parameters which are frozen now.
        by_length: Steps of shorter batches than the longest, where that was given.
    """

    refusals: tuple[str, ...] = ()
    own_checkpoints: tuple[str, ...] = ()
    replaces_checkpointing: bool = False
    steps: Steps | None = None
    no_steps: str = ""
    rough_steps: Steps | None = None
    on_fakes: bool = False
    assumed: tuple[str, ...] = ()
    on_card: tuple[OnCard, ...] = ()
    of_rank: tuple[RankPeak, ...] = ()
    is_apart: bool = False
    machine: Machine | None = None
    is_compiled: bool = False
    compiled_peaks: tuple[CompiledPeak, ...] = ()
    trained_bytes: Bytes = 0
    by_blocks: bool = False
    is_thawed: bool = False
    by_length: tuple[StepsAtLength, ...] = ()

    @classmethod
    def of(cls, detection: Detection) -> Self:
        """Return that of what a worker told."""
        return codec.from_plain(detection.extra, cls)


FROZEN = (
    "an optimizer holds parameters that are frozen now: peaks are those of a step that trains them; if they stay "
    "frozen, give the optimizer the others alone"
)
"""Tells of which step peaks are."""

MOST_PLACES = 3  # so many places are named

SWITCH = "such as gradient_checkpointing=True, or activation_checkpointing=True in transformers 5"


def describe_own(places: Sequence[str], *, is_replaced: bool) -> Iterator[str]:
    """Yield what a user has to know of the script's own checkpoints, in a sentence; nothing where there is nothing."""
    others = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
    named = f"{', '.join(places[:MOST_PLACES])}{others}"
    if places and not is_replaced:
        yield (
            f"the script checkpoints {named} itself, which stays on: tune in its place with --replace-checkpointing, "
            f"or take it out of the script ({SWITCH})"
        )
    elif places:
        yield (
            f"the script's own checkpointing of {named} is off here: train with 'autorecompute run', which switches it "
            f"off too, or take it out of the script ({SWITCH})"
        )
    elif is_replaced:
        yield "--replace-checkpointing has nothing to replace: the script makes no checkpoints in its model"
