"""Helpers of every backend that trains with torch: batches, gradients, devices and failures."""

from __future__ import annotations

import copy
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from autorecompute.errors import last_line
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.training_job import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


def describe_device(device: Any) -> Device:
    """Return the ``torch.device`` that the model lies on."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(kind="cuda", name=properties.name, uuid=str(properties.uuid), total_bytes=properties.total_memory)
    name = platform.processor() or platform.machine()
    return Device(
        kind="cpu", name=f"{name}, {len(os.sched_getaffinity(0))} cores", total_bytes=psutil.virtual_memory().total
    )


OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "Failed to allocate memory",
    "bad_alloc",
    "can't allocate memory",
    "CUDA failure 2",
    "ALLOC_FAILED",
)
"""Seen from torch's allocators, the C++ runtime and CUDA libraries."""

_ASKED = re.compile(r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)")


def is_out_of_memory(error: BaseException, text: str) -> bool:
    """Tell whether an exception, or one behind it whose text is given too, means that memory ran out."""
    return isinstance(error, MemoryError) or any(known in text for known in OUT_OF_MEMORY_TEXTS)


def describe_out_of_memory(error: BaseException) -> str:
    """Describe an out-of-memory exception: CUDA's own text is a paragraph about the whole card."""
    asked = _ASKED.search(str(error))
    return f"out of memory: it asked for {asked[1]} more" if asked else f"out of memory: {last_line(error)}"


COMPARED_SAMPLES = 2  # so few samples of a batch are compared: the batch need not fit without recompute
STATE_DIMENSIONS = 3  # the state of a recurrent layer has so many: layers, samples, features


def observe_batch(values: list[Any]) -> int:
    """Return the samples of a call: the first dimension that most of its arguments share; 1 without any tensor.

    Of an argument that holds several tensors, such as the state of a recurrent layer, the size of most counts.
    """
    rows = [[int(tensor.shape[0]) for tensor in tensors_in(value) if tensor.dim() > 0] for value in values]
    return most_common(size for sizes in rows if (size := most_common(sizes))) or 1


def most_common(sizes: Iterable[int]) -> int:
    """Return the most common size, of several the first; 0 where there is none."""
    return next((size for size, _ in Counter(sizes).most_common(1)), 0)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an argument or a result: in tuples, lists and mappings, as deep as they go."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_in(inner)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name, None))


def slice_batch(value: Any, batch: int, samples: int = COMPARED_SAMPLES) -> Any:
    """Return the same structure with every tensor of ``batch`` rows cut to its first few."""

    def cut(leaf: Any) -> Any:
        return _cut_tensor(leaf, batch, samples) if isinstance(leaf, Tensor) else leaf

    return with_leaves(value, cut)


def with_leaves(value: Any, exchange: Callable[[Any], Any]) -> Any:
    """Return the same structure, with something else in place of what lies in it.

    Lists, tuples and mappings are new ones. Objects of classes of their own are copied where parts of them change.
    """
    if isinstance(value, Tensor):
        return exchange(value)
    kind = type(value)
    if kind in {list, tuple}:
        return kind(with_leaves(inner, exchange) for inner in value)
    if kind is dict:
        return {key: with_leaves(inner, exchange) for key, inner in value.items()}
    parts = dict(_parts_of(value))
    if not parts:
        return exchange(value)
    changed = {key: with_leaves(inner, exchange) for key, inner in parts.items()}
    return value if all(changed[key] is parts[key] for key in parts) else _copy_with(value, changed)


def _parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the parts of an object of its own class, by key, index or name."""
    if isinstance(value, MutableMapping):
        return value.items()
    if isinstance(value, (tuple, list)):
        return enumerate(value)
    names = getattr(type(value), "__dataclass_fields__", ())
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _copy_with(value: Any, parts: Mapping[Any, Any]) -> Any:
    if isinstance(value, tuple):
        make = getattr(value, "_make", type(value))
        return make(list(parts.values()))
    other = copy.copy(value)
    for key, part in parts.items():
        if isinstance(value, MutableMapping | list):
            other[key] = part
        else:
            object.__setattr__(other, key, part)  # it may be frozen
    return other


def on_few_samples(
    compare: Callable[[Any, Any], GradientCheck],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batch: int,
    classify: Callable[[BaseException], tuple[Outcome, str]],
) -> GradientCheck:
    """Compare on few samples of a call; on all of them where the model cannot be called with few.

    A mask that has as many rows as there are samples is cut with them, and a model may know how many samples there are.
    Where few samples run out of memory, which ``classify`` tells, all do.
    """
    few = slice_batch(tuple(args), batch), slice_batch(dict(kwargs), batch)
    try:
        return compare(*few)
    except Exception as error:
        if classify(error)[0] is Outcome.OOM:
            raise
    # Not above, where the traceback still holds what was computed of the few.
    return compare(tuple(args), dict(kwargs))


def _cut_tensor(value: Any, batch: int, samples: int) -> Any:
    if value.layout is not torch.strided or value.is_nested:  # the edges of a graph
        return value
    if value.dim() > 0 and value.shape[0] == batch:
        return value[:samples]
    is_state = value.dim() == STATE_DIMENSIONS and value.shape[1] == batch
    return value[:, :samples].contiguous() if is_state else value  # as kernels of recurrent layers want it


TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""Largest difference, relative to the largest gradient of a parameter, that kernels with unordered sums may leave."""

NOISE_FACTOR = 4.0
"""Most that a config may be off where kernels add up in any order, over the difference of two steps without recompute.
Attention's backward pass does so on a card. Seen on an H100 in bfloat16: from 4e-4 to 1.1e-2 of the largest gradient.
"""

