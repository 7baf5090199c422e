"""Buffers, and tensors that are attributes of modules, as they were before a forward."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.weak import TensorWeakRef

if TYPE_CHECKING:
    from torch.nn import Module

    Place = tuple[int, str]  # a module's place in a list, and a tensor's name in it

SMALL = 2**16
"""A tensor of so many bytes is copied before each call; a larger buffer if it was written in an earlier call."""

_FIRST_WRITTEN = (
    "a large buffer of a checkpointed module was first written in a later call than the first one: in this step the "
    "module is made again with what was written. From the next step on it is made again as it was"
)
CHANGED = (
    "{} of a checkpointed module was changed between its forward and its backward pass, so that the module cannot be"
    " run again as it was; leave this module without recompute"
)


class TensorsBefore:
    """Tensors of modules before a forward, to be put back when it runs again.

    Copies are kept of those that the forward writes, and of small ones, which others may write before it runs again.
    Of all else nothing is kept alive: where it is gone by then, or written, the first use of it is an error.

    Args:
        modules: The modules.
        attributes: The tensors that are plain attributes, by place.
        written: Buffers that are known to be written; None where nothing is known.
    """

    def __init__(self, modules: list[Module], attributes: dict[Place, Tensor], written: set[Place] | None) -> None:
        self._modules = modules
        self._is_first = written is None
        self._held = _buffers_of(modules)  # until the forward is over
        others: dict[Place, Tensor] = {}
        for place, value in attributes.items():
            (self._held if _can_be_copied(value) else others)[place] = value
        self._seen = {
            place: (TensorWeakRef(value), value._version)
            for place, value in (*self._held.items(), *others.items())
            if not value.is_inference()
        }
        self._copies = {
            place: value.clone()
            for place, value in self._held.items()
            if written is None or place in written or _is_small(value)
        }
        self._written: set[Place] = set()

    def forget_unwritten(self) -> set[Place]:
        """Keep copies of those alone that the forward may have written, and of small ones. Which were written."""
        now = {**{place: self._now(place) for place in self._seen}, **_buffers_of(self._modules)}
        self._written = {place for place, value in now.items() if self._is_written(place, value)}
        small = {place: copy for place, copy in self._copies.items() if _is_small(copy)}
        self._copies = small | {place: self._before(place, now[place]) for place in self._written if self._has(place)}
        self._held = {}
        return self._written

    def put_back(self) -> None:
        """They are as they were. Not to be had any more are those that others have written, or let go."""
        for place in self._copies.keys() | self._seen.keys():
            index, name = place
            if place in self._written and place not in self._copies:
                continue  # what a forward leaves in an attribute it does not read, or gradients are found to differ
            _holder(self._modules[index], name)[name] = self._again(place)

    def _again(self, place: Place) -> Tensor:
        if place not in self._written and (same := self._same(place)) is not None:
            return same
        if place in self._copies:
            return self._copies[place].clone()
        return torch.empty(0).as_subclass(_Lost.of(place[1]))

    def _same(self, place: Place) -> Tensor | None:
        """The tensor itself where it is alive, and nobody has written it."""
        reference, version = self._seen[place]
        value: Tensor | None = reference()
        return value if value is not None and value._version == version else None

    def _now(self, place: Place) -> Any:
        index, name = place
        return _holder(self._modules[index], name).get(name)

    def _has(self, place: Place) -> bool:
        """Whether what was there is known: large tensors with a graph are not held in attributes, nor copied."""
        return place in self._held or place not in self._seen

    def _before(self, place: Place, now: Tensor) -> Tensor:
        """What a tensor was; what it is where it was written over for the first time, and nobody has a copy."""
        if place in self._copies:
            return self._copies[place]
        before = self._held.get(place, now)  # where the forward made it, it is as it was made
        if place in self._seen and before._version != self._seen[place][1]:
            warnings.warn(_FIRST_WRITTEN, stacklevel=2)
        return before.clone()

    def _is_written(self, place: Place, now: Any) -> bool:
        # Kernels of normalization write the statistics without a new version.
        if place not in self._seen or self._same(place) is not now or isinstance(self._modules[place[0]], _NormBase):
            return True
        copy = self._copies.get(place) if self._is_first else None
        return copy is not None and not is_fake(copy) and not torch.equal(copy, now)


class _Lost(Tensor):  # type: ignore[misc]
    """In place of a tensor that cannot be had any more: whatever is done with it is an error."""

    what = "a tensor"

    @classmethod
    def of(cls, name: str) -> type[_Lost]:
        """For a tensor of this name."""
        return type(cls.__name__, (cls,), {"what": f"the tensor {name}"})

    @classmethod
    def __torch_function__(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Tells what was lost."""
        raise RuntimeError(CHANGED.format(cls.what))


def _buffers_of(modules: list[Module]) -> dict[Place, Tensor]:
    return {
        (index, name): buffer
        for index, module in enumerate(modules)
        for name, buffer in module._buffers.items()
        if buffer is not None
    }


def _holder(module: Module, name: str) -> dict[str, Any]:
    buffers: dict[str, Any] = module._buffers
    return buffers if name in buffers else vars(module)


def _can_be_copied(value: Tensor) -> bool:
    """Whether an attribute is no more than a few numbers, without a graph that a copy would keep."""
    is_plain = type(value) in (Tensor, FakeTensor) and value.layout is torch.strided and not value.is_nested
    return is_plain and not value.requires_grad and not value.is_inference() and _is_small(value)


def _is_small(value: Tensor) -> bool:
    return bool(value.numel() * value.element_size() <= SMALL)
