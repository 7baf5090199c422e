"""Which tensors of a step hold what comes from other ranks or goes to them, and which are gradients."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

from autorecompute.backends.torch.callers import replica_around
from autorecompute.backends.torch.sharded import is_sharded
from autorecompute.errors import ScriptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from torch.nn import Module, Parameter

    from autorecompute.backends.torch.live import LiveBytes

PARAMETERS, GRADIENTS, GATHERED = "parameters", "gradients", "gathered"
"""Kinds of bytes: parameters and buffers of the model; gradients; what comes from other ranks or goes to them."""

GATHERS = ("unshard", "wait_for_unshard")
REDUCES = "post_backward"
"""What ``fully_shard`` calls of a group of parameters for each; private to torch."""


NO_GROUP = (
    "The script makes no process group, so there is one rank of it. Leave --ranks out, or have the script call "
    "torch.distributed.init_process_group where WORLD_SIZE is set."
)


def require_group() -> None:
    """Refuse a script that trains alone.

    Raises:
        ScriptError: It has made no process group.
    """
    if not torch.distributed.is_initialized():
        raise ScriptError(NO_GROUP)


class Collectives:
    """Follows the storages of a step in which ``fully_shard`` gathers parameters and reduces gradients.

    Args:
        model: The model.
        meter: Counts the storages of the step, and gives them their numbers.
        buckets: Those of ``DistributedDataParallel`` around the model; ``None`` where there is none.

    Attributes:
        gathered: Numbers of the storages of gathered parameters and of buffers of collectives.
        gradients: Those of gradients, before they are reduced and behind that.
    """

    def __init__(self, model: Module, meter: LiveBytes, buckets: Buckets | None) -> None:
        self._model, self._meter, self._buckets = model, meter, buckets
        self._held = meter.numbers_of([*model.parameters(), *model.buffers()])
        own = meter.numbers_of(buckets.tensors) if buckets is not None else set()
        is_view = buckets is not None and buckets.are_gradients
        self.gathered, self.gradients = (set(), own) if is_view else (own, set())

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow whatever is gathered and reduced inside."""
        with contextlib.ExitStack() as followed:
            if self._buckets is not None:
                followed.enter_context(self._buckets.in_use())
            if is_sharded(self._model):
                followed.enter_context(self._sharding())
            yield

    @contextlib.contextmanager
    def _sharding(self) -> Iterator[None]:
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

        originals = {name: getattr(FSDPParamGroup, name) for name in (*GATHERS, REDUCES)}
        for name, original in originals.items():
            setattr(FSDPParamGroup, name, self._following(original, reduces=name == REDUCES))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(FSDPParamGroup, name, original)

    def note_gradients(self) -> None:
        """End the backward pass: what the parameters have now are gradients."""
        parameters = self._model.parameters()
        self.gradients |= self._meter.numbers_of(one.grad for one in parameters if one.grad is not None)

    @property
    def kinds(self) -> dict[int, str]:
        """Return the kind of each storage that has one, by its number."""
        gathered, gradients = dict.fromkeys(self.gathered, GATHERED), dict.fromkeys(self.gradients, GRADIENTS)
        return {**gathered, **gradients, **dict.fromkeys(self._held, PARAMETERS)}

    def _following(self, original: Callable[..., Any], *, reduces: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if reduces:
                self.gradients |= self._meter.numbers_of(_unsharded_gradients(group))
            begin = len(self._meter.events)
            result = original(group, *args, **kwargs)
            self.gathered |= {event.storage for event in self._meter.events[begin:] if event.change > 0}
            return result

        return call


def _unsharded_gradients(group: Any) -> Iterator[Tensor]:
    for one in group.fsdp_params:
        whole = getattr(one, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad
        if one.unsharded_accumulated_grad is not None:
            yield one.unsharded_accumulated_grad


class Buckets:
    """The buckets in which ``DistributedDataParallel`` has gradients summed over ranks, for as long as it lives.

    Args:
        parameters: The parameters that are trained.
        are_gradients: Whether the gradients lie in them (``gradient_as_bucket_view``), and not beside them.

    Attributes:
        are_gradients: The same.
    """

    def __init__(self, parameters: Iterable[Parameter], *, are_gradients: bool) -> None:
        trained = dict.fromkeys(one for one in parameters if one.requires_grad)
        self._buckets = {one: torch.empty_like(one, requires_grad=False) for one in trained}
        self.are_gradients = are_gradients

    @property
    def tensors(self) -> list[Tensor]:
        """Return the parts of them."""
        return list(self._buckets.values())

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have gradients that come inside lie where they would."""
        if not self.are_gradients:
            yield
            return
        hooks = [one.register_post_accumulate_grad_hook(self._put) for one in self._buckets]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _put(self, parameter: Tensor) -> None:
        parameter.grad = self._buckets[parameter]


def buckets_around(module: Module) -> Buckets | None:
    """Return those of the ``DistributedDataParallel`` that is calling the module now; ``None`` where there is none."""
    replica = replica_around(module)
    if replica is None:
        return None
    return Buckets(module.parameters(), are_gradients=replica.gradient_as_bucket_view)