MOST_NOISE = 0.05  # but by no more of the largest gradient; other dropout masks in one of six layers make 0.3 of it
LEAST_ROUNDED = 1024
"""A gradient of so many numbers that all fit into 16 bits was computed in 16 bits: under autocast, whatever the type of
the weight. There a sum in another order may round to the next number, 2**-8 of the largest gradient in bfloat16."""

PART = 2**22  # so many numbers are compared at once: 32 MiB as doubles


def within(found: Mapping[str, float], kind_of: Callable[[str], str], steps: int) -> GradientCheck:
    """Tell whether each gradient's largest relative difference, over so many steps, is within its tolerance.

    ``kind_of`` gives the type that a gradient was computed in, ``float32`` for instance; others may not differ at all.
    """
    over = {name: off for name, off in found.items() if off > TOLERANCES.get(kind_of(name), 0.0)}
    name, worst = max((over or found).items(), key=lambda entry: (entry[1], entry[0]), default=("", 0.0))
    return GradientCheck(agrees=not over, worst=worst, parameter=name if over else "", steps=steps)


def beside_rounding(
    found: Mapping[str, float],
    noise: Mapping[str, float],
    sizes: Mapping[str, float],
    kind_of: Callable[[str], str],
    steps: int,
) -> GradientCheck:
    """Check gradients as :func:`within`, but for those that are nothing but rounding, as that of a key's bias.

    Such a one is close to zero beside the others, and differs by itself in steps without recompute that are rounded
    differently: that is the noise. ``sizes`` has the largest entry of each.
    """
    largest = max(sizes.values(), default=0.0)

    def is_rounding(name: str) -> bool:
        least = TOLERANCES.get(kind_of(name), 0.0) * largest
        return MOST_NOISE < noise.get(name, 0.0) < math.inf and sizes.get(name, math.inf) <= least

    telling = {name: off for name, off in found.items() if not is_rounding(name) or math.isinf(off)}
    return within(telling if 2 * len(telling) > len(found) else found, kind_of, steps)


def beside_noise(found: Mapping[str, float], noise: Mapping[str, float], check: GradientCheck) -> GradientCheck:
    """Check the gradients that miss their tolerance against the difference of two steps without recompute, the noise.

    The gradient of a key's bias is zero, but for rounding: what differs so much by itself tells of nothing.
    """
    telling = {name: off for name, off in found.items() if noise.get(name, math.inf) <= MOST_NOISE or math.isinf(off)}
    usual = max((noise.get(name, 0.0) for name in telling), default=math.inf)
    name, worst = max(telling.items(), key=lambda entry: entry[1], default=(check.parameter, check.worst))
    agrees = 2 * len(telling) > len(found) and worst <= min(NOISE_FACTOR * usual, MOST_NOISE)
    message = f"{name} is off by {worst:.1e} of its largest gradient, steps without recompute by {usual:.1e}"
    return replace(
        check, agrees=agrees, worst=worst, parameter="" if agrees else name, message="" if agrees else message
    )


def scalar_of(outputs: Any) -> Any:
    """Return one number that all differentiable outputs weigh in.

    What has one number may be a loss, or the scale of what a loss is made of. So all others weigh in beside it, about
    as much as logits do in the mean of their losses.
    """
    tensors = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    losses = [tensor.sum() for tensor in tensors if tensor.numel() == 1]
    return sum([*losses, *(_weighed(tensor, is_mean=bool(losses)) for tensor in tensors if tensor.numel() > 1)])


def _weighed(tensor: Any, *, is_mean: bool) -> Any:
    """Return the sum of all numbers, each weighed by its row and column; it takes no memory but its gradient.

    A plain sum has no gradient behind a softmax: uneven weights have one everywhere.
    """
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    columns = _cosines(tensor.shape[-1], tensor)
    with torch.autocast(tensor.device.type, enabled=False):
        rows = (tensor @ columns).float().flatten()
        total = (rows * _cosines(len(rows), rows)).sum()
    return total / (len(rows) * math.sqrt(len(columns))) if is_mean else total


def _cosines(count: int, like: Any) -> Any:
    return torch.arange(count, device=like.device, dtype=torch.float32).cos().to(like.dtype)


def relative_difference(expected: Any, found: Any) -> float:
    """Return the largest difference of two gradients, relative to the largest entry of the first; infinite if one is.

    Both are compared in double precision, so that a difference is not rounded away, and in parts, as doubles of a large
    gradient may not fit. Not a number is infinitely far off, and so is a gradient where there should be none. The two
    may lie on different devices.
    """
    if expected is None or found is None:
        return 0.0 if expected is found else math.inf
    if expected.layout is not torch.strided:  # that of a sparse embedding
        expected, found = expected.to_dense(), found.to_dense()
    if expected.shape != found.shape:
        return math.inf
    parts = list(zip(expected.flatten().split(PART), found.flatten().split(PART), strict=True))
    differing = [(one, other) for one, other in parts if not torch.equal(one.to(other.device), other)]
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = 0.0
    for one, other in differing:
        off = (one.to(other.device).to(wide) - other.to(wide)).abs().max().item()
        if not math.isfinite(off):
            return math.inf
        difference = max(difference, off)
    scale = max((one.to(wide).abs().max().item() for one, _ in parts), default=0.0) if differing else 1.0
    return difference / scale if 0 < scale < math.inf else math.inf


def rounded_to(gradients: Iterable[Any]) -> str:
    """Return the coarsest of the types that gradients of float32 were computed in; empty where that is their own."""
    wide = [one for one in gradients if one.dtype == torch.float32 and one.numel() >= LEAST_ROUNDED]
    wide = [one for one in wide if one.layout == torch.strided and one.any()]
    for kind in (torch.bfloat16, torch.float16):
        if any(torch.equal(one, one.to(kind).float()) for one in wide):
            return str(kind).removeprefix("torch.")
    return ""
