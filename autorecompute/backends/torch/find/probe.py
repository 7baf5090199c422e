"""Watches one forward pass of a model: what it saves for its backward pass, and which calls made it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd import _get_sequence_nr
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.common import observe_batch, tensors_in
from autorecompute.backends.torch.find.heads import LOG_SOFTMAX, Heads
from autorecompute.backends.torch.find.own_checkpoints import covered, followed
from autorecompute.backends.torch.find.recipes import Recorded
from autorecompute.backends.torch.find.refusals import Reason, RefusalError
from autorecompute.backends.torch.find.source import is_in_autograd_function, keeps_for_backward
from autorecompute.backends.torch.find.storages import (
    WITH_FAKES,
    Storages,
    Values,
    changed_by,
    looks_at_values,
    storage_of,
)
from autorecompute.backends.torch.find.structure import is_sharded, is_within
from autorecompute.backends.torch.switch.checkpoints import MATMULS, can_have_its_own, has_cache
from autorecompute.backends.torch.switch.intercepting import (
    ATTENTION,
    around_attention,
    can_be_intercepted,
    intercept_attention,
    put_around,
    release,
)
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.backends.torch.switch.module_state import copies_of, untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.switch.intercepting import Around

    Visit = Callable[["Probe", "Call", Any], None]


@dataclasses.dataclass
class Call:
    """One call of a module, or of attention in one.

    Attributes:
        path: The module's path; for attention ``path/scaled_dot_product_attention``.
        first: The number that autograd gives the first node made in it.
        end: The number of the first node made after it.
        inputs: Storages of the tensors that it was given; none of a call that keeps nothing.
        keeps: True if it keeps anything for the backward pass, as one without gradients does not.
    """

    path: str
    first: int
    inputs: frozenset[int]
    keeps: bool
    end: int = 0


@dataclasses.dataclass
class Saved:
    """A storage that is saved for the backward pass.

    Attributes:
        bytes: Its size.
        scales: True if the size grows with the batch.
        savers: Paths of the modules that saved a tensor on it, the innermost each time.
        times: The number of tensors on it that were saved.
    """

    bytes: int
    scales: bool
    savers: set[str] = dataclasses.field(default_factory=set)
    times: int = 0


class Probe(TorchDispatchMode):  # type: ignore[misc]
    """Watches one forward pass of a model: what it saves, and each operator.

    Args:
        model: The model; nothing of ours may be on in it.
        units: Paths of its units.
        visit: Called when a unit, and at the end the model, has returned, with this, the call and its result.
            What it saved can still be read from the nodes of the graph.
        compiled: Paths of compiled parts, which are left as they are.
        calls: Calls of the model in a step before the backward pass.
        chunked: What makes the logits of layers in chunks, by their paths.
        refuses_caches: Leaves modules alone that are given a key-value cache, whatever it holds.

    Attributes:
        batch: Samples in the batch.
        calls: All calls in the order in which they began.
        saved: Storages that would have been saved, by their numbers; parameters and buffers are left out.
        given: Those that modules were given, likewise.
        changed: Matrix products whose result was changed in place, with the path of the module in which it was. Kept,
            such a product would be changed again where its block is made again, and torch does not always notice.
        masks: Storages that were filled with zeros and ones by chance, as the mask of a dropout is.
        recorded: The operator that made each node, by the number of the node; none where it cannot be called again.
        refused: Modules that are left as they are, by path.
        values: The values that modules looked at.
        heads: The heads whose logits it saw go into a loss, or be returned.
        checkpointed: Paths of the modules that the script checkpoints itself, or would if that were not replaced, in
            the order of their calls. Where it checkpoints a function that calls none, the module that does so.
    """

    supports_higher_order_operators = True

    def __init__(  # noqa: PLR0913  (a model, and what is known of it)
        self,
        model: Module,
        units: Sequence[str],
        visit: Visit | None = None,
        compiled: Sequence[str] = (),
        calls: int = 1,
        *,
        chunked: Mapping[str, Around] = MappingProxyType({}),
        refuses_caches: bool = False,
    ) -> None:
        super().__init__()
        self._model = model
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._units, self._compiled, self._visit, self._times = set(units), compiled, visit, calls
        self._refuses_caches, self._chunked = refuses_caches, chunked
        self._thread = threading.get_ident()
        self._stack: list[str] = []
        self._kept: list[list[Tensor]] = []
        self._mark = torch.ones(1, requires_grad=True)
        self._is_marked, self._is_sharded = False, is_sharded(model)
        self._trained: set[str] = set()
        self._products: dict[int, torch._ops.OpOverload] = {}
        self._checkpoints: list[tuple[str, set[str]]] = []
        self._inside: list[set[str]] = []
        self.storages = Storages()
        self.batch = 1
        self.calls: list[Call] = []
        self.saved: dict[int, Saved] = {}
        self.given: dict[int, Saved] = {}
        self.changed: set[tuple[str, torch._ops.OpOverload]] = set()
        self.masks: set[int] = set()
        self.recorded: dict[int, Recorded | None] = {}
        self.refused: dict[str, Reason] = {}
        self.values = Values()
        self.heads = Heads(model)
        self.checkpointed: tuple[str, ...] = ()

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Self:
        """Run the forward pass of a training step with these arguments, and return this with what was seen.

        Training goes on bit for bit as if it had not been run.

        Raises:
            RefusalError: Nothing of the model can be recomputed.
        """
        self.batch = observe_batch([*args, *kwargs.values()])
        with untouched(self._model), self._intercepted(), torch.enable_grad():
            tensors = (*self._model.parameters(), *self._model.buffers())
            self._fixed = {self.storages.number(tensor) for tensor in tensors}
            is_hooked = _is_hooked()
            with saved_tensors_hooks(self._pack, unpack), self, followed(self._checkpointed):
                for _ in range(self._times):
                    given, named = copies_of((tuple(args), dict(kwargs)))
                    if can_be_intercepted(self._model):
                        result = self._model(*given, **named)
                    else:  # its forward is on the instance, as Accelerate puts it there for mixed precision
                        result = self._around(self._model, self._model, *given, **named)
                    self.heads.see_result(result, self.owner_of)
                    del result
        self._kept.clear()
        self._note_checkpointed()
        # One call with gradients is enough: a model may run its blocks a first time without.
        for path in set(self._paths.values()).intersection(self.called):
            if path not in self._trained:
                self.refused.setdefault(path, Reason.OUTPUT)
        if is_hooked:
            raise RefusalError(Reason.OWN_HOOKS)
        if "" in self.refused:
            raise RefusalError(self.refused[""])
        return self

    @property
    def called(self) -> list[str]:
        """Paths of the calls, each once, in the order in which they began."""
        return list(dict.fromkeys(call.path for call in self.calls))

    def changed_in(self, paths: Collection[str]) -> set[torch._ops.OpOverload]:
        """Return the matrix products whose results are changed in place in these modules."""
        return {operator for path, operator in self.changed if any(is_within(path, one) for one in paths)}

    def owner_of(self, sequence: int) -> str:
        """Return the path of the innermost call that made the node with this number; empty for the model's own."""
        inner = [call for call in self.calls if call.first <= sequence < call.end]
        return inner[-1].path if inner else ""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(function, HigherOrderOperator):  # such as FlexAttention, which is one operator in compiled code
            return function(*args, **(kwargs or {}))
        storages, recorded, number = self.storages, self.recorded, _get_sequence_nr() - 1
        # A node is made right before its operator runs; what runs after that, without a node, has the same number.
        if number not in recorded and function.namespace != "prim":
            recorded[number] = Recorded.of(function, args, kwargs or {}, storages)
        if function is LOG_SOFTMAX:
            logits, dim, is_widened = args
            self.heads.see_loss(logits, dim, is_widened, self.owner_of)
        result = function(*args, **(kwargs or {}))
        if function.namespace not in WITH_FAKES:
            self.values.keep_form(function, (args, kwargs or {}), result)
        if looks_at_values(function, args):
            self.values.record(self.path.partition("/")[0], function, result)
        if function is torch.ops.aten.bernoulli_.float:
            self.masks.add(storages.number(result))
        if function in MATMULS:
            self._products[storages.number(result)] = function
        elif function._schema.is_mutable:
            changed = {storages.number(tensor) for tensor in changed_by(function, args, kwargs or {})}
            # Divided by a number, a mask has one value beside zero; by a tensor, it may have many in a later step.
            if any(tensor.numel() > 1 for tensor in tensors_in(args[1:])):
                self.masks -= changed
            self.changed |= {(self.path, self._products[number]) for number in changed & self._products.keys()}
        return result

    @contextlib.contextmanager
    def _checkpointed(self) -> Iterator[None]:
        inside: set[str] = set()
        self._inside.append(inside)
        self._checkpoints.append((self.path, inside))
        try:
            yield
        finally:
            self._inside.pop()

    def _note_checkpointed(self) -> None:
        paths = set(self._paths.values())
        called = [path for path in self.called if path in paths]
        kept = {path for path, reason in self.refused.items() if reason is Reason.OWN_CHECKPOINT}
        covers = covered(self._checkpoints, called)
        self.checkpointed = tuple(path for path in called if path in covers or path in kept)
        for path in covers & {maker for maker, inside in self._checkpoints if inside & kept}:
            self.refused.setdefault(path, Reason.OWN_CHECKPOINT)

    @property
    def path(self) -> str:
        """Return the module that runs now."""
        return self._stack[-1] if self._stack else ""

    @contextlib.contextmanager
    def _intercepted(self) -> Iterator[None]:
        modules = [module for module in self._model.modules() if can_be_intercepted(module)]
        intercept_attention(on=True)
        for module in modules:
            put_around(module, [self._around])
        try:
            yield
        finally:
            for module in modules:
                release(module)
            intercept_attention(on=False)

    def _around(self, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:  # what another thread runs is no part of this pass
            return forward(*args, **kwargs)
        path = self._paths[id(module)]
        for inside in self._inside:
            inside.add(path)
        if self._is_sharded:  # what is gathered for this call, and is no shard, goes with it, whoever saves it
            self._fixed |= {self.storages.number(one) for one in module.parameters() if not hasattr(one, "to_local")}
        given = [tensor for tensor in tensors_in((args, kwargs)) if not isinstance(tensor, Logits)]
        versions, inputs = [tensor._version for tensor in given], self._numbers_of(given)
        self._refuse_before(path, module, (*args, *kwargs.values()))
        if path in self._chunked:
            forward = functools.partial(self._chunked[path], forward, module)
        result = around_attention(self._attend, self._called, path, inputs, forward, *args, **kwargs)
        if [tensor._version for tensor in given] != versions:
            self.refused.setdefault(path, Reason.INPLACE)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(result)):
            self._trained.add(path)
        return result

    def _attend(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        inputs = self._numbers_of(tensors_in((args, kwargs)))
        return self._called(f"{self.path}/{ATTENTION}", inputs, function, *args, **kwargs)

    def _numbers_of(self, given: Iterable[Tensor]) -> frozenset[int]:
        if not keeps_for_backward():
            return frozenset()
        found = {self.storages.number(tensor): tensor for tensor in given}
        for number, tensor in found.items():
            if number not in self._fixed and number not in self.given:
                self.given[number] = self._saved_as(tensor)
        return frozenset(found.keys() - self._fixed)

    def _called(
        self, path: str, inputs: frozenset[int], function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        call = Call(path, _get_sequence_nr(), inputs, keeps_for_backward())
        self.calls.append(call)
        self._stack.append(path)
        outer = len(self._kept)
        try:
            result = function(*args, **kwargs)
        finally:
            self._stack.pop()
            call.end = _get_sequence_nr()
        if path in self._units or not path:
            if self._visit:
                self._visit(self, call, result)
            for packed in self._kept[outer:]:
                packed.clear()
            del self._kept[outer:]
        return result

    def _refuse_before(self, path: str, module: Module, values: Sequence[Any]) -> None:
        if not can_have_its_own(module, values) or (self._refuses_caches and has_cache(values)):
            self.refused.setdefault(path, Reason.CACHE)
        if any(is_within(path, compiled) for compiled in self._compiled):
            self.refused.setdefault(path, Reason.COMPILED)
        is_kept = self._is_asked() if torch.is_grad_enabled() else not is_in_autograd_function()
        if path and not is_kept:
            self.refused.setdefault(path, Reason.OWN_CHECKPOINT)

    def _is_asked(self) -> bool:
        """Tell whether a tensor that is saved now comes to us: not inside a checkpoint of the script's."""
        self._is_marked = False
        self._mark.square()
        return self._is_marked

    def _pack(self, tensor: Tensor) -> list[Tensor]:
        """Give autograd what stands for a saved tensor, and lets go of it when its unit has returned."""
        packed = [tensor]
        if tensor is self._mark:
            self._is_marked = True
            return packed
        number = self.storages.number(tensor)
        if number not in self._fixed:
            saved = self.saved.setdefault(number, self._saved_as(tensor))
            saved.savers.add(self.path)
            saved.times += 1
        self._kept.append(packed)
        return packed

    def _saved_as(self, tensor: Tensor) -> Saved:
        # The batch is in the shape: first, alone or times the length, or second where time goes first.
        shape = tuple(tensor.shape)
        scales = bool(shape) and (shape[0] % self.batch == 0 or shape[1:2] == (self.batch,))
        return Saved(storage_of(tensor).nbytes(), scales)


def unpack(packed: list[Tensor]) -> Tensor:
    """Return the saved tensor that a probe has packed."""
    if not packed:  # its unit has returned, and this is still the forward
        raise RefusalError(Reason.OWN_GRADIENTS)
    return packed[0]


def _is_hooked() -> bool:
    """Tell whether a tensor that is saved now goes through hooks of the script's."""
    result = torch.ones(1, requires_grad=True).exp()
    try:
        result.grad_fn._raw_saved_result.register_hooks(lambda tensor: tensor, lambda tensor: tensor)
    except RuntimeError:  # there can be one pair of hooks
        return True
    return False
