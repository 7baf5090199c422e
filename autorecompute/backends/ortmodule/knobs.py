"""What else than recompute can be set from outside an ORTModule script, and where each setting does anything.

Read from the packages of ONNX Runtime 1.17.3, 1.18.0 and 1.19.2 (``training/ortmodule/options.py`` and what reads it).
Imports neither torch nor ONNX Runtime: the controller asks.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.environment import PROBE_VARIABLE, WITHIN_LAYERS
from autorecompute.backends.ortmodule.extra import OrtDetection, has_layer_boundaries
from autorecompute.knobs import Knob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.measurement import Detection

TRITON_BUILD, TRITON, CUSTOM_AUTOGRAD, CONVOLUTION = "triton_build", "triton", "custom_autograd", "convolution"
"""Features that a worker may find (``features.py``)."""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

NEEDS_CUDA = "it is for CUDA only"
NEEDS_CPU = "it is about the heap that a CPU trains in"
MMAP_THRESHOLD, TRIM_THRESHOLD = 32 * 1024**2, 1024**3
"""The largest mmap threshold that glibc takes on 64 bits, and a top of the heap that it is never trimmed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the guards look at.

    Attributes:
        onnxruntime: Major and minor version.
        torch: Major and minor version.
        device: ``cpu`` or ``cuda``.
        features: What the worker found.
        has_layers: Whether ORT finds other plans within layer boundaries than everywhere.
        glibc: Major and minor version; zeros for another C library.
        huge_pages: The kernel's mode for transparent huge pages: ``always``, ``madvise`` or ``never``.
    """

    onnxruntime: tuple[int, int]
    torch: tuple[int, int]
    device: str
    features: tuple[str, ...]
    has_layers: bool
    glibc: tuple[int, int]
    huge_pages: str


def knobs_for(detection: Detection, inherited: Mapping[str, str]) -> tuple[Knob, ...]:
    """Every knob, with the reason where it cannot be tried on what was detected.

    Args:
        detection: What is trained, where and with which versions.
        inherited: The environment that the script starts from: what the user set there is left alone.
    """
    extra = OrtDetection.of(detection)
    return offer(
        Place(
            onnxruntime=_version(detection.versions["onnxruntime"]),
            torch=_version(detection.versions["torch"]),
            device=detection.device.kind,
            features=extra.features,
            has_layers=has_layer_boundaries(detection.plans, extra.layer_plans),
            glibc=_version(platform.libc_ver()[1]),
            huge_pages=_huge_pages(),
        ),
        inherited,
    )


def offer(place: Place, inherited: Mapping[str, str]) -> tuple[Knob, ...]:
    """Every knob at this place."""
    return tuple(
        Knob(
            name=spec.name,
            environment=spec.environment,
            effect=spec.effect,
            remakes_plans=spec.remakes_plans,
            looks_within_layers=spec.looks_within_layers,
            why_not=spec.guard(place) or _set_already(spec.environment, inherited),
        )
        for spec in _specs()
    )


def variables() -> frozenset[str]:
    """Every variable that turns a knob, wherever it can be turned."""
    return frozenset(name for spec in _specs() for name in spec.environment)


def _set_already(environment: Mapping[str, str], inherited: Mapping[str, str]) -> str:
    found = [name for name in environment if name in inherited]
    return f"{found[0]} is set in your environment" if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    name: str
    environment: dict[str, str]
    effect: str
    guard: Callable[[Place], str]
    remakes_plans: bool = True
    looks_within_layers: bool = False


def _specs() -> tuple[_Spec, ...]:
    return (*_of_the_graph(), *_of_the_kernels(), *_of_the_memory())


def _of_the_graph() -> tuple[_Spec, ...]:
    return (
        _Spec(
            name="layer_boundaries",
            environment={PROBE_VARIABLE: WITHIN_LAYERS},
            effect="what is recomputed ends at the boundaries of transformer layers, as under ORT's levels",
            guard=lambda place: "" if place.has_layers else "ORT finds the same plans with layer boundaries as without",
            looks_within_layers=True,
        ),
        _Spec(
            name="compute_optimizer_off",
            environment={"ORTMODULE_ENABLE_COMPUTE_OPTIMIZER": "0"},
            effect="operations that shrink a tensor stay where they are, and sparse inputs are computed as dense ones",
            guard=_without_sparsity,
        ),
        _Spec(
            name="sparsity_off",
            environment={"ORTMODULE_ENABLE_SPARSE_OPTIMIZER": "0"},
            effect="labels and tokens that the loss ignores are computed all the same",
            guard=_without_sparsity,
        ),
        _Spec(
            name="embedding_sparsity",
            environment={"ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER": "1"},
            effect="padding is left out behind the embedding, where the first batch has enough of it",
            guard=_embedding_sparsity,
        ),
        _Spec(
            name="mem_efficient_gradients",
            environment={"ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": "1"},
            effect="each gradient leaves ORT's memory as soon as it is known",
            guard=_early_gradients,
        ),
        _Spec(
            name="efficient_attention",
            environment={"ORTMODULE_USE_EFFICIENT_ATTENTION": "1"},
            effect="attention runs in torch's memory-efficient kernel",
            guard=_efficient_attention,
        ),
        _Spec(
            name="triton",
            environment={"ORTMODULE_USE_TRITON": "1"},
            effect="element-wise operations and reductions are fused into Triton kernels",
            guard=_triton,
        ),
    )


def _of_the_kernels() -> tuple[_Spec, ...]:
    return (
        _Spec(
            name="tunable_kernels",
            environment={"ORTMODULE_ENABLE_TUNING": "1"},
            effect="kernels with several implementations try them at their first shapes",
            guard=_needs_cuda,
            remakes_plans=False,
        ),
        _Spec(
            name="exhaustive_convolutions",
            environment={"ORTMODULE_CONV_ALGO_SEARCH": "EXHAUSTIVE"},
            effect="cuDNN tries its algorithms for each convolution, some with much workspace",
            guard=_convolutions,
            remakes_plans=False,
        ),
    )


def _of_the_memory() -> tuple[_Spec, ...]:
    return (
        _Spec(
            name="no_model_copy",
            environment={"ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": "0"},
            effect="the model is exported itself, not a copy of it: less memory at the first step",
            guard=lambda _: "",
            remakes_plans=False,
        ),
        _Spec(
            name="expandable_segments",
            environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            effect="torch's allocator, ORT's too on CUDA, grows its segments: less is lost to fragments",
            guard=_expandable_segments,
            remakes_plans=False,
        ),
        _Spec(
            name="one_malloc_arena",
            environment={"MALLOC_ARENA_MAX": "1"},
            effect="all threads share one heap: less is lost between several",
            guard=_needs_glibc,
            remakes_plans=False,
        ),
        _Spec(
            name="keep_freed_memory",
            environment={
                "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
                "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
            },
            effect="freed memory is used again rather than given back and faulted in anew",
            guard=_needs_glibc,
            remakes_plans=False,
        ),
        _Spec(
            name="huge_pages",
            environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
            effect="the heap lies in pages of 2 MiB: fewer faults and fewer misses of the address cache",
            guard=_transparent_huge_pages,
            remakes_plans=False,
        ),
    )


def _without_sparsity(place: Place) -> str:
    # Seen on 1.19.2: without it, no hooks are registered, and the export counts them all the same. The variable that
    # 1.19 has for labels alone is read and does nothing.
    return "ONNX Runtime 1.19 raises a TypeError with it" if place.onnxruntime >= (1, 19) else ""


def _embedding_sparsity(place: Place) -> str:
    return "ONNX Runtime has it on by itself from 1.18 on" if place.onnxruntime >= (1, 18) else ""


def _early_gradients(place: Place) -> str:
    if place.onnxruntime >= (1, 19):
        return "ONNX Runtime 1.19 raises a TypeError with it"
    return "" if CUSTOM_AUTOGRAD in place.features else "it needs ORTModule's support for custom autograd functions"


def _efficient_attention(place: Place) -> str:
    return _needs_cuda(place) or ("" if place.torch >= (2, 3) else "it needs torch 2.3")


def _triton(place: Place) -> str:
    if TRITON_BUILD not in place.features:
        return "this ONNX Runtime was built without Triton"
    return _needs_cuda(place) or ("" if TRITON in place.features else "the package triton is not installed")


def _convolutions(place: Place) -> str:
    return _needs_cuda(place) or ("" if CONVOLUTION in place.features else "the model has no convolution")


def _expandable_segments(place: Place) -> str:
    return _needs_cuda(place) or ("" if place.torch >= (2, 1) else "it needs torch 2.1")


def _transparent_huge_pages(place: Place) -> str:
    if place.huge_pages != "madvise":
        state = "on for every process" if place.huge_pages == "always" else "switched off"
        return f"transparent huge pages are {state} on this machine"
    return _needs_glibc(place) or ("" if place.glibc >= (2, 35) else "it needs glibc 2.35")


def _needs_glibc(place: Place) -> str:
    if place.device != "cpu":
        return NEEDS_CPU
    return "" if place.glibc > (0, 0) else "it is a setting of glibc, which is not in use here"


def _needs_cuda(place: Place) -> str:
    return "" if place.device == "cuda" else NEEDS_CUDA


def _huge_pages() -> str:
    """The mode in brackets: ``always [madvise] never``."""
    try:
        text = HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return "never"
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else "never"


def _version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
