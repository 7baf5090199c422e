"""Measures on a real card what ``docs/gpu.md`` claims, and prints it as text: ``python benchmarks/gpu.py``.

It takes some seconds and changes no setting of the card.
"""

from __future__ import annotations

import os
import sys
import time

from autorecompute.backends.ortmodule.exceptions import classify
from autorecompute.meters.cuda import CudaMeter
from autorecompute.meters.nvml import describe_visible, find_card
from autorecompute.units import GIB, MIB, format_bytes

WIDTH, LAYERS, BATCH = 4096, 6, 4096
WARMUP, STEPS = 3, 20
BUSY_SECONDS = 3.0
NO_LIMIT = 2**60


def machine():
    """What is at hand."""
    import torch

    card = find_card(str(torch.cuda.get_device_properties(0).uuid))
    torch.empty(1, device="cuda")
    return {
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "seen": describe_visible(),
        "card": card.uuid.split("-")[0] + (" instance" if card.is_instance else " whole"),
        "card_total_bytes": card.memory_bytes("total"),
        "torch_total_bytes": torch.cuda.get_device_properties(0).total_memory,
        "listed_processes": len(card.processes()),
        "own_process_is_listed": os.getpid() in card.processes(),
    }


def plain_loop():
    """The three figures of memory, over a training loop in plain torch."""
    import torch

    meter = CudaMeter()
    layers = [module for _ in range(LAYERS) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    samples = torch.randn(BATCH, WIDTH, device="cuda")
    for step in range(WARMUP + STEPS):
        if step == WARMUP:
            meter.release()
            meter.reset()
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()
        meter.observe()
        meter.synchronize()
    reading = meter.read()
    return {
        "peak_allocated_bytes": reading.allocated_bytes,
        "peak_reserved_bytes": reading.peak_bytes,
        "reserved_now_bytes": meter.held_bytes(),
        "card_used_bytes": reading.device_bytes,
        "outside_bytes": meter.outside_bytes(),
        "retries": reading.retries,
        "marks": reading.marks,
    }


def beyond_limit():
    """What an allocation beyond the limit comes to, on a card that has room for it."""
    meter = CudaMeter()
    meter.release()
    meter.limit(meter.held_bytes() + 256 * MIB)
    try:
        fits = _fails_to_allocate(64 * MIB) is None
        return {"within_limit_fits": fits, **_describe(_fails_to_allocate(512 * MIB))}
    finally:
        meter.limit(NO_LIMIT)


def beyond_card():
    """What an allocation beyond the card comes to, with no limit of ours."""
    import torch

    return _describe(_fails_to_allocate(2 * torch.cuda.get_device_properties(0).total_memory))


def thrashing():
    """Retries of an allocator that can meet a request only by giving its free blocks back first."""
    import torch

    meter = CudaMeter()
    meter.release()
    meter.limit(meter.held_bytes() + GIB)
    meter.reset()
    try:
        blocks = [torch.empty(300 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        before = meter.read().retries
        del blocks
        large = torch.empty(800 * MIB, dtype=torch.uint8, device="cuda")
        reading = meter.read()
        del large
        return {"retries_before": before, "retries": reading.retries, "marks": reading.marks}
    finally:
        meter.limit(NO_LIMIT)
        meter.release()


def clock_events():
    """What holds the clocks down under full load, and what looking costs while the card works."""
    import torch

    card = find_card(str(torch.cuda.get_device_properties(0).uuid))
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    seen, seconds, began = {}, [], time.perf_counter()
    while time.perf_counter() - began < BUSY_SECONDS:
        for _ in range(10):
            torch.matmul(matrix, matrix)
        asked = time.perf_counter()
        seen |= dict.fromkeys(card.clock_events())
        seconds.append(time.perf_counter() - asked)
        torch.cuda.synchronize()
    return {"events": tuple(seen), "looks": len(seconds), "median_look_seconds": sorted(seconds)[len(seconds) // 2]}


def _fails_to_allocate(number_of_bytes):
    import torch

    try:
        torch.empty(number_of_bytes, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return error
    return None


def _describe(error):
    if error is None:
        return {"raised": "nothing", "text": "", "outcome": None}
    return {"raised": type(error).__name__, "text": str(error), "outcome": str(classify(error)[0])}


def _show(name, figure):
    if name.endswith("_bytes") and figure is not None:
        return f"{format_bytes(figure)} ({figure})"
    if name.endswith("_seconds"):
        return f"{figure * 1e6:.0f} us"
    return ", ".join(figure) or "none" if isinstance(figure, tuple) else str(figure)


def main():
    """Prints everything."""
    for measure in (machine, plain_loop, beyond_limit, beyond_card, thrashing, clock_events):
        print(f"{measure.__name__}: {measure.__doc__.splitlines()[0]}")
        for name, figure in measure().items():
            print(f"  {name:<24}{_show(name, figure)}")


if __name__ == "__main__":
    sys.exit(main())
