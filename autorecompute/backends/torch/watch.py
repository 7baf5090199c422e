"""Each operator of a forward pass that is probed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator
from torch.autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.checkpoints import MATMULS
from autorecompute.backends.torch.recorded import Recorded
from autorecompute.backends.torch.storages import changed_by, tensors_in
from autorecompute.backends.torch.values import looks_at_values

if TYPE_CHECKING:
    from autorecompute.backends.torch.probe import Probe


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees each operator: what it is given, which looks at values, or changes a product of matrices in place.

    A product that is kept would be changed again where its block is made again, and torch does not always notice.

    Args:
        probe: Who is told.
    """

    supports_higher_order_operators = True

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self._probe = probe
        self._made: dict[int, torch._ops.OpOverload] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(function, HigherOrderOperator):  # such as FlexAttention, which is one operator in compiled code
            return function(*args, **(kwargs or {}))
        storages, recorded, number = self._probe.storages, self._probe.seen.recorded, _get_sequence_nr() - 1
        # A node is made right before its operator runs; what runs after that, without a node, has the same number.
        is_first = number not in recorded and function.namespace != "prim"
        call = Recorded.of(function, args, kwargs or {}, storages) if is_first else None
        result = function(*args, **(kwargs or {}))
        if is_first:
            recorded[number] = call.returning(result) if call is not None else None
        if looks_at_values(function, args):
            self._probe.seen.values.record(self._probe.path.partition("/")[0], function, result)
        if function is torch.ops.aten.bernoulli_.float:
            self._probe.seen.masks.add(storages.number(result))
        if function in MATMULS:
            self._made[storages.number(result)] = function
        elif function._schema.is_mutable:
            changed = {storages.number(tensor) for tensor in changed_by(function, args, kwargs or {})}
            # Divided by a number, a mask has one value beside zero; by a tensor, it may have many in a later step.
            if any(tensor.numel() > 1 for tensor in tensors_in(args[1:])):
                self._probe.seen.masks -= changed
            self._probe.seen.changed |= {
                (self._probe.path, self._made[number]) for number in changed & self._made.keys()
            }
        return result
