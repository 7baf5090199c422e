"""One step that is run again and again, and shows its gradients as they come."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from autorecompute.backends.common.gradients import scalar_of
from autorecompute.backends.torch.backward import show_gradients
from autorecompute.backends.torch.block_by_block import block_by_block
from autorecompute.backends.torch.sharded import forgotten, gradients_of, is_anywhere, is_sharded
from autorecompute.backends.torch.untouched import copies_of, untouched, without_autocast

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Parameter

    _See = Callable[[str, Tensor], None]

Part = tuple[str, int]
"""A name, and which of its gradients: block by block there are several where a weight is used in several places."""

LOSS, BUFFER = "the loss", "buffer "

SAMPLE = 2**20
"""So many numbers of each gradient are compared where memory is short."""


@dataclass(frozen=True)
class Step:
    """One forward and one backward pass, which can be run again on the same samples and random numbers.

    Attributes:
        model: The model.
        args: The positional arguments of its call.
        kwargs: Its keyword arguments.
        is_lean: Whether a sample of each gradient is kept, in the host's memory: something wrong shows everywhere.
        scale: What the loss is multiplied by.
        blocks: Modules that are run one by one, to hold less; none of them to run the model as a whole.
        calls: How often the model is called before the backward pass.
    """

    model: Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    is_lean: bool = False
    scale: float = 1.0
    blocks: tuple[Module, ...] = ()
    calls: int = 1

    def kept(self, tensor: Tensor) -> Tensor:
        """Return what is kept of a tensor to compare with."""
        return self.seen(tensor).cpu() if self.is_lean else tensor

    def seen(self, tensor: Tensor) -> Tensor:
        """Return what is compared of a tensor."""
        if not self.is_lean or tensor.numel() <= SAMPLE or tensor.layout is not torch.strided:
            return tensor
        return tensor.flatten()[:: -(-tensor.numel() // SAMPLE)].contiguous()

    def run(self, seed: int, show: Callable[[Part, Tensor], None]) -> None:
        """Show the loss, each gradient as soon as it is there, buffers and weights that were written; keep none.

        Block by block, the gradient of a weight comes in parts where it is used in several places.
        """
        shown: collections.Counter[str] = collections.Counter()

        def see(name: str, tensor: Tensor) -> None:
            shown[name] += 1
            show((name, shown[name]), tensor)

        # Before the forward pass, in which a sharded module's weights become others.
        named = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        with (
            untouched(self.model) as written,
            forgotten(self.model),
            torch.enable_grad(),
            block_by_block(self.blocks) as asked,
        ):
            torch.manual_seed(seed)
            loss = self.scale * sum(scalar_of(self._call()) for _ in range(self.calls))
            with without_autocast():
                self._show_gradients(loss, named, asked, see)
            see(LOSS, loss.detach())
            for name, buffer in (*self.model.named_buffers(), *written()):
                see(f"{BUFFER}{name}", buffer.clone())

    def _call(self) -> Any:
        """Run the model; a sharded one that raises on one rank raises on all, which would wait in a backward pass."""
        args, kwargs = copies_of((tuple(self.args), dict(self.kwargs)))  # a model may change its arguments in place
        if not is_sharded(self.model):
            return self.model(*args, **kwargs)
        result, fault = None, None
        try:
            result = self.model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there)
            fault = error
        if is_anywhere(self.model, fault is not None):
            raise fault or RuntimeError("the model raises on another rank")
        return result

    def _show_gradients(self, loss: Tensor, named: Sequence[tuple[str, Parameter]], asked: Tensor, see: _See) -> None:
        parameters = [parameter for _, parameter in named]
        if is_sharded(self.model):
            for (name, _), gradient in zip(named, gradients_of(self.model, loss, parameters), strict=True):
                if gradient is not None:
                    see(name, gradient)
            return
        hooks = [parameter.register_hook(functools.partial(_show, see, name)) for name, parameter in named]
        try:
            show_gradients(loss, [*parameters, asked])
        finally:
            for hook in hooks:
                hook.remove()


def _show(see: _See, name: str, gradient: Tensor) -> Tensor | None:
    """Show a gradient, and give autograd, which would keep it to the end, one that takes no memory in its place."""
    see(name, gradient)
    if type(gradient) is not Tensor or gradient.layout is not torch.strided:
        return None
    return gradient.new_zeros(()).expand_as(gradient)
