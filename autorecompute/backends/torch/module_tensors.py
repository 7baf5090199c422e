"""Buffers, and tensors that are attributes of modules, as they were before a forward."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.weak import TensorWeakRef

from autorecompute.backends.torch.checksums import checksum

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
    A version tells of no write through ``.data``, nor of those of torch's own fused observers: copies are compared by
    value, and large buffers by the sum of their bits. Weights that were computed before the call, as the old
    ``weight_norm`` does, are kept alive. Of all else nothing is: where it is gone by then, or written, the first use of
    it is an error.

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
        self._computed = [value for place, value in others.items() if _is_computed_weight(modules[place[0]], place[1])]
        self._copies = {
            place: value.clone()
            for place, value in self._held.items()
            if written is None or place in written or _is_small(value)
        }
        self._sums = {
            place: checksum(value)
            for place, value in self._held.items()
            if place not in self._copies and place in self._seen and _can_be_summed(value)
        }
        self._written: set[Place] = set()

    def forget_unwritten(self) -> set[Place] | None:
        """Keep copies of those alone that the forward may have written, and of small ones.

        Returns:
            Which were written; None where nobody can tell, as they are fake.
        """
        is_told = not any(map(is_fake, self._held.values()))
        now = {**{place: self._now(place) for place in self._seen}, **_buffers_of(self._modules)}
        self._written = {place for place, value in now.items() if self._is_written(place, value)}
        small = {place: copy for place, copy in self._copies.items() if _is_small(copy)}
        self._copies = small | {place: self._before(place, now[place]) for place in self._written if self._has(place)}
        self._held = {}
        return self._written if is_told else None

    def put_back(self) -> None:
        """They are as they were. Not to be had any more are those that others have written, or let go."""
        for place in self._copies.keys() | self._seen.keys():
            index, name = place
            if place in self._written and place not in self._copies:
                continue  # what a forward leaves in an attribute it does not read, or gradients are found to differ
            _holder(self._modules[index], name)[name] = self._again(place)

    def _again(self, place: Place) -> Tensor:
        same, copy = self._same(place), self._copies.get(place)
        if place not in self._written and same is not None and (copy is None or self._holds(same, copy)):
            return same
        if copy is not None:
            return copy.clone()
        return torch.empty(0).as_subclass(_Lost.of(place[1]))

    def _same(self, place: Place) -> Tensor | None:
        """Return the tensor itself where it is alive, and nobody has written it."""
        reference, version = self._seen[place]
        value: Tensor | None = reference()
        return value if value is not None and value._version == version else None

    def _now(self, place: Place) -> Any:
        index, name = place
        return _holder(self._modules[index], name).get(name)

    def _has(self, place: Place) -> bool:
        """Tell whether what was there is known: large tensors with a graph are not held in attributes, nor copied."""
        return place in self._held or place not in self._seen

    def _before(self, place: Place, now: Tensor) -> Tensor:
        """Return what a tensor was; what it is where it was written over for the first time, and nobody has a copy."""
        if place in self._copies:
            return self._copies[place]
        before = self._held.get(place, now)  # where the forward made it, it is as it was made
        if place in self._seen and self._is_written_in_place(place, before):
            warnings.warn(_FIRST_WRITTEN, stacklevel=2)
        return before.clone()

    def _is_written_in_place(self, place: Place, value: Tensor) -> bool:
        sum_before = self._sums.get(place)
        has_other_bits = sum_before is not None and sum_before != checksum(value)
        return value._version != self._seen[place][1] or has_other_bits

    def _is_written(self, place: Place, now: Any) -> bool:
        # Kernels of normalization write the statistics without a new version.
        if place not in self._seen or self._same(place) is not now or isinstance(self._modules[place[0]], _NormBase):
            return True
        if place in self._sums:
            return self._sums[place] != checksum(now)
        return place in self._copies and not self._holds(now, self._copies[place])

    def _holds(self, value: Tensor, copy: Tensor) -> bool:
        """Tell whether a tensor is as it was copied. On a card nobody waits to know, but for the first call."""
        if is_fake(copy):
            return True
        return bool((self._is_first or value.device.type == "cpu") and torch.equal(copy, value))


class _Lost(Tensor):  # type: ignore[misc]
    """In place of a tensor that cannot be had any more: whatever is done with it is an error."""

    what = "a tensor"

    @classmethod
    def of(cls, name: str) -> type[_Lost]:
        """Return it for a tensor of this name."""
        return type(cls.__name__, (cls,), {"what": f"the tensor {name}"})

    @classmethod
    def __torch_function__(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Tell what was lost."""
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
    """Tell whether an attribute is no more than a few numbers, without a graph that a copy would keep."""
    is_plain = type(value) in (Tensor, FakeTensor) and value.layout is torch.strided and not value.is_nested
    return is_plain and not value.requires_grad and not value.is_inference() and _is_small(value)


def _is_computed_weight(module: Module, name: str) -> bool:
    """Tell whether an attribute is made of parameters in a hook before each call: ``weight`` of ``weight_v``."""
    shape, start = vars(module)[name].shape, f"{name}_"
    parameters = ((other, one) for other, one in module._parameters.items() if one is not None)
    return any(other.startswith(start) and one.shape == shape for other, one in parameters)


def _can_be_summed(value: Tensor) -> bool:
    """Tell whether a buffer is one block of numbers in memory of the host."""
    is_plain = type(value) is Tensor and value.layout is torch.strided and not value.is_nested
    return is_plain and value.device.type == "cpu" and not value.is_quantized


def _is_small(value: Tensor) -> bool:
    return bool(value.numel() * value.element_size() <= SMALL)
