"""Compares what is made again with what it replaces, in every step."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint

from autorecompute.backends.common import TOLERANCES
from autorecompute.backends.torch.find.structure import is_sharded
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from autorecompute.result import add_evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.plans import Choice

    Sums = tuple[Tensor, Tensor | None, tuple[Any, ...]]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_WORD = 8
_FEW = 2**16
"""Elements that are summed at once where they do not make up words: torch copies them to integers of 64 bits."""


def bits_of(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits as one number of 64 bits on its device; it wraps around.

    Two tensors are compared by it if they lie in memory alike: where it can be, eight bytes are one number.
    """
    plain = real_of(tensor)
    if not plain.is_contiguous():
        plain = plain[tuple([slice(0, 1) if stride == 0 else slice(None) for stride in plain.stride()])]
        plain = plain.permute(sorted(range(plain.dim()), key=plain.stride, reverse=True))
    if plain.is_contiguous():
        plain = plain.view(-1)
    in_word = _WORD // plain.element_size()
    whole = plain.shape[-1] // in_word * in_word if plain.dim() == 1 else None
    try:
        total = plain[:whole].view(torch.int64).sum()
    except RuntimeError:  # words would begin within elements
        return _sum(plain)
    return total if whole is None or whole == plain.shape[0] else total + _sum(plain[whole:])


def real_of(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor as they lie in memory: those of ``conj`` and ``imag`` may be marked as others."""
    plain = tensor.detach()
    plain = torch._neg_view(plain) if plain.is_neg() else plain
    plain = plain.conj() if plain.is_conj() else plain
    return torch.view_as_real(plain) if plain.is_complex() else plain


def _sum(tensor: Tensor) -> Tensor:
    elements = tensor.view(_INTEGERS[tensor.element_size()])
    rows = max(1, _FEW * elements.shape[0] // max(1, elements.numel())) if elements.dim() else 1
    parts = elements.split(rows) if elements.dim() else (elements,)
    return torch.stack([part.sum(dtype=torch.int64) for part in parts]).sum()


def checksum(tensor: Tensor) -> int:
    """Return the sum as a number. On a card it waits for what is queued."""
    return int(bits_of(tensor))


VARIABLE = "AUTORECOMPUTE_CHECK"

MOST_SHARE = 0.005  # all is compared while that takes at most this share of the training's time

TURNS = 13
"""Else a call is compared in one of so many. As it is a prime, all calls have their turn, however many a step has."""

MOST_STATES = 64  # so many states of a module are compared when they are new: texts may have a thousand lengths

_ROW, _ROWS = 256, 64
"""Elements of a row, and rows: so many, or less than twice as many, tell how large a difference on a CPU is."""

_CARD_BYTES_PER_SECOND = 1e12
"""Bytes that a sum reads in a second on a card. Those that models are trained on read one to four times as much."""

_METADATA: dict[Any, Callable[[Tensor], Any]] = getattr(checkpoint, "_allowed_determinism_checks_to_fns", {})
"""The properties of a saved tensor that ``torch.utils.checkpoint`` compares, by the name of its determinism check.

Private to torch. A later version may lack it; blocks are then checked by torch alone.
"""

_LOG = logging.getLogger("autorecompute")


MODES = ALL, SOME, STRICT, OFF = "all", "some", "strict", "off"
"""Share of results that is compared: ``some`` is as much as ``MOST_SHARE`` of the time allows, and under ``strict`` a
difference ends the training before the optimizer's step."""


def mode_wanted() -> str:
    """Return the mode that ``AUTORECOMPUTE_CHECK`` sets, ``some`` where it is unset; another word is a usage error."""
    mode = os.environ.get(VARIABLE, "") or SOME
    if mode not in MODES:
        raise UsageError(f"{VARIABLE} is none of {', '.join(MODES)}. Set it to one of them, or unset it.")
    return mode


class RecomputeDiffersError(RuntimeError):
    """A recompute has made another tensor than the forward pass had, and ``AUTORECOMPUTE_CHECK=strict`` stops there."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor that a recompute has made otherwise than the forward pass, in a step counted from 1.

    ``relative`` is the difference of the two sums relative to the norm; infinite where that is no number.
    """

    site: str
    path: str
    step: int
    tensor: str  # its type and shape
    relative: float

    def __str__(self) -> str:
        where = f"{self.path or 'the model'} (site {self.site})"
        off = f"by about {self.relative:.1e} of its norm" if 0 < self.relative < math.inf else "in some of its elements"
        return (
            f"step {self.step}: recompute of {where} made a tensor of {self.tensor} that differs from that of the "
            f"forward pass {off}"
        )


def _like(tensor: Tensor) -> tuple[Any, ...]:
    marks = tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), marks


