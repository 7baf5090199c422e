"""Computes functions of single rows of logits in chunks of rows, which the backward pass makes again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    from torch.optim import Optimizer

    Context = contextlib.AbstractContextManager[object]


LEAST_ROWS = 256
"""Rows of a chunk, at least: fewer take longer, as each chunk reads the whole weight."""

PER_HIDDEN = 4


def rows_at_once(hidden_size: int) -> int:
    """Return the rows of a chunk. Copies of a chunk's logits then take about as much as the weight's gradient."""
    return max(LEAST_ROWS, hidden_size // PER_HIDDEN)


class Autocast(NamedTuple):
    """The state of autocast in which a function was called."""

    device: str
    dtype: torch.dtype
    is_on: bool

    @classmethod
    def of_now(cls, device: str) -> Autocast:
        """Return the state of now."""
        return cls(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))

    def again(self) -> Context:
        """Return a context in which it is so again; a weight's cast is not kept in it."""
        is_so = self.is_on == torch.is_autocast_enabled(self.device)
        if is_so and not self.is_on:
            return contextlib.nullcontext()
        found: Context = torch.autocast(self.device, dtype=self.dtype, enabled=self.is_on, cache_enabled=False)
        return found


class Map(NamedTuple):
    """A function that gives each row of logits by itself another one, as it was called."""

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: Autocast

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the rows of a chunk that it gives."""
        with self.autocast.again():
            return self.function(logits, *self.args, **self.kwargs)


class Term(NamedTuple):
    """A product of which logits are the sum: ``hidden`` is ``[..., H]``, ``weight`` ``[V, H]`` and ``bias`` ``[V]``."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    def to(self, dtype: torch.dtype) -> Term:
        """Return it in the type that it is computed in, on which autograd goes back."""
        return Term(self.hidden.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    def product(self, piece: slice | None = None) -> Tensor:
        """Return its part of the logits, of all rows or of a piece of them."""
        hidden = self.hidden if piece is None else self.hidden[piece]
        return functional.linear(hidden, self.weight, self.bias)


def terms_of(tensors: Sequence[Any]) -> list[Term]:
    """Return the terms of which these are the tensors, one after the other."""
    return [Term(*tensors[at : at + 3]) for at in range(0, len(tensors), 3)]


CHANGED = (
    "The logits of {head} are looked at for the first time after the head's input was written into, and cannot be made "
    "any more. Leave {head}/cross_entropy out of the plans."
)

PASSED_BY = (
    "The loss of {head} was computed in chunks, and no gradient of its logits is known. Call retain_grad() or "
    "register_hook() on them before the loss, or leave {head}/cross_entropy out of the plans."
)


class _Steps:
    """Counts the steps of optimizers, of which some change a weight without counting that."""

    def __init__(self) -> None:
        self._all, self._is_on = 0, False
        self._own = WeakIdKeyDictionary()  # by weight: the steps of optimizers that were given it

    def begin(self) -> None:
        """Count from now on."""
        if not self._is_on:
            self._is_on = True
            register_optimizer_step_post_hook(torch.compiler.disable(self._note))

    def _note(self, optimizer: Optimizer, *_: Any) -> None:
        self._all += 1
        for weight in _given_to(optimizer) if self._own else ():
            if weight in self._own:
                self._own[weight] += 1

    def behind(self, weight: Tensor) -> tuple[bool, int]:
        """Return how many steps may have changed a weight, and whether these are of an optimizer that was given it.

        Until such a one has stepped, any may be it: some are given copies of what they train.
        """
        own: int = self._own.setdefault(weight, 0)
        return (True, own) if own else (False, self._all)

    def may_change(self, optimizer: Optimizer, weight: Tensor) -> bool:
        """Tell whether a step of this optimizer may change a weight."""
        return not self._own.get(weight) or any(one is weight for one in _given_to(optimizer))


def _given_to(optimizer: Optimizer) -> Iterator[Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


STEPS = _Steps()


@dataclasses.dataclass
class Origin:
    """One call of a head.

    Attributes:
        path: Path of the head.
        inputs: Its hidden states, with the count of changes that each had then.
        weights: The same of its weights and biases.
        made: Called once when the logits of this call are made; ``None`` after that.
        late: Called when they are looked at after the optimizer has changed the weight: they are those of the new one.
        steps: The weights and biases, with the steps that optimizers had made then.
        needs: The same with whether each was trained then.
        left: References to all ``Logits`` that were derived of this call, which keep none.
        is_in_chunks: Whether a loss was computed in chunks, whose gradient passes the logits by.
    """

    path: str
    inputs: list[tuple[Tensor, int]]
    weights: list[tuple[Tensor, int]]
    made: Callable[[], None] | None
    late: Callable[[], None]
    steps: list[tuple[Tensor, tuple[bool, int]]]
    needs: list[tuple[Tensor, bool]]
    left: list[Callable[[], Any]] = dataclasses.field(default_factory=list)
    is_in_chunks: bool = False

    @classmethod
    def of(cls, path: str, terms: Sequence[Term], made: Callable[[], None], late: Callable[[], None]) -> Self:
        """Note a call of which these are the terms."""
        weights = [one for term in terms for one in (term.weight, term.bias) if one is not None]
        steps = [(one, STEPS.behind(one)) for one in weights]
        needs = [(one, one.requires_grad) for one in weights]
        return cls(path, counted(term.hidden for term in terms), counted(weights), made, late, steps, needs)

    def keep(self, optimizer: Optimizer) -> bool:
        """Make all logits of this call that are left, for who looks at them behind a step of this optimizer.

        Return False where that cannot change the weight.
        """
        if not any(STEPS.may_change(optimizer, weight) for weight, _ in self.steps):
            return False
        for reference in self.left:
            if (logits := reference()) is not None:
                logits.make()
        return True

    @property
    def has_other_weight(self) -> bool:
        """Tell whether the weight was written into: plain PyTorch refuses to go back through it."""
        return _have_changed(self.weights)

    @property
    def has_other_needs(self) -> bool:
        """Tell whether a weight was frozen or thawed since: plain PyTorch goes back as it was in the call."""
        return any(one.requires_grad != then for one, then in self.needs)

    @property
    def is_late(self) -> bool:
        """Tell whether the weight may be another one by now."""
        return self.has_other_weight or any(STEPS.behind(weight) != then for weight, then in self.steps)

    def require_no_chunks(self) -> None:
        """Refuse to tell the gradient of logits behind a loss that was computed in chunks."""
        if self.is_in_chunks:
            raise RuntimeError(PASSED_BY.format(head=self.path))

    def require_input(self) -> None:
        """Refuse to make logits of an input that was written into, and tell where the weight is another one."""
        if _have_changed(self.inputs):
            raise RuntimeError(CHANGED.format(head=self.path))
        if self.is_late:
            self.late()

    def note_made(self) -> None:
        """Note that logits are made."""
        self.require_input()
        if self.made is not None:
            self.made()
            self.made = None

    def beside(self, other: Origin) -> Origin:
        """Return the origin of a sum of both."""
        inputs, weights = [*self.inputs, *other.inputs], [*self.weights, *other.weights]
        steps, needs = [*self.steps, *other.steps], [*self.needs, *other.needs]
        return Origin(self.path, inputs, weights, self.made or other.made, self.late, steps, needs, self.left)


def counted(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Return tensors with the count of changes that each has had."""
    # The count is shared by what is detached, which does not keep the graph.
    return [(one.detach(), one._version) for one in tensors]


def _have_changed(known: Sequence[tuple[Tensor, int]]) -> bool:
    return any(one._version != version for one, version in known)


def beside_checkpoints() -> Context:
    """Return a context in which no checkpoint that is under way takes what is saved for its own, and makes it again."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return contextlib.nullcontext()
    context: Context = torch.autograd.graph.saved_tensors_hooks(itself, itself)
    return context


def itself(one: Any) -> Any:
    """Return what is given."""
    return one


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The way from terms to logits, which knows none of their tensors.

    Attributes:
        dtype: Type in which products are computed.
        maps: What was done to each row since.
    """

    dtype: torch.dtype
    device: str
    maps: tuple[Map, ...] = ()

    def values(self, terms: Sequence[Term], piece: slice | None = None) -> Tensor:
        """Return the logits, or a piece of their rows."""
        with torch.autocast(self.device, enabled=False):
            return self.mapped(sum_of(terms_in(terms, self.dtype), piece))

    def mapped(self, logits: Tensor) -> Tensor:
        """Return what all maps make of logits."""
        for one in self.maps:
            logits = one(logits)
        return logits


def terms_in(terms: Sequence[Term], dtype: torch.dtype) -> list[Term]:
    """Return the terms in the type that they are computed in."""
    return [term.to(dtype) for term in terms]


def sum_of(terms: Sequence[Term], piece: slice | None = None) -> Tensor:
    """Return the sum of the products."""
    total = terms[0].product(piece)
    for term in terms[1:]:
        total = total + term.product(piece)
    return total


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@dataclasses.dataclass(frozen=True)
class ByRows:
    """A function of each row of logits.

    Attributes:
        function: Is given a chunk of logits, of shape ``[rows, V]``, and the place of these rows among all.
        rows: Rows of a chunk.
        is_sum: Whether the sum of all results is wanted in their place.
        count: What that is divided by; a mean has one.
        goes_back: Whether a backward pass may follow.
        reads: Labels and the like, with their counts of changes: plain PyTorch refuses to go back where these rise.
    """

    recipe: Recipe
    function: Callable[[Tensor, slice], Tensor]
    autocast: Autocast
    rows: int
    is_sum: bool = False
    count: Tensor | None = None
    goes_back: bool = False
    reads: list[tuple[Tensor, int]] = dataclasses.field(default_factory=list)

    @property
    def finds_gradients(self) -> bool:
        """Tell whether the forward pass computes the gradients, so that no chunk is made again.

        The gradient of a sum has one factor for all rows, which the backward pass multiplies by. In half precision it
        may be the scale of the loss, without which small gradients are lost.
        """
        return self.is_sum and self.goes_back and self.recipe.dtype != torch.float16

    def pieces(self, hidden: Tensor) -> Iterator[slice]:
        """Yield the places of the chunks; one without rows where there are none."""
        count = max(len(hidden), 1)
        return (slice(at, at + self.rows) for at in range(0, count, self.rows))

    def of(self, logits: Tensor, piece: slice) -> Tensor:
        """Return the results of a chunk, of which the products are given."""
        with torch.autocast(self.recipe.device, enabled=False):
            mapped = self.recipe.mapped(logits)
        with self.autocast.again():
            return self.function(mapped, piece)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the results of all chunks, or their sum or mean."""
        results = torch.cat(parts) if len(parts) > 1 else parts[0]
        if not self.is_sum:
            return results
        # Sums over many tokens go beyond the largest number of 16 bits.
        total = results.sum(dtype=_wide(results.dtype))
        return (total if self.count is None else total / self.count).to(results.dtype)

    def results(self, terms: Sequence[Term]) -> Tensor:
        """Return the results without a graph."""
        with torch.no_grad(), torch.autocast(self.recipe.device, enabled=False):
            known = terms_in(terms, self.recipe.dtype)
            return self.joined([self.of(sum_of(known, piece), piece) for piece in self.pieces(known[0].hidden)])

    def gradients(
        self, terms: Sequence[Term], gradient: Tensor | None, wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return the results, and the gradients that are wanted of the terms' tensors, all without a graph.

        Without a gradient of the results, which are a sum then, it is 1.
        """
        parts = []
        with torch.no_grad(), torch.autocast(self.recipe.device, enabled=False):
            known = terms_in(terms, self.recipe.dtype)
            places = list(zip(known, terms_of(wanted), strict=True))
            totals = [_Totals(term, asked, own.weight.dtype) for (term, asked), own in zip(places, terms, strict=True)]
            for piece in self.pieces(known[0].hidden):
                part, change = self._gradient_of(sum_of(known, piece), piece, gradient)
                parts.append(part)
                for total in totals:
                    total.add(change, piece)
            results = self.joined(parts)
        found = [one for total in totals for one in total.found]
        tensors = [one for term in terms for one in term]
        return results, [
            None if one is None or given is None else one.to(given.dtype)
            for one, given in zip(found, tensors, strict=True)
        ]

    def _gradient_of(self, logits: Tensor, piece: slice, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        logits.requires_grad_()
        with torch.enable_grad(), beside_checkpoints():
            results = self.of(logits, piece)
        if gradient is None:
            gradient = results.new_ones((), dtype=_wide(results.dtype))
        if not self.is_sum:
            gradient = gradient[piece]
        else:
            share = gradient if self.count is None else gradient / self.count
            gradient = share.to(results.dtype).expand_as(results)
        (change,) = torch.autograd.grad(results, logits, gradient)
        return results.detach(), change


class _Totals:
    """Adds up the gradients of one term: the weight's in one place, chunk by chunk.

    Attributes:
        found: Those of hidden states, weight and bias; ``None`` for what is not wanted.
    """

    def __init__(self, term: Term, wanted: Any, own_dtype: torch.dtype) -> None:
        self._term, layout = term, torch.contiguous_format
        self._hidden = torch.empty_like(term.hidden, memory_format=layout) if wanted.hidden else None
        # In the type of the weights where that is wider: a long sum in 16 bits loses what is small.
        widest = torch.promote_types(term.weight.dtype, own_dtype)
        self._weight = torch.empty_like(term.weight, memory_format=layout, dtype=widest) if wanted.weight else None
        self._bias = torch.zeros_like(term.bias, dtype=widest) if wanted.bias else None
        self.found = (self._hidden, self._weight, self._bias)

    def add(self, change: Tensor, piece: slice) -> None:
        """Add what comes of a chunk, of whose logits this is the gradient."""
        if self._hidden is not None:
            torch.mm(change, self._term.weight, out=self._hidden[piece])
        if self._weight is not None and self._weight.dtype != change.dtype:
            product = change.t() @ self._term.hidden[piece]
            self._weight.copy_(product) if piece.start == 0 else self._weight.add_(product)
        elif self._weight is not None and piece.start == 0:
            torch.mm(change.t(), self._term.hidden[piece], out=self._weight)
        elif self._weight is not None:
            self._weight.addmm_(change.t(), self._term.hidden[piece])
        if self._bias is not None:
            self._bias += change.sum(0)


class InChunks(torch.autograd.Function):  # type: ignore[misc]
    """The results of a function of rows; hidden states are of shape ``[rows, H]``, or ``[0, H]``."""

    @staticmethod
    def forward(ctx: Any, work: ByRows, *tensors: Tensor | None) -> Tensor:
        """Return the results of all rows, their sum or their mean."""
        ctx.work, ctx.found = work, None
        ctx.save_for_backward(*tensors)
        terms, wanted = terms_of(tensors), ctx.needs_input_grad[1:]
        if not work.finds_gradients or not any(wanted):
            return work.results(terms)
        results, ctx.found = work.gradients(terms, None, wanted)
        return results

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the products' tensors; chunks are made again where the forward pass has none."""
        work, tensors, wanted = ctx.work, ctx.saved_tensors, ctx.needs_input_grad[1:]
        if _have_changed(work.reads):
            raise RuntimeError("labels or weights of a loss were modified by an inplace operation before backward()")
        if torch.is_grad_enabled():
            # With ``create_graph`` the gradient has a graph of its own, through all rows at once.
            own = aliases_of(tensors)
            logits = sum_of(terms_in(terms_of(own), work.recipe.dtype))
            results = work.joined([work.of(logits, slice(0, len(logits)))])
            return (None, *gradients_of(results, own, gradient, wanted))
        found, ctx.found = ctx.found, None  # a graph that is kept may be gone through again
        if found is None:
            return (None, *work.gradients(terms_of(tensors), gradient, wanted)[1])
        return (None, *(None if one is None else one.mul_(gradient) for one in found))


def aliases_of(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return views of tensors, of which one may depend on another: a gradient is of each by itself."""
    return [None if one is None else one.view_as(one) for one in tensors]


def gradients_of(
    results: Tensor, tensors: Sequence[Tensor | None], gradient: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients of tensors that are wanted, with a graph where one is asked for."""
    asked = [one for one, is_wanted in zip(tensors, wanted, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(results, asked, gradient, create_graph=torch.is_grad_enabled()))
    return [next(found) if is_wanted else None for is_wanted in wanted]
