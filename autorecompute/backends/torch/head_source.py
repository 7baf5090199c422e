"""The source that ``emit --format python`` gives out for heads whose logits are made in chunks."""

from __future__ import annotations

CHUNK_SOURCE = '''
import functools
import warnings

import torch
from torch.nn.functional import cross_entropy, linear
from torch.utils._pytree import tree_map_only

HEADS = {heads}  # layers whose logits are made in chunks where a cross entropy is computed of them
ROWS = 256
CASTS = {{"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}}
REFUSED = {{"register_hook", "retain_grad", "register_post_accumulate_grad_hook", "requires_grad_", "__setitem__"}}
TAKEN = {{"ignore_index", "reduction", "label_smoothing", "weight"}}
WHOLE = "logits are made whole, which takes memory: autorecompute.apply(model) makes them in chunks for more losses"


def apply_recompute(model):
    """Has heads make their logits in chunks, from the next step on. Call it once, before the model trains."""
    for head in map(model.get_submodule, HEADS):
        if type(head) is not torch.nn.Linear:
            raise ValueError("the head is no plain nn.Linear, which needs autorecompute.apply(model)")
        head.forward = functools.partial(_call, head)


def _call(head, hidden):
    if not head.training or not torch.is_grad_enabled() or not hidden.requires_grad or hidden.dim() < 2:
        return linear(hidden, head.weight, head.bias)
    kind = hidden.device.type
    is_cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if is_cast else hidden.dtype
    parts = (hidden, head.weight, head.bias)
    return _Head.of(dtype, *(None if part is None else part.to(dtype) for part in parts))


class Logits(torch.Tensor):
    """Logits that are made, each time, for all but a cross entropy. A part of them is a copy: write into none."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        self, name, kwargs = args[0] if args else None, getattr(function, "__name__", ""), kwargs or {{}}
        if name in REFUSED or getattr(function, "__self__", None) is torch.Tensor.data:
            raise RuntimeError("logits have a hook or are written into, which needs autorecompute.apply(model)")
        if isinstance(self, Logits):
            hidden, *others = self.parts
            if name in CASTS and len(args) == 1:
                return _Head.of(CASTS[name], hidden, *others)
            if name == "contiguous":
                return self
            if name in {{"view", "reshape", "flatten"}}:
                shape = function(torch.empty(self.shape, device="meta"), *args[1:], **kwargs).shape
                if len(shape) > 1 and shape[-1] == self.shape[-1]:
                    return _Head.of(self.dtype, hidden.reshape(*shape[:-1], hidden.shape[-1]), *others)
            if name == "__getitem__" and _leaves_words(self, args[1]):
                rows = hidden[args[1]]
                if rows.dim() > 1:
                    return _Head.of(self.dtype, rows, *others)
            if name == "cross_entropy" and self.dim() == 2 and not args[1].is_floating_point():
                options = {{key: value for key, value in kwargs.items() if value is not None}}
                if options.keys() <= TAKEN:
                    return _cross_entropy(self, args[1], **options)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function._schema.is_mutable:
            raise RuntimeError("logits are written in place: call clone() before, or use autorecompute.apply(model)")
        warnings.warn(WHOLE, stacklevel=2)
        args, kwargs = tree_map_only(Logits, lambda one: linear(*one.parts).to(one.dtype), (args, kwargs or {{}}))
        return function(*args, **kwargs)


def _leaves_words(logits, index):
    parts = index if type(index) is tuple else (index,)
    if not parts:
        return True
    first, *others = parts
    if not all(type(one) in (int, slice, torch.Tensor) for one in (others if first is ... else parts)):
        return False
    if any(type(one) is torch.Tensor and one.dtype == torch.uint8 for one in parts):
        return False
    if first is ...:
        return type(parts[-1]) is slice and parts[-1] == slice(None)
    is_mask = [type(one) is torch.Tensor and one.dtype == torch.bool for one in parts]
    return sum(one.dim() if is_one else 1 for one, is_one in zip(parts, is_mask)) < logits.dim() or (
        not any(is_mask) and type(parts[-1]) is slice and parts[-1] == slice(None)
    )


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype, *parts):
        ctx.save_for_backward(*parts)
        shape = (*parts[0].shape[:-1], len(parts[1]))
        logits = torch.Tensor._make_wrapper_subclass(Logits, shape, dtype=dtype, device=parts[0].device)
        logits.parts = parts
        return logits

    @classmethod
    def of(cls, dtype, *parts):
        if not torch.is_grad_enabled():  # nothing goes back through what is made of them later
            parts = [None if part is None else part.detach() for part in parts]
        return cls.apply(dtype, *parts)

    @staticmethod
    def backward(ctx, gradient):
        _require_once()
        hidden, weight, bias = ctx.saved_tensors
        change = gradient.flatten(0, -2).to(hidden.dtype)
        of_bias = None if bias is None else change.sum(0)
        return None, (change @ weight).view_as(hidden), change.t() @ hidden.flatten(0, -2), of_bias


def _cross_entropy(logits, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    is_cast = torch.is_autocast_enabled(logits.device.type) and logits.dtype != torch.float64
    dtype = torch.float32 if is_cast else logits.dtype
    options = {{"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": "none"}}
    options["weight"] = None if weight is None else weight.to(dtype)
    losses = _Losses.apply(lambda chunk, at: cross_entropy(chunk.to(dtype), target[at], **options), *logits.parts)
    if reduction == "none":
        return losses
    total = losses.sum(dtype=torch.promote_types(dtype, torch.float32))
    if reduction == "sum":
        return total.to(dtype)
    counts = target.long() != ignore_index
    counts = counts if weight is None else weight[target.long()[counts]]
    return (total / counts.sum()).to(dtype)


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, losses_of, *parts):
        ctx.losses_of = losses_of
        ctx.save_for_backward(*parts)
        hidden, weight, bias = parts
        return torch.cat([losses_of(linear(hidden[at], weight, bias), at) for at in _chunks(hidden)])

    @staticmethod
    def backward(ctx, gradient):
        _require_once()
        hidden, weight, bias = ctx.saved_tensors
        # A sum over chunks in 16 bits loses what is small.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        parts = (hidden, weight, bias)
        found = [None if part is None else torch.zeros_like(part, dtype=wide) for part in parts]
        for at in _chunks(hidden):
            logits = linear(hidden[at], weight, bias).requires_grad_()
            with torch.enable_grad():
                losses = ctx.losses_of(logits, at)
            (change,) = torch.autograd.grad(losses, logits, gradient[at])
            found[0][at] = change @ weight
            if weight.dtype == wide:
                found[1].addmm_(change.t(), hidden[at])
            else:
                found[1] += change.t() @ hidden[at]
            if bias is not None:
                found[2] += change.sum(0)
        return None, *(None if one is None else one.to(hidden.dtype) for one in found)


def _require_once():
    if torch.is_grad_enabled():
        raise RuntimeError("gradients of gradients (create_graph=True) need autorecompute.apply(model)")


def _chunks(hidden):
    return [slice(at, at + ROWS) for at in range(0, max(len(hidden), 1), ROWS)]
'''
"""It knows fewer functions than ``switch/logits.py``: all others, such as a softcap, are given the logits."""
