"""Machines that are not here: other cards, and the other ranks."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import operator
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh, distributed_c10d
from torch.nn import functional
from torch.nn.functional import pad

from autorecompute.backends.torch.fake.repeats import Row, card_memory, usual_order
from autorecompute.backends.torch.fake.steps import GATHERED, GRADIENTS, PARAMETERS, FakeSteps, updated_at_once
from autorecompute.backends.torch.fake.survey import bytes_of
from autorecompute.backends.torch.find.structure import is_sharded
from autorecompute.backends.torch.forecast.caching_allocator import settings_in
from autorecompute.backends.torch.forecast.cards import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    AttentionCall,
    capability_of,
    kernel_of,
)
from autorecompute.backends.torch.forecast.records import OnCard
from autorecompute.backends.torch.switch.intercepting import attention_by
from autorecompute.errors import ScriptError
from autorecompute.memory import RankPeak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.backends.torch.fake.live import Event
    from autorecompute.backends.torch.fake.steps import Script, Take
    from autorecompute.backends.torch.fake.tensors import FakeLiveBytes
    from autorecompute.backends.torch.forecast.records import Steps, TorchDetection
    from autorecompute.backends.torch.switch.applying import Tuned
    from autorecompute.plans import Config

    Kinds = collections.Counter[str]


MODULES = (dist, distributed_c10d, device_mesh)
"""Modules of torch that import these functions under a name of their own."""


def pretend(ranks: int) -> None:
    """Make this process rank 0 of so many from now on: in its environment, and in the group that the script makes.

    With 0 a script that needs others to make its group is told how to have them.
    """
    make, make_inner, make_mesh = dist.init_process_group, dist.new_group, device_mesh.init_device_mesh
    if not ranks:
        _replace(make, functools.partial(_make_alone, make))
        return
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(ranks)}
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(ranks))  # a launcher's own figure, where the shell has it
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    _replace(make, functools.partial(_make_group, make, ranks))
    # Inside of a fake group all are.
    _replace(make_inner, lambda *args, **kwargs: make_inner(*args, **{**kwargs, "backend": None}))
    _replace(make_mesh, functools.partial(_make_mesh, make_mesh, ranks))


def _replace(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    functools.update_wrapper(other, function)
    for module in MODULES:
        if getattr(module, function.__name__, None) is function:
            setattr(module, function.__name__, other)


def _make_group(make: Callable[..., Any], ranks: int, *args: Any, **kwargs: Any) -> None:
    """Stand in for ``init_process_group``."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # its import makes the backend known

    rank, world_size = _asked(args, kwargs)
    if world_size not in {-1, ranks} or rank not in {-1, 0}:
        raise ScriptError(
            f"The script asks for rank {max(rank, 0)} of {world_size}, and --ranks says {ranks}. Let it take both from "
            f"RANK and WORLD_SIZE, or say --ranks {world_size}."
        )
    make("fake", store=FakeStore(), rank=0, world_size=ranks)


