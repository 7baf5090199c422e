"""Names a model, and the sizes of its batches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from autorecompute.backends.torch.compiled.forms import INNER, has_compiled, original_of
from autorecompute.backends.torch.forecast.records import COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.nn import Module


DIGEST_LENGTH = 12  # hexadecimal digits that tell two models of one class apart


def name_of(model: Module) -> str:
    """Return the model's class with a digest of its modules, parameters and buffers: ``GPT2LMHeadModel 1f3a5c7e9b0d``.

    It is the same for every model that is built alike, whatever its weights are and whether it is on a card. A compiled
    model has other plans, and another name: ``GPT2LMHeadModel 1f3a5c7e9b0d compiled``.
    """
    original = original_of(model)
    name = f"{type(original).__name__} {_digest(_parts_of(original))[:DIGEST_LENGTH]}"
    return f"{name} {COMPILED}" if has_compiled(model) else name


def digest_of(model: Module, operators: Sequence[str]) -> str:
    """Return a digest of a step of the model, without any size of its batch.

    Texts may be of other lengths at the next start.
    """
    return _digest((*_parts_of(model), *operators))


def sizes_of(tensors: Iterable[Tensor], batch: int) -> dict[str, int]:
    """Return the sizes of a batch beside the number of samples; the first tensor of a kind counts."""
    sizes: dict[str, int] = {}
    for shape in (tuple(tensor.shape) for tensor in tensors):
        if shape and shape[0] == batch:
            for name, size in zip(_NAMES.get(len(shape), ()), shape[1:], strict=False):
                sizes.setdefault(name, size)
    return sizes


_NAMES: Mapping[int, tuple[str, ...]] = {
    2: ("sequence",),
    3: ("sequence", "features"),
    4: ("channels", "height", "width"),
    5: ("channels", "frames", "height", "width"),
}
"""By the number of dimensions."""


def _parts_of(model: Module) -> Iterator[str]:
    for full, module in model.named_modules():
        if INNER in module._modules:  # what torch.compile puts around a module
            continue
        path = full.replace(f".{INNER}", "")
        yield f"{path} {type(module).__module__}.{type(module).__qualname__}"
        for name, parameter in module.named_parameters(recurse=False):
            yield f"{path}.{name} {_form(parameter)} {parameter.requires_grad}"
        for name, buffer in module.named_buffers(recurse=False):
            yield f"{path}.{name} {_form(buffer)}"


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _digest(parts: Any) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
