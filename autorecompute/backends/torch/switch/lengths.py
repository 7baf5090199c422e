"""Batches of every length: given to a script in trials, and followed by a config for each in its training."""

from __future__ import annotations

import functools
import gc
import logging
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autorecompute.backends.common import observe_batch, tensors_in, with_leaves
from autorecompute.backends.torch.fake.tensors import is_fake
from autorecompute.backends.torch.find.identity import sizes_of
from autorecompute.backends.torch.switch.intercepting import can_be_intercepted
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.errors import ScriptError, log
from autorecompute.plans.savings import SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.switch.switchboard import Switchboard
    from autorecompute.plans import Config, Lengths


class GivenLength:
    """Has every DataLoader of the process serve batches of one length, cut or continued.

    Attributes:
        length: The tokens that models receive of batches that are served from now on.
        kept: The last tokens of each sample that the script keeps for its labels, and gives to no model.
        most: The tokens of the longest batch that the script itself has made.
        has_served: True once a batch was served.
        has_length: True once it was one that has a length.
    """

    def __init__(self, length: int) -> None:
        self.length, self.kept, self.most, self.has_served, self.has_length = length, 0, 0, False, False
        serve = _BaseDataLoaderIter.__next__

        @functools.wraps(serve)
        def serve_at_length(iterator: Any) -> Any:
            batch = serve(iterator)
            samples = observe_batch(_values_of(batch))
            self.most = max(self.most, sizes_of(tensors_in(batch), samples).get(SEQUENCE, 0))
            given = at_length(batch, samples, self.length + self.kept)
            self.has_served, self.has_length = True, self.has_length or given is not None
            return batch if given is None else given

        _BaseDataLoaderIter.__next__ = serve_at_length

    def require(self, longest: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Note which length a model receives of the longest batch; return what a user should know of it, in words.

        Raises:
            ScriptError: no DataLoader serves its batches, or they have no length.
        """
        size = sizes_of(tensors_in((args, kwargs)), observe_batch([*args, *kwargs.values()])).get(SEQUENCE)
        if not self.has_served:
            raise ScriptError(NO_LOADER.format(longest=longest))
        if size is None or not self.has_length:
            raise ScriptError(NO_LENGTH.format(longest=longest))
        if size not in {longest, longest - 1}:
            return (f"the model receives {size} tokens of batches of {longest}: the script cuts them",)
        self.length, self.kept = size, longest - size  # a script may keep the last token for its labels
        return ()


NO_LOADER = (
    "--longest {longest} needs batches from a DataLoader, and the script makes its own. Leave --longest out, and have "
    "the script make batches of that length."
)
NO_LENGTH = (
    "--longest {longest} needs batches of texts, whose tensors count tokens in their second dimension. Leave --longest "
    "out."
)


def call_at_length(args: Sequence[Any], kwargs: Mapping[str, Any], length: int) -> tuple[Any, Any]:
    """Return the arguments of a call at another length: see :func:`at_length`.

    Raises:
        ScriptError: they have no length.
    """
    given = at_length((tuple(args), dict(kwargs)), observe_batch([*args, *kwargs.values()]), length)
    if given is None:
        raise ScriptError("the batch has no length: --longest is for texts, with their tokens in the second dimension")
    positional, named = given
    return positional, named


def _values_of(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, (tuple, list)) else [batch]


def at_length(given: Any, samples: int, length: int) -> Any:
    """Return the same structure with its sequences at another length; ``None`` where no tensor has one.

    A longer sequence goes on with its first tokens, positions go on counting, and a mask goes on with ones. A shorter
    one has labels that count, if any do: the mean loss of a batch without is no number.
    """
    size = sizes_of(tensors_in(given), samples).get(SEQUENCE)
    if size is None:
        return None
    start = _start_of(tensors_in(given), samples, size, length) if length < size else 0

    def resize(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or size == length:
            return leaf
        for dim in _sequences_of(leaf, samples, size):
            leaf = leaf.narrow(dim, start, length).contiguous() if length < size else _continued(leaf, dim, length)
        return leaf

    return with_leaves(given, resize)


def _start_of(tensors: Iterable[Tensor], samples: int, size: int, length: int) -> int:
    """Return where to cut so many tokens out, that the first label which counts is among them, and no first token."""
    for tensor in tensors:
        if tuple(tensor.shape) == (samples, size) and not tensor.is_floating_point() and not is_fake(tensor):
            counts = (tensor >= 0).any(0).nonzero()
            if 0 < len(counts) < size:  # others have no labels that are ignored
                return min(max(int(counts[0]) - length // 2, 0), size - length)
    return 0


ROWS, MASK = 2, 4
"""Dimensions of a tensor of tokens or their features, from ROWS to MASK - 1, and of a mask of attention."""


def _sequences_of(tensor: Tensor, samples: int, size: int) -> list[int]:
    """Return the dimensions of a tensor that count the tokens of a sequence of this size."""
    shape = tuple(tensor.shape)
    if tensor.layout is not torch.strided or tensor.is_nested or len(shape) < ROWS:
        return []
    if len(shape) == ROWS and shape == (size, size) and size != samples:
        return [0, 1]
    if len(shape) < MASK:
        return [1] if shape[0] in {samples, 1} and shape[1] == size else []
    is_mask = shape[1] == 1 or not tensor.is_floating_point()
    return [dim for dim in (len(shape) - 2, len(shape) - 1) if is_mask and shape[dim] == size]


def _continued(tensor: Tensor, dim: int, length: int) -> Tensor:
    size = tensor.shape[dim]
    if tensor.dim() == ROWS and not tensor.is_floating_point():
        numbers = tensor.long()
        if size > 1 and bool((numbers.diff(dim=1) == 1).all()):  # positions
            counted = torch.arange(length, device=tensor.device, dtype=tensor.dtype)
            return tensor[:, :1] + counted
        if bool((numbers[:, 0] == 1).all()) and bool((numbers == (numbers != 0)).all()):  # a mask
            return torch.cat([tensor, tensor[:, :1].expand(-1, length - size)], dim=1)
    return tensor.index_select(dim, torch.arange(length, device=tensor.device) % size)


def call_with_gradients(result: Any, call: Callable[[Tensor], None]) -> bool:
    """Call a function once gradients come back to what a model returned; tell whether they may.

    It is held as long as the graph that they go back through.
    """
    may_come = False
    for tensor in tensors_in(result):
        if tensor.grad_fn is not None:  # a hook on a weight that is returned would stay there
            # What hooks are on is made, and gradients come back to what logits are made of all the same.
            hooked = tensor.terms[0].hidden if isinstance(tensor, Logits) else tensor
            if hooked.requires_grad:
                hooked.register_hook(call)
            may_come = True
    return may_come


class _Open:
    """A call whose backward pass is still to come; nothing but its graph holds it."""

    __slots__ = ("__weakref__", "_all")

    def __init__(self, all_open: weakref.WeakSet[_Open]) -> None:
        self._all = all_open

    def __call__(self, _gradient: Tensor) -> None:
        self._all.discard(self)


def lengths_of(tensors: Iterable[Tensor], samples: int) -> set[int]:
    """Return the lengths, in tokens, of the sequences among the tensors of a call; empty where there are none."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    return {shape[1] for shape in shapes if ROWS <= len(shape) < MASK and shape[0] == samples}


class _Nothing:
    """The hook of a model that was loaded from disk, in place of one that switched the saved model."""

    def __call__(self, *_call: Any) -> None:
        pass


class _Hook:
    """A hook of one model, which its copies have for nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *call: Any) -> None:
        self._call(*call)

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Nothing, ()


class ByLength:
    """Has each training call of a model run with the config for its length.

    It is an ``Around`` for the model, or its hooks where the model has a forward on the instance, as Accelerate puts
    there for mixed precision. A call whose backward pass is still to come keeps its config: what is made again in it is
    what was run.
    """

    def __init__(self, model: Module, board: Switchboard, lengths: Lengths) -> None:
        self._model, self._board, self._lengths = weakref.ref(model), board, lengths
        self._open: weakref.WeakSet[_Open] = weakref.WeakSet()
        self._told: set[str] = set()
        if not can_be_intercepted(model):
            model.register_forward_pre_hook(_Hook(self._before), prepend=True, with_kwargs=True)
            model.register_forward_hook(_Hook(self._after))

    def __call__(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call the model, after a switch where its length needs another config than the last one."""
        if self._switches(module, args, kwargs):
            return module.forward(*args, **kwargs)  # through what is around it now
        result = forward(*args, **kwargs)
        self._after(module, args, result)
        return result

    def _before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._switches(module, args, kwargs)

    def _after(self, module: Module, _args: Any, result: Any) -> None:
        """Note that a graph is open in which something is made again."""
        # What a backward pass runs again is a part of a call that has its config.
        is_called = module is self._model() and torch.is_grad_enabled() and torch._C._current_autograd_node() is None
        if is_called and self._board.choices:
            call = _Open(self._open)
            if call_with_gradients(result, call):
                self._open.add(call)  # until gradients come back, or until its graph is gone

    def _switches(self, module: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Switch to the config for a call, if it needs another one and nothing is open; tell whether that was done."""
        is_over = self._board.by_length is not self  # another answer, or none, has taken its place
        if is_over or not module.training or module is not self._model():  # a copy has its hooks
            return False
        if not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None:
            return False
        config = self._config_for(args, kwargs)
        if config.choices == self._board.choices:
            return False
        if self._open and CALLED_AGAIN not in self._told:
            gc.collect()  # a graph that nobody goes back through may lie in a circle
        if self._open:
            self._tell(CALLED_AGAIN)
            return False
        self._board.set(config.choices)
        return True

    def _config_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Config:
        batch, longest = observe_batch([*args, *kwargs.values()]), self._lengths.longest
        length = max(lengths_of(tensors_in((args, kwargs)), batch), default=longest)
        if length > longest:
            self._tell(f"batches are longer than the {longest} tokens that were tuned: their peaks are not known")
        elif batch > self._lengths.batch:
            self._tell(f"batches have more than the {self._lengths.batch} samples that were tuned: all get one config")
        return self._lengths.config_for(batch, length)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log(logging.WARNING, text)


CALLED_AGAIN = "the model is called again before its backward pass, and keeps the config of the first call"