def _total(tensor: Tensor) -> Tensor | None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:  # 8 bits have no sum
        return None
    plain = _weighed(tensor)
    # On a CPU the sum in another type would make a copy of the tensor.
    is_narrow = plain.device.type != "cpu" and plain.dtype in {torch.float16, torch.bfloat16}
    return plain.sum(dtype=torch.float32 if is_narrow else None)


def _weighed(tensor: Tensor) -> Tensor:
    """Return the elements that tell how large a difference is.

    On a CPU the bits alone decide whether there is one, and a second read of the whole tensor would cost half as much
    again: some rows of it do.
    """
    plain = real_of(tensor)
    if plain.device.type != "cpu" or not plain.is_contiguous():
        return plain
    rows = plain.view(-1)[: plain.numel() // _ROW * _ROW].view(-1, _ROW)
    return rows[:: max(1, len(rows) // _ROWS)] if len(rows) else plain


def _off(total: Tensor | None, again: Tensor) -> Tensor:
    """Return the difference of two sums relative to the norm of the second tensor; 0 of integers.

    Where the errors of elements are independent it is their relative size, however many elements there are.
    """
    total_again = _total(again)
    if total is None or total_again is None:
        return torch.zeros((), dtype=torch.float64, device=again.device)
    norm = torch.linalg.vector_norm(_weighed(again), dtype=torch.float64)
    return (total.double() - total_again.double()).abs() / norm


_TAKEN: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
"""The number of steps that each optimizer has taken in this process."""

_CHECKS: weakref.WeakSet[RecomputeCheck] = weakref.WeakSet()  # checks that may keep an optimizer from its next step


@functools.cache
def _follow_optimizers() -> None:
    register_optimizer_step_pre_hook(torch.compiler.disable(_ask_checks))
    register_optimizer_step_post_hook(torch.compiler.disable(_count_step))


def _ask_checks(optimizer: Optimizer, *_: Any) -> None:
    for check in list(_CHECKS):
        check.require_same(optimizer)


def _count_step(optimizer: Optimizer, *_: Any) -> None:
    _TAKEN[optimizer] = _TAKEN.get(optimizer, 0) + 1


class RecomputeCheck:
    """The check of all that is made again in one model.

    A site that differs is left without recompute from its next call on. Not where ranks gather weights together, as all
    of them would have to do so in the same step.

    Attributes:
        mode: Share of results that is compared; without one the environment's.
        differences: One for each site that differs.
        every: Each call is compared in one of so many.
        share: Share of the time that comparing took lately.
        takes_back: True if a site that differs is left without recompute.
        pending: Comparisons: for each the difference if it is one, a relative difference that another order of sums
            explains, two figures on their way from a card (whether the bits differ, and by how much), and the event of
            their coming; none on a CPU.
    """

    def __init__(self, model: Module, mode: str | None = None) -> None:
        self.mode = mode or mode_wanted()
        self.choices: frozenset[Choice] = frozenset()
        self.differences: list[Difference] = []
        self.every, self.share = TURNS if self.mode == SOME else 1, 0.0
        self._model, self.takes_back, self.is_paused = weakref.ref(model), not is_sharded(model), False
        self._watches: dict[tuple[str, str], Watch] = {}
        self._first: Watch | None = None
        self.pending: collections.deque[tuple[Difference, float, Tensor, Any]] = collections.deque()
        self._calls, self._seconds, self._since = 0, 0.0, time.perf_counter()
        if self.mode != OFF:
            _CHECKS.add(self)
            _follow_optimizers()

    def watch(self, site: str, path: str) -> Watch:
        """Return the watch that compares the calls of one module for one site."""
        return self._watches.setdefault((site, path), Watch(self, site, path, len(self._watches)))

    def differing(self) -> tuple[Difference, ...]:
        """Return the differences found at the sites that are on."""
        self.look()
        sites = {choice.site for choice in self.choices}
        return tuple(difference for difference in self.differences if difference.site in sites)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Compare nothing inside: what runs there is no step of the training."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def require_same(self, optimizer: Optimizer) -> None:
        """Keep an optimizer of the model from its step, by an error, where the mode is strict and something differs."""
        model = self._model()
        if self.mode != STRICT or model is None:
            return
        self.look(waits=True)
        trained = {id(one) for group in optimizer.param_groups for one in group["params"]} if self.differences else ()
        if not any(id(one) in trained for one in model.parameters()):
            return
        for difference in self.differences:
            raise RecomputeDiffersError(
                f"{difference}. The optimizer's step is not taken. Leave {difference.site} without recompute, or set "
                f"{VARIABLE}=all to be told and to go on."
            )

    def switch(self, choices: frozenset[Choice]) -> None:
        """Tell what is on from now on."""
        self.choices, self._first = choices, None

    def is_turn(self, watch: Watch, turn: int) -> bool:
        """Tell whether a module has its turn in a call that begins; its number goes up with each call."""
        self.look()
        self._first = self._first or watch
        if watch is self._first:  # once for all modules
            self._calls += 1
            if self._calls == TURNS:
                self._pace()
        return turn % self.every == 0

    def _pace(self) -> None:
        now = time.perf_counter()
        self.share = self._seconds / (now - self._since)
        if self.mode == SOME:
            self.every = 1 if self.share * self.every <= MOST_SHARE else TURNS
        self._calls, self._seconds, self._since = 0, 0.0, now

    def look(self, *, waits: bool = False) -> None:
        """Look at the figures that have come to the host."""
        while self.pending:
            found, rounding, figures, event = self.pending[0]
            if event is not None and waits:
                event.synchronize()
            elif event is not None and not event.query():
                return
            self.pending.popleft()
            differs, relative = figures.tolist()
            if differs and not 0 < relative <= rounding:
                self._tell(dataclasses.replace(found, relative=relative if math.isfinite(relative) else math.inf))

    def _tell(self, found: Difference) -> None:
        if any(known.site == found.site for known in self.differences):
            return
        self.differences.append(found)
        then = (
            f"From its next call on {found.site} is not recomputed."
            if self.takes_back
            else f"Weights are sharded here, so {found.site} is recomputed further: leave it out of the plans."
        )
        _LOG.warning("%s. The gradients of this step are wrong. %s", found, then)
        add_evidence(Config(self.choices), f"in a training, {found}")

    @contextlib.contextmanager
    def spending(self, tensor: Tensor, passes: int) -> Iterator[None]:
        """Count the time inside, in which a tensor is read so many times."""
        before = time.perf_counter()
        with torch.no_grad():
            yield
        seconds = time.perf_counter() - before
        if tensor.device.type != "cpu":  # nobody has waited for it
            seconds = max(seconds, passes * tensor.numel() * tensor.element_size() / _CARD_BYTES_PER_SECOND)
        self._seconds += seconds


class Watch:
    """Compares the calls of one module for one site."""

    def __init__(self, check: RecomputeCheck, site: str, path: str, number: int) -> None:
        self._check, self._site, self._path, self._number, self._calls = check, site, path, number, 0
        self._known: set[Hashable] = set()

    @property
    def is_taken_back(self) -> bool:
        """Tell whether the site is left without recompute."""
        return self._check.takes_back and any(found.site == self._site for found in self._check.differences)

    def begins(self, state: Hashable = None) -> bool:
        """Tell whether the call that begins is compared; the first one in each state is."""
        if self._check.mode == OFF or self._check.is_paused:
            return False
        self._calls += 1
        is_new = state not in self._known and len(self._known) < MOST_STATES
        if is_new:
            self._known.add(state)
        return self._check.is_turn(self, self._number + self._calls) or is_new

    def sums_of(self, tensor: Tensor) -> Sums | None:
        """Return the sums of a tensor's bits and elements, and how it lies; none where it has no values of its own.

        Integers and numbers of 8 bits have no sum of elements. That of the bits depends on how they lie in memory.
        """
        if not can_be_summed(tensor):
            return None
        with self._check.spending(tensor, passes=2):
            return bits_of(tensor), _total(tensor), _like(tensor)

    def compare(self, sums: Sums | None, again: Tensor) -> None:
        """Compare a tensor that was made again; on a card the answer is looked at later, without a wait."""
        if sums is None or not can_be_summed(again):
            return
        bits_before, total, like = sums
        with self._check.spending(again, passes=3):
            if _like(again) != like:
                return
            bits, is_here = bits_of(again), again.device.type == "cpu"
            if is_here and bits == bits_before:
                return
            kind, event = str(again.dtype).removeprefix("torch."), None
            off = _off(total, again)
            figures = torch.stack([(bits != bits_before).to(off), off])
            if again.device.type == "cuda":
                figures, event = figures.to("cpu", non_blocking=True), torch.cuda.Event()
                event.record()
            step = max(_TAKEN.values(), default=0) + 1
            found = Difference(self._site, self._path, step, f"{kind} {tuple(again.shape)}", math.nan)
            rounding = 0.0 if is_here else TOLERANCES.get(kind, 0.0)
            self._check.pending.append((found, rounding, figures, event))
        if is_here:
            self._check.look()


def can_be_summed(tensor: Tensor) -> bool:
    """Tell whether a tensor has values, in memory of its own."""
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested
    return is_plain and not tensor.is_quantized and not tensor.is_meta and bool(tensor.numel())


@contextlib.contextmanager
def comparing(watch: Watch, kept: Iterable[Tensor]) -> Iterator[Any]:
    """Compare the tensors that a checkpointed call inside saves, which are all that its backward pass reads of it.

    Gives a determinism check for ``torch.utils.checkpoint``. Sums are taken behind the call and not when a tensor is
    saved: an operator may fill a tensor that its node has saved already. What is ``kept`` is not made again.
    """
    if not _METADATA:
        yield "default"
        return
    places = {tensor.untyped_storage().data_ptr() for tensor in kept if can_be_summed(tensor.data)}
    saved: list[_StandIn] = []
    is_over = False

    def stand_in(tensor: Tensor) -> _StandIn:
        one, plain = _StandIn(tensor, watch), tensor.detach()
        if is_over:
            one.tensor = plain
        elif can_be_summed(plain) and plain.untyped_storage().data_ptr() not in places:
            one.tensor = plain
            saved.append(one)
        return one

    _METADATA[stand_in] = stand_in
    try:
        yield stand_in
    finally:
        del _METADATA[stand_in]
    is_over = True
    for one in saved:
        assert one.tensor is not None, "a call ends once"
        one.sums, one.tensor = watch.sums_of(one.tensor), None
    saved.clear()


class _StandIn:
    """A saved tensor for torch to compare: itself in its call, then its sums; or one that was made again."""

    def __init__(self, tensor: Tensor, watch: Watch) -> None:
        self.tensor: Tensor | None = None
        self.sums: Sums | None = None
        self._watch, self._form = watch, f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"

    def __eq__(self, other: object) -> bool:
        """Tell whether the form is the same, which is all that torch asks for; values are compared on the way."""
        assert isinstance(other, _StandIn), "torch compares what was saved with what was made again"
        assert other.tensor is not None, "what was made again is there"
        if self._form != repr(other):
            return False
        self._watch.compare(self.sums, other.tensor)
        return True

    def __hash__(self) -> int:
        return hash(self._form)

    def __repr__(self) -> str:
        return self._form