def _make_alone(make: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Stand in for it where no ranks were asked for."""
    if "WORLD_SIZE" not in os.environ and _asked(args, kwargs)[1] != 1:
        raise ScriptError(
            "The script makes a process group, as one of several ranks. Add --ranks N to run it as the first of N."
        )
    make(*args, **kwargs)


def _asked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rank and the number of ranks that ``init_process_group`` is given; -1 where the environment tells."""
    names = ("backend", "init_method", "timeout", "world_size", "rank")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("rank", -1), given.get("world_size", -1)


def _make_mesh(
    make: Callable[..., Any], ranks: int, device_type: str, mesh_shape: tuple[int, ...], *args: Any, **kwargs: Any
) -> Any:
    """Stand in for ``init_device_mesh``."""
    size = math.prod(mesh_shape)
    if size != ranks:
        shape = " x ".join(map(str, mesh_shape))
        raise ScriptError(
            f"The script makes a mesh of {size} ranks ({shape}), and --ranks says {ranks}. Say --ranks {size}, or have "
            "the script make its mesh of as many ranks as there are."
        )
    return make(device_type, mesh_shape, *args, **kwargs)


_ATEN = torch.ops.aten
_FUSED = {CUDNN: _ATEN._scaled_dot_product_cudnn_attention, EFFICIENT: _ATEN._scaled_dot_product_efficient_attention}
HALF_BYTES = 2


class CardKernels:
    """Computes attention, dropout and an optimizer's step as a card does, on fake tensors of the CPU.

    Functions of ``torch.nn.functional`` that a module has imported by name are not seen.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self.taken: collections.Counter[str] = collections.Counter()
        self._capability = capability
        major, minor, *_ = torch.__version__.split(".")
        self._release = (int(major), int(minor))

    @contextlib.contextmanager
    def active(self, optimizers: Iterable[Optimizer] = ()) -> Iterator[None]:
        """Have calls in this thread take these kernels, and the optimizers update all weights at once."""
        plain = functional.dropout
        functional.dropout = card_dropout(plain)
        try:
            with attention_by(self.attend), updated_at_once(optimizers):
                yield
        finally:
            functional.dropout = plain

    def attend(  # noqa: PLR0913, PLR0917  (PyTorch's own arguments)
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Stand in for ``scaled_dot_product_attention``."""
        query, key, value = tensors = _in_autocast(query), _in_autocast(key), _in_autocast(value)
        call = AttentionCall(
            dtype=str(query.dtype).removeprefix("torch."),
            query=tuple(query.shape),
            key=tuple(key.shape),
            value=tuple(value.shape),
            mask=None if attn_mask is None else tuple(attn_mask.shape),
            mask_learns=attn_mask is not None and attn_mask.requires_grad,
            has_plain_strides=all(one.stride(-1) == 1 for one in (*tensors, attn_mask) if one is not None),
            dropout=dropout_p,
            is_causal=is_causal,
            is_grouped=enable_gqa,
        )
        kernel = kernel_of(call, self._capability, self._release)
        self.taken[kernel] += 1
        mask = None if attn_mask is None else _as_numbers(_in_autocast(attn_mask), query.dtype)
        with torch.autocast(query.device.type, enabled=False):
            if kernel == FLASH:
                return _flash(tensors, call, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
            if kernel == MATH:
                return _written_out(tensors, mask, call, scale)
            if kernel == EFFICIENT:
                mask = _aligned(mask, query, key)
            given = (*tensors, mask, torch.is_grad_enabled(), dropout_p, is_causal)
            return _first(_FUSED[kernel](*given, scale=scale))


def card_dropout(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a dropout whose mask has a byte for each number, as a card's has, and not as many as the number.

    ``is_fused_kernel_acceptable`` in ``aten/src/ATen/native/Dropout.cpp``.
    """

    @functools.wraps(plain)
    def dropout(values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: FBT001, FBT002 (PyTorch's own arguments)
        if training and not inplace and 0 < p < 1:
            return _first(torch.native_dropout(values, p, train=True))
        return plain(values, p, training, inplace)

    return dropout


def _in_autocast(tensor: Tensor) -> Tensor:
    kind = tensor.device.type
    is_cast = torch.is_autocast_enabled(kind) and tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype(kind)) if is_cast else tensor


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of yes and no as what is added to the scores (``convert_boolean_attn_mask``)."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask whose rows begin at multiples of 8 numbers, for all heads (``preprocess_mask``)."""
    if mask is None:
        return None
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        mask = pad(mask, (0, 8 - mask.shape[-1] % 8))[..., : mask.shape[-1]]
    return mask.expand(*query.shape[:3], key.shape[2])


def _flash(tensors: tuple[Tensor, Tensor, Tensor], call: AttentionCall, scale: float) -> Tensor:
    """Flash attention of heads that are filled up to a multiple of 8 (``pad_last_dim``)."""
    size = call.query[-1]
    query, key, value = (pad(tensor, (0, -size % 8)) if size % 8 else tensor for tensor in tensors)
    attend = _ATEN._scaled_dot_product_flash_attention
    result = _first(attend(query, key, value, call.dropout, call.is_causal, scale=scale))
    return result[..., :size] if size % 8 else result


def _written_out(
    tensors: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, call: AttentionCall, scale: float | None
) -> Tensor:
    """Attention by products (``_scaled_dot_product_attention_math``), where a dropout's mask has a byte for each score.

    PyTorch's own function drops as the CPU does, where its tensors are. It has to be written out for another mask.
    """
    if not call.dropout:
        rest = {"is_causal": call.is_causal, "scale": scale, "enable_gqa": call.is_grouped}
        return _first(_ATEN._scaled_dot_product_attention_math(*tensors, mask, **rest))
    query, key, value = (tensor.float() if tensor.itemsize == HALF_BYTES else tensor for tensor in tensors)
    if call.is_causal:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _as_numbers(allowed, query.dtype)
    if call.is_grouped:
        key, value = (tensor.repeat_interleave(call.query[1] // call.key[1], 1) for tensor in (key, value))
    factor = (abs(scale) if scale is not None else 1 / math.sqrt(query.shape[-1])) ** 0.5
    scores = torch.matmul(query * factor, key.transpose(-2, -1) * factor)
    shares = _ATEN._safe_softmax(scores if mask is None else scores + mask, -1)
    dropped = _first(torch.native_dropout(shares, call.dropout, train=True))
    return torch.matmul(dropped, value).to(tensors[0].dtype)


def _first(results: Sequence[Any]) -> Tensor:
    result: Tensor = results[0]
    return result


def reserve(model: Module, tuned: Tuned, script: Script, configs: Iterable[Config]) -> tuple[OnCard, ...]:
    """Return the memory that each config reserves on a card, with the allocator's settings of the environment.

    A fragment of memory is what many requests in a row leave, so the figures of plans do not add up: each config has a
    whole step of its own.

    Raises:
        SetupError: the environment sets what is not modelled.
    """
    settings = settings_in(os.environ)
    steps, told = FakeSteps(model, tuned.found.structure.units, script, tuned.found.values), []
    with steps.prepared(tuned.board) as (_, take):
        for config in configs:
            peak = card_memory(take(config.choices, optimizes=True), **settings)
            told.append(OnCard(config=config, allocated_bytes=peak.allocated, reserved_bytes=peak.reserved))
    return tuple(told)


STATE, ACTIVATIONS = "state", "activations"
"""Kinds beside those of ``collectives``: what an optimizer had before its first step, and all else, with the batch."""


def divide(
    model: Module, tuned: Tuned, script: Script, steps: Steps, configs: Iterable[Config]
) -> tuple[RankPeak, ...]:
    """Divide the peak of one rank into its kinds, for each config."""
    found, told = tuned.found, []
    fakes = FakeSteps(model, found.structure.units, script, found.values)
    with fakes.taking(tuned.board) as take:
        for config in configs:
            step, kinds = _divided(take, config, found.calls, _alike(tuned, config))
            told.append(
                RankPeak(
                    config=config,
                    ranks=torch.distributed.get_world_size(),
                    parameter_bytes=kinds[PARAMETERS],
                    gradient_bytes=kinds[GRADIENTS],
                    state_bytes=bytes_of(model) + steps.later_bytes - step.base + kinds[STATE],
                    gathered_bytes=kinds[GATHERED],
                    activation_bytes=kinds[ACTIVATIONS],
                )
            )
    return tuple(told)


def _alike(tuned: Tuned, config: Config) -> frozenset[str]:
    """Return the units that do what the one before and those behind them do, with the config, too."""
    found = tuned.found
    on: dict[str, list[str]] = {unit: [] for unit in found.structure.units}
    for choice in sorted(config.choices, key=str):
        for path in tuned.board.paths(choice):
            for place in found.structure.units_with(path):
                on[found.structure.units[place]].append(f"{choice.site}:{choice.option}")
    calls = found.calls
    return frozenset(
        unit
        for place, unit in enumerate(calls)
        if unit in found.repeated and all(on[other] == on[unit] for other in calls[place - 1 : place + 3])
    )


def _divided(take: Take, config: Config, calls: Sequence[str], skipped: frozenset[str]) -> tuple[FakeLiveBytes, Kinds]:
    """Return a step, and the bytes of each kind at its peak; a whole step where one without some units cannot tell."""
    step, row = take(config.choices, skipped), Row(calls, skipped)
    by_segment = itertools.groupby(step.events, operator.attrgetter("segment"))
    parts = [(segment, _changes(step, events)) for segment, events in by_segment]
    if not skipped:
        return step, _at_peak(step, [changes for _, changes in parts])
    known, order = dict(parts), usual_order(row.calls)
    stand_ins = row.stand_ins(usual_order(len(calls)), order)
    if stand_ins is None or [segment for segment, _ in parts] != [segment for segment in order if segment in known]:
        return _divided(take, config, calls, frozenset())
    return step, _at_peak(step, [known[one] for one in stand_ins if one in known])


def _at_peak(step: FakeLiveBytes, parts: Iterable[tuple[Kinds, Kinds]]) -> Kinds:
    now: Kinds = collections.Counter()
    for number, size in step.held.items():
        now[STATE if number in step.state else step.kinds.get(number, ACTIVATIONS)] += size
    peak = now
    for most, change in parts:
        peak = max(peak, _plus(now, most), key=collections.Counter.total)
        now = _plus(now, change)
    return peak


def _changes(step: FakeLiveBytes, events: Iterable[Event]) -> tuple[Kinds, Kinds]:
    """Return the bytes of each kind that a segment adds when most are alive, and in the end."""
    now: Kinds = collections.Counter()
    highest, most = now.copy(), 0
    for event in events:
        now[step.kinds.get(event.storage, ACTIVATIONS)] += event.change
        if event.change > 0 and now.total() > most:
            highest, most = now.copy(), now.total()
    return highest, now


def _plus(one: Kinds, other: Kinds) -> Kinds:
    total = one.copy()
    total.update(other)
    return total


def kernels_of(card: str, optimizers: Sequence[Optimizer]) -> AbstractContextManager[None]:
    """Have operators take the kernels of a card, or without one this machine's: plans and steps are those it has."""
    return CardKernels(capability_of(card)).active(optimizers) if card else contextlib.nullcontext()


def with_whole_steps(  # noqa: PLR0913  (a model, its configs, and two ways to look at them)
    told: TorchDetection, tuned: Tuned, script: Script, configs: Iterable[Config], *, card: str, ranks: int
) -> TorchDetection:
    """Add whole steps with each config to a detection: on the card, and on a rank of a job."""
    model, configs = tuned.reference(), dict.fromkeys(configs)
    assert model is not None, "a model that is called is there"
    assert told.steps is not None, "a whole step is run where others were"
    on_card = reserve(model, tuned, script, configs) if card else ()
    of_rank = divide(model, tuned, script, told.steps, configs) if ranks else ()
    is_apart = bool(of_rank) and script.buckets is None and not is_sharded(model)
    return dataclasses.replace(told, on_card=on_card, of_rank=of_rank, is_apart=is_apart)
