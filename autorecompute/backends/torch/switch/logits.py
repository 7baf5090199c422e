"""Logits of a vocabulary head that are made when somebody looks at them, and in chunks of rows for a loss.

A head returns a :class:`Logits` in place of its product. What only arranges or scales rows gives another one, and
what gives each row a number, such as a cross entropy, is computed in chunks (``chunks.py``). Any other function has the
logits made as the model would have made them, and with them all of their views: from then on these are tensors like
any other.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only

from autorecompute.backends.torch.switch.chunks import (
    Autocast,
    ByRows,
    InChunks,
    Map,
    Origin,
    Recipe,
    Term,
    aliases_of,
    beside_checkpoints,
    counted,
    gradients_of,
    itself,
    rows_at_once,
    terms_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Answer = Callable[["Logits", Any, tuple[Any, ...], dict[str, Any]], Any]


class Logits(Tensor):  # type: ignore[misc]
    """Logits of shape ``[*lead, V]``, or with their words at another place, whose numbers are made when looked at.

    Autograd knows them as the result of one node, whose inputs are those of the products.

    Attributes:
        terms: The products, with hidden states of shape ``[*lead, H]``.
        words: The dimension of the words.
        layout_of: A tensor without numbers of their shape and strides: what torch would make a view is one there.
    """

    terms: list[Term]
    recipe: Recipe
    words: int
    origin: Origin
    layout_of: Tensor
    _values: Tensor | None
    _root: Callable[[], Logits | None] | None
    _views: list[tuple[weakref.ref[Logits], Callable[[Tensor], Tensor]]]
    _node: Any
    _node_of_values: Any
    answer: ClassVar[Callable[..., Any]]

    @staticmethod
    def of(  # noqa: PLR0913, PLR0917  (all that makes them)
        terms: Sequence[Term],
        recipe: Recipe,
        dtype: torch.dtype,
        words: int,
        origin: Origin,
        layout_of: Tensor | None = None,
    ) -> Logits:
        """Return the logits of these terms; without strides of their own, those that a product has."""
        if layout_of is None:
            sizes = [*terms[0].hidden.shape[:-1], len(terms[0].weight)]
            layout_of = torch.empty(sizes, device="meta").movedim(-1, words)
        known = (recipe, dtype, words, origin, layout_of)
        made: Logits = _Node.apply(known, *(one for term in terms for one in term))
        # Those that the graph knows; without a graph nothing goes back through them either.
        made.terms = list(terms) if torch.is_grad_enabled() else _detached(terms)
        made._node = made._node_of_now
        origin.left.append(weakref.ref(made))
        return made

    @classmethod
    def wrapped(  # noqa: PLR0913, PLR0917  (all that makes them)
        cls, terms: Sequence[Term], recipe: Recipe, dtype: torch.dtype, words: int, origin: Origin, layout_of: Tensor
    ) -> Self:
        """Return the same without a node of autograd's."""
        shape, strides, device = layout_of.shape, layout_of.stride(), terms[0].hidden.device
        made: Self = torch.Tensor._make_wrapper_subclass(cls, shape, strides, dtype=dtype, device=device)
        made.terms, made.recipe, made.words, made.origin, made.layout_of = [*terms], recipe, words, origin, layout_of
        made._values, made._root, made._views, made._node = None, None, [], None
        return made

    def like(self, terms: Sequence[Term] | None = None, **changes: Any) -> Logits:
        """Return others made of these, which are no view of them."""
        known = {"recipe": self.recipe, "dtype": self.dtype, "words": self.words, "origin": self.origin}
        if "layout_of" not in changes:
            changes["layout_of"] = torch.empty_like(self.layout_of) if terms is None else None
        return Logits.of(self.terms if terms is None else terms, **{**known, **changes})

    def viewed(self, view: Callable[[Tensor], Tensor], terms: Sequence[Term] | None = None, **changes: Any) -> Logits:
        """Return what a function gives that arranges rows: a view of these, or a copy where torch makes one."""
        layout_of = view(self.layout_of)
        other = self.like(self.terms if terms is None else terms, layout_of=layout_of, **changes)
        if layout_of.untyped_storage()._cdata == self.layout_of.untyped_storage()._cdata:
            has_graph = other.requires_grad
            # What is detached does not keep the graph.
            other._root = functools.partial(itself, self) if has_graph else weakref.ref(self)
            self._views.append((weakref.ref(other), view if has_graph else lambda values: view(values).detach()))
        return other

    @property
    def is_plain(self) -> bool:
        """Tell whether they were made, and are what any tensor is from then on."""
        return self._values is not None or self._is_anothers

    @property
    def _is_anothers(self) -> bool:
        """Tell whether a function of the script's own has returned them: gradients go back through that."""
        return self._node_of_now is not self._node

    @property
    def _node_of_now(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return self.grad_fn

    def made(self) -> Tensor:
        """Return the logits as a plain tensor, on which autograd goes back.

        Raises:
            RuntimeError: What they are made of has changed.
        """
        if self._values is None:
            self.make()
        elif self._node_of_values is not self._node_of_now:  # a function of the script's own has written into them
            with torch.inference_mode(mode=False):
                self._values, self._node_of_values = _Numbers.apply(self), self._node_of_now
        assert self._values is not None, "they were made"
        return self._values

    def make(self) -> None:
        """Make the logits, with those that they are a view of and all views of these."""
        if self._values is not None:
            return
        root = None if self._root is None else self._root()
        if root is not None and not self._is_anothers:
            root.make()
            return
        self.origin.note_made()
        with torch.inference_mode(mode=False):  # a loss may be computed of them after who looks at them without a graph
            if self._is_anothers:
                self._take(_Numbers.apply(self))
            elif not self.requires_grad:
                self._take(self.numbers())
            else:
                with beside_checkpoints():
                    # Through what it was made of PyTorch refuses to go back where that was written into.
                    is_another = self.origin.has_other_weight or self.origin.has_other_needs
                    self._take(_Numbers.apply(self) if is_another else self._product())

    def _product(self) -> Tensor:
        return self.recipe.values(self.terms).movedim(-1, self.words)

    def _take(self, values: Tensor) -> None:
        if self._values is None:
            self._values, self._node_of_values = values, self._node_of_now
            for reference, view in self._views:
                if (other := reference()) is not None:
                    with torch.enable_grad():
                        other._take(view(values))

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Arrange, compute in chunks, or make."""
        return cls.answer(function, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Give an operator the numbers: it is called by code that asks no function, as autograd does."""
        named = kwargs or {}
        if function._schema.is_mutable:
            for at, argument in enumerate(function._schema.arguments):
                given = args[at] if at < len(args) else named.get(argument.name)
                if argument.is_write and any(
                    isinstance(one, Logits) and not one.is_plain for one in tree_leaves(given)
                ):
                    raise RuntimeError(
                        f"{function} writes into logits that were not made. Call clone() on them before."
                    )

        return function(*tree_map_only(Logits, Logits.numbers, args), **tree_map_only(Logits, Logits.numbers, named))

    def numbers(self) -> Tensor:
        """Return the logits without a graph."""
        if self._values is not None:
            return self._values.detach()
        self.origin.note_made()
        with torch.no_grad():
            return self._product()


def _detached(terms: Sequence[Term]) -> list[Term]:
    return [Term(*(None if one is None else one.detach() for one in term)) for term in terms]


class _Numbers(torch.autograd.Function):  # type: ignore[misc]
    """The numbers of logits, whose gradient goes back to what autograd knows them as."""

    @staticmethod
    def forward(_ctx: Any, logits: Logits) -> Tensor:
        return logits.numbers()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Node(torch.autograd.Function):  # type: ignore[misc]
    """Autograd's node of logits that are not made."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Any, ...], *tensors: Tensor | None) -> Tensor:
        ctx.recipe, _, ctx.words, *_ = known
        ctx.save_for_backward(*tensors)
        return Logits.wrapped(terms_of(tensors), *known)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        with torch.enable_grad():
            own = aliases_of(tensors)
            values = ctx.recipe.values(terms_of(own)).movedim(-1, ctx.words)
        return (None, *gradients_of(values, own, gradient, wanted))


_PROPERTIES = frozenset(
    {"device", "dtype", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_mps", "is_nested", "is_quantized"}
    | {"is_sparse", "is_xpu", "itemsize", "layout", "nbytes", "ndim", "requires_grad", "retains_grad", "shape"}
    | {"_version", "output_nr", "grad", "_backward_hooks", "names"}
)
_QUESTIONS = frozenset(
    {"__hash__", "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point"}
    | {"is_signed", "is_inference", "ndimension", "nelement", "numel", "size", "stride", "_is_view"}
)
"""Questions and properties that need no numbers of logits."""


def _answer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function gives that was called with logits among its arguments."""
    name, logits = getattr(function, "__name__", ""), args[0] if args else None
    if isinstance(logits, Logits) and not logits.is_plain:
        if name in _QUESTIONS or (name == "__get__" and function.__self__.__name__ in _PROPERTIES):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if name in {"retain_grad", "register_hook"}:
            logits.origin.require_no_chunks()
        is_another = logits.origin.is_late or logits.origin.has_other_needs
        known = None if is_another else _ANSWERS.get(name)
        with contextlib.suppress(_NotKnownError):
            if known is not None:
                return known(logits, function, args[1:], kwargs)
    given, named = tree_map_only(Logits, Logits.made, args), tree_map_only(Logits, Logits.made, kwargs)
    result = function(*given, **named)
    return logits if isinstance(logits, Logits) and result is given[0] else result


Logits.answer = staticmethod(_answer)


class _NotKnownError(Exception):
    """The logits have to be made."""


def _require(is_known: object) -> None:
    if not is_known:
        raise _NotKnownError


def _named(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by their names; none may have another."""
    found = dict(zip(names, args, strict=False)) | kwargs
    _require(len(args) <= len(names) and found.keys() <= set(names))
    return found


def _dim(logits: Logits, dim: Any) -> int:
    _require(isinstance(dim, int) and -logits.dim() <= dim < logits.dim())
    place: int = dim % logits.dim()
    return place


# What arranges rows.


def _rearranged(logits: Logits, change: Callable[[Tensor], Tensor]) -> list[Term]:
    return [Term(change(term.hidden), term.weight, term.bias) for term in logits.terms]


def _reshaped(logits: Logits, shape: Sequence[int], view: Callable[[Tensor], Tensor]) -> Logits:
    words = logits.shape[-1]
    sizes = list(shape)
    _require(logits.words == logits.dim() - 1 and sizes and all(isinstance(one, int) for one in sizes))
    if sizes.count(-1) == 1 and (rest := -math.prod(sizes)) > 0:
        sizes[sizes.index(-1)] = logits.numel() // rest
    _require(sizes[-1] == words and math.prod(sizes) == logits.numel() and len(sizes) > 1)
    lead = sizes[:-1]
    terms = _rearranged(logits, lambda hidden: hidden.reshape(*lead, hidden.shape[-1]))
    return logits.viewed(view, terms, words=len(lead))


def _view(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    _require(args and not kwargs)
    shape = args[0] if isinstance(args[0], (tuple, list)) else args
    return _reshaped(logits, shape, lambda values: function(values, *args))


def _flatten(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    given = _named(("start_dim", "end_dim"), args, kwargs)
    first, last = _dim(logits, given.get("start_dim", 0)), _dim(logits, given.get("end_dim", -1))
    sizes = list(logits.shape)
    _require(first <= last)
    shape = [*sizes[:first], math.prod(sizes[first : last + 1]), *sizes[last + 1 :]]
    return _reshaped(logits, shape, lambda values: function(values, *args, **kwargs))


def _item(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    """Take rows: an index must leave the words alone."""
    _require(len(args) == 1 and not kwargs)
    (index,) = args
    parts = index if isinstance(index, tuple) else (index,)
    _require(logits.words == logits.dim() - 1 and not any(isinstance(one, Logits) for one in parts))
    _require(all(type(one) in _PARTS or (type(one) is Tensor and one.dtype != torch.uint8) for one in parts))
    kinds = [type(one) for one in parts]
    is_open = kinds.count(type(Ellipsis)) == 1
    taken = sum(map(_dims_taken, parts))
    # The last part is about the words behind an ellipsis, and where there is one for each dimension.
    if (is_open and kinds[-1] is not type(Ellipsis)) or taken == logits.dim():
        _require(isinstance(parts[-1], slice) and parts[-1] == slice(None))
        taken -= 1
    _require(taken < logits.dim())
    terms = _rearranged(logits, lambda hidden: hidden[index])
    words = terms[0].hidden.dim() - 1
    _require(words)
    if any(issubclass(kind, (Tensor, list)) for kind in kinds):
        return logits.like(terms, words=words)  # a copy, whose rows depend on numbers
    return logits.viewed(lambda values: function(values, index), terms, words=words)


_PARTS = frozenset({int, slice, list, type(None), type(Ellipsis)})
"""Types of the parts of an index that are known beside tensors."""


def _dims_taken(part: Any) -> int:
    """Return the number of dimensions that a part of an index is about."""
    if isinstance(part, Tensor) and part.dtype == torch.bool:
        return int(part.dim())
    return 0 if part is None or part is Ellipsis else 1


def _along_rows(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Logits, ...]:
    """Take pieces of a dimension of the rows one after the other."""
    name = function.__name__
    names = ("dim",) if name == "unbind" else ("size", "dim")
    given = _named(names, args, {"size" if key in _SIZES else key: value for key, value in kwargs.items()})
    dim = _dim(logits, given.get("dim", 0))
    _require(logits.words == logits.dim() - 1 and dim < logits.words)
    pieces = [function(term.hidden, *args, **kwargs) for term in logits.terms]
    _require(pieces[0][0].dim() > 1 if pieces[0] else False)
    return tuple(
        logits.viewed(
            functools.partial(lambda at, values: function(values, *args, **kwargs)[at], at),
            [Term(one, term.weight, term.bias) for one, term in zip(parts, logits.terms, strict=True)],
            words=parts[0].dim() - 1,
        )
        for at, parts in enumerate(zip(*pieces, strict=True))
    )


_SIZES = frozenset({"split_size", "split_size_or_sections", "chunks"})


def _contiguous(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    _require(not args and not kwargs)
    return logits if logits.layout_of.is_contiguous() else logits.viewed(function)


def _clone(logits: Logits, _function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    _require(not args and not kwargs)
    return logits.like()


def _detach(logits: Logits, _function: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Logits:
    with torch.no_grad():
        return logits.viewed(_whole)


def _whole(values: Tensor) -> Tensor:
    return values.view(values.shape)


def _swap(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    given = _named(("dim0", "dim1"), args, kwargs)
    order = list(range(logits.dim()))
    one, two = (_dim(logits, given.get(name)) for name in ("dim0", "dim1"))
    order[one], order[two] = order[two], order[one]
    return _ordered(logits, order, lambda values: function(values, *args, **kwargs))


def _permute(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    _require(args and not kwargs)
    order = args[0] if isinstance(args[0], (tuple, list)) else args
    return _ordered(logits, [_dim(logits, one) for one in order], lambda values: function(values, *args))


def _ordered(logits: Logits, order: Sequence[int], view: Callable[[Tensor], Tensor]) -> Logits:
    rows = [dim for dim in order if dim != logits.words]
    _require(rows == sorted(rows) and len(order) == logits.dim())
    return logits.viewed(view, words=list(order).index(logits.words))


# What changes each row.


def _to(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    name, dtype = function.__name__, logits.dtype
    if name in _CASTS:
        _require(not args and not kwargs)
        dtype = _CASTS[name]
    elif name == "type_as" or (len(args) == 1 and isinstance(args[0], Tensor)):
        (other,) = args
        _require(not kwargs and other.device == logits.device)
        dtype = other.dtype
    else:
        try:
            device, wanted, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            raise _NotKnownError from error
        _require(layout is None and device in {None, logits.device} and not kwargs.get("copy"))
        dtype = wanted or dtype
    return logits if dtype == logits.dtype else _mapped(logits, Tensor.to, (dtype,), {})


_CASTS = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}


def _mapped(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    one = Map(function, args, kwargs, Autocast.of_now(logits.device.type))
    # Of one number it tells the type of the result.
    dtype = one(torch.zeros((1, 1), dtype=logits.dtype, device=logits.device)).dtype
    return logits.like(recipe=_with(logits.recipe, one), dtype=dtype)


def _with(recipe: Recipe, one: Map) -> Recipe:
    return Recipe(recipe.dtype, recipe.device, (*recipe.maps, one))


def _element(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    """Change each number by itself: the others have to be numbers of Python's."""
    _require(all(isinstance(one, Number) or one is None for one in (*args, *kwargs.values())))
    return _mapped(logits, function, args, kwargs)


def _softmax(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    names = (
        ("dim", "_stacklevel", "dtype")
        if getattr(function, "__module__", "") == functional.__name__
        else ("dim", "dtype")
    )
    given = _named(names, args, kwargs)
    _require(_dim(logits, given.get("dim")) == logits.words)
    plain: Any = torch.log_softmax if "log" in function.__name__ else torch.softmax
    return _mapped(logits, plain, (-1,), {"dtype": given.get("dtype")})


def _sum(logits: Logits, _function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    """Add the result of another product to the logits, as LoRA does."""
    _require(len(args) == 1 and not kwargs and isinstance(args[0], Logits) and not args[0].is_plain)
    other = args[0]
    recipe = Recipe(logits.recipe.dtype, logits.recipe.device)
    _require(not logits.recipe.maps and (other.recipe.dtype, other.dtype) == (recipe.dtype, logits.dtype))
    _require(logits.shape == other.shape and logits.words == other.words and logits.origin is not other.origin)
    terms = [*logits.terms, *(_scaled(term, other.recipe.maps) for term in other.terms)]
    return logits.like(terms, recipe=recipe, origin=logits.origin.beside(other.origin))


def _scaled(term: Term, maps: Sequence[Map]) -> Term:
    """Return a term whose hidden states are multiplied instead of its logits."""
    _require(term.bias is None or not maps)
    hidden = term.hidden
    for one in maps:
        _require(one.function.__name__ == "mul" and len(one.args) == 1 and not one.kwargs)
        hidden = hidden * one.args[0]
    return Term(hidden, term.weight, term.bias)


# What gives each row a number.


def _in_chunks(logits: Logits, function: Callable[[Tensor, slice], Tensor], **reduced: Any) -> Tensor:
    """Return the results of a function of rows, which lie in the first dimension, or what they are reduced to."""
    logits.origin.require_input()
    logits.origin.is_in_chunks |= torch.is_grad_enabled()
    flat = _rearranged(logits, lambda hidden: hidden.reshape(-1, hidden.shape[-1]))
    rows = rows_at_once(flat[0].hidden.shape[-1])
    autocast, goes_back = Autocast.of_now(logits.device.type), torch.is_grad_enabled()
    work = ByRows(logits.recipe, function, autocast, rows, goes_back=goes_back, **reduced)
    result: Tensor = InChunks.apply(work, *(one for term in flat for one in term))
    return result


def _loss(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a ``cross_entropy`` or an ``nll_loss`` of classes."""
    given = _named(_OF_LOSS, args, kwargs)
    target, weight = given["target"], given.get("weight")
    reduction, ignored = given.get("reduction", "mean"), given.get("ignore_index", -100)
    _require(given.get("size_average") is None and given.get("reduce") is None and reduction in _REDUCTIONS)
    _require(isinstance(target, Tensor) and not target.is_floating_point() and type(target) is not Logits)
    _require(weight is None or not weight.requires_grad)
    _require(logits.words == 1 and target.shape == _rows_of(logits) and target.device == logits.device)
    flat = target.reshape(-1)
    smoothing = {"label_smoothing": given["label_smoothing"]} if given.get("label_smoothing") else {}

    options = {"weight": weight, "ignore_index": ignored, "reduction": "none", **smoothing}

    def of_chunk(chunk: Tensor, piece: slice) -> Tensor:
        result: Tensor = function(chunk, flat[piece], **options)
        return result

    reads, count = counted([target] if weight is None else [target, weight]), None
    if reduction == "none":
        return _in_chunks(logits, of_chunk, reads=reads).reshape(target.shape)
    if reduction == "mean":
        labels = flat.long()  # bytes are none below zero, and as an index a mask
        labelled = labels != ignored
        count = (labelled if weight is None else weight[labels.where(labelled, 0)] * labelled).sum()
    return _in_chunks(logits, of_chunk, is_sum=True, count=count, reads=reads)


_OF_LOSS = ("target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_REDUCTIONS = frozenset({"none", "mean", "sum"})


def _rows_of(logits: Logits) -> tuple[int, ...]:
    return tuple(size for dim, size in enumerate(logits.shape) if dim != logits.words)


def _reduced(logits: Logits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return one number of each row, such as its ``logsumexp``."""
    given = _named(("dim", "keepdim"), args, kwargs)
    dim = given.get("dim")
    (dim,) = dim if isinstance(dim, (tuple, list)) and len(dim) == 1 else (dim,)
    _require(_dim(logits, dim) == logits.words == logits.dim() - 1)
    method = getattr(torch, function.__name__)
    with torch.no_grad() if method is torch.argmax else contextlib.nullcontext():
        found = _in_chunks(logits, lambda chunk, _: method(chunk, -1)).reshape(_rows_of(logits))
    return found.unsqueeze(-1) if given.get("keepdim") else found


def _gather(logits: Logits, _function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return numbers of each row by their places."""
    given = _named(("dim", "index"), args, kwargs)
    index = given["index"]
    _require(_dim(logits, given.get("dim")) == logits.words == logits.dim() - 1)
    _require(isinstance(index, Tensor) and index.shape[:-1] == _rows_of(logits))
    flat = index.reshape(-1, index.shape[-1])
    return _in_chunks(logits, lambda chunk, piece: chunk.gather(-1, flat[piece])).reshape(index.shape)


_ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("view", "reshape"), _view),
    "flatten": _flatten,
    "__getitem__": _item,
    **dict.fromkeys(("split", "chunk", "unbind"), _along_rows),
    "contiguous": _contiguous,
    "clone": _clone,
    "detach": _detach,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _swap),
    "permute": _permute,
    **dict.fromkeys((*_CASTS, "to", "type_as"), _to),
    **dict.fromkeys(("mul", "div", "true_divide", "sub", "tanh"), _element),
    "add": lambda logits, function, args, kwargs: (_sum if any(isinstance(one, Logits) for one in args) else _element)(
        logits, function, args, kwargs
    ),
    **dict.fromkeys(("log_softmax", "softmax"), _softmax),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _loss),
    **dict.fromkeys(("logsumexp", "argmax", "sum", "mean"), _reduced),
    "gather": _gather,
}
