"""Answers of a card to a process: torch.cuda, NVML, and the kernels that PyTorch chooses where there is one."""

import os
import sys
import types

import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from autorecompute.backends.torch.fake.machine import CardKernels, card_dropout
from autorecompute.meters.host import Processors
from autorecompute.units import MIB
from fake_gpu import FakeCard, FakeNvml
from virtual_card import CONTEXT_BYTES

UUID = "01234567-89ab-cdef-0123-456789abcdef"
DRIVER_BYTES = 480 * MIB


class _Device:
    """``torch.cuda.device``: there is one."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def install(card):
    """Answer for a card in this process."""
    _answer(card)
    _take_kernels(card)
    nn.Module._apply = _apply
    DataLoader._get_iterator = _unpinned(DataLoader._get_iterator)
    Processors.others_share = lambda _: None  # by a clock that is not the kernel's
    sys.modules["pynvml"] = _nvml(card)


def _answer(card):
    memory = card.allocator
    properties = types.SimpleNamespace(
        name=card.paper.name,
        total_memory=card.total_bytes,
        uuid=UUID,
        major=card.capability[0],
        minor=card.capability[1],
        multi_processor_count=132,
        is_integrated=False,
        gcnArchName="",
        warp_size=32,
        L2_cache_size=50 * MIB,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
    )
    stream = types.SimpleNamespace(synchronize=card.synchronize, cuda_stream=0, wait_stream=lambda _: None)

    def stats(_device=None):
        return {
            "num_alloc_retries": memory.retries,
            "allocated_bytes.all.peak": memory.peak.allocated,
            "reserved_bytes.all.peak": memory.peak.reserved,
            "num_ooms": 0,
        }

    def synchronize(*_):
        card.synchronize()
        card.begin_step()

    def get_rng_state(_device=None):
        with _disable_current_modes():
            return torch.tensor(card.random_state, dtype=torch.int64).view(torch.uint8)

    def set_rng_state(state, device=None):
        del device
        with _disable_current_modes():
            card.random_state = state.clone().view(torch.int64).tolist()

    answers = {
        "_initialized": True,  # else checkpoints draw other random numbers
        "_lazy_init": lambda: None,
        "_lazy_call": lambda _call, **_: None,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "device": _Device,
        "device_of": _Device,
        "_exchange_device": lambda _device: 0,
        "_maybe_exchange_device": lambda _device: 0,
        "get_device_name": lambda *_: card.paper.name,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: card.capability,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "synchronize": synchronize,
        "Event": lambda **_: card.event(),
        "ipc_collect": lambda: None,
        "memory_allocated": lambda *_: memory.now.allocated,
        "memory_reserved": lambda *_: memory.now.reserved,
        "max_memory_allocated": lambda *_: memory.peak.allocated,
        "max_memory_reserved": lambda *_: memory.peak.reserved,
        "reset_peak_memory_stats": lambda *_: memory.reset_peak(),
        "memory_stats": stats,
        "empty_cache": card.empty_cache,
        "mem_get_info": lambda *_: (card.total_bytes - CONTEXT_BYTES - memory.now.reserved, card.total_bytes),
        "set_per_process_memory_fraction": lambda fraction, _device=None: setattr(
            memory, "limit", min(int(fraction * card.total_bytes), card.total_bytes - CONTEXT_BYTES)
        ),
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state()],
        "set_rng_state_all": lambda states: set_rng_state(states[0]),
        "manual_seed": lambda seed: setattr(card, "random_state", [seed, 0]),
        "manual_seed_all": lambda seed: setattr(card, "random_state", [seed, 0]),
        "seed": lambda: None,
        "seed_all": lambda: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        if hasattr(torch.cuda.random, name):
            setattr(torch.cuda.random, name, answer)


def _take_kernels(card):
    """Take the attention and dropout of a card, and the update of all weights at once, in the script's own steps."""
    kernels, attend = CardKernels(card.capability), functional.scaled_dot_product_attention
    choose = optimizer._default_to_fused_or_foreach

    def scaled_dot_product_attention(query, key, value, *args, **kwargs):
        take = kernels.attend if query.device.type == "cuda" else attend
        return take(query, key, value, *args, **kwargs)

    def _default_to_fused_or_foreach(params, differentiable, use_fused=False):  # noqa: FBT002  (PyTorch's own argument)
        if card.is_suspended or (params and params[0].device.type != "cuda"):
            return choose(params, differentiable, use_fused)
        return (True, False) if use_fused else (False, not differentiable)

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    functional.dropout = card_dropout(functional.dropout)
    for module in list(sys.modules.values()):
        if getattr(module, choose.__name__, None) is choose:
            setattr(module, choose.__name__, _default_to_fused_or_foreach)


_MOVED = {}
"""Parameters that were moved with the module that is being moved: tied weights stay tied."""


def _apply(module, fn, recurse=True):  # noqa: FBT002  (PyTorch's own argument)
    """Stand in for ``Module._apply``, which swaps the data of a tensor for that of another kind."""
    is_outermost = not _MOVED
    if utilities := sys.modules.get("transformers.utils.import_utils"):
        utilities.is_fake_tensor = lambda _: False  # else it makes masks for a trace, which no training on a card has
    try:
        _MOVED.setdefault(None, None)
        for child in module.children() if recurse else ():
            child._apply(fn)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = _moved(parameter, fn)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    finally:
        if is_outermost:
            _MOVED.clear()
    return module


def _moved(parameter, fn):
    if id(parameter) not in _MOVED:
        with torch.no_grad():
            moved = fn(parameter)
        is_same = moved is parameter or (moved.device == parameter.device and moved.dtype == parameter.dtype)
        made = parameter if is_same else nn.Parameter(moved.detach(), parameter.requires_grad)
        _MOVED[id(parameter)] = parameter, made
    return _MOVED[id(parameter)][1]


def _unpinned(get_iterator):
    def get(loader):
        if loader.pin_memory:
            loader.__dict__["pin_memory"] = False
        return get_iterator(loader)

    return get


def _nvml(card):
    paper = FakeCard(
        uuid=f"GPU-{UUID}", name=card.paper.name, total_bytes=card.total_bytes + DRIVER_BYTES, driver_bytes=DRIVER_BYTES
    )

    class Nvml(FakeNvml):
        def check(self, function):
            paper.processes[os.getpid()] = CONTEXT_BYTES + card.allocator.now.reserved
            super().check(function)

    return Nvml(paper)
