"""Settings of ORTModule besides recompute, and hints at those that are left to the user to try.

Read from the packages of ONNX Runtime 1.17.3, 1.18.0 and 1.19.2 (``training/ortmodule/options.py`` and what reads it).
Imports neither torch nor ONNX Runtime: the controller asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.interface import Knob
from autorecompute.backends.ortmodule.environment import (
    EXPANDABLE_SEGMENTS,
    LAYER_BOUNDARIES,
    MEM_EFFICIENT_GRADIENTS,
    Level,
    OrtDetection,
    has_layer_boundaries,
    level_of,
)
from autorecompute.backends.ortmodule.installation import parse_release

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.plans import Config, Plan
    from autorecompute.training_job import Detection

CUSTOM_AUTOGRAD = "custom_autograd"
"""The feature of a detection that ORTModule's support for custom autograd functions is on."""

HINTS = (
    Knob(
        name="compute_optimizer_off",
        variables={"ORTMODULE_ENABLE_COMPUTE_OPTIMIZER": "0"},
        effect="operations that shrink a tensor are not moved up, sparse labels are computed as dense ones",
        needs="1.17 and 1.18: 1.19.2 raises a TypeError",
    ),
    Knob(
        name="sparsity_off",
        variables={"ORTMODULE_ENABLE_SPARSE_OPTIMIZER": "0"},
        effect="labels and tokens that the loss ignores are computed all the same",
        needs="1.17 and 1.18",
    ),
    Knob(
        name="embedding_sparsity",
        variables={"ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER": "1"},
        effect="padding is left out behind the embedding",
        needs="1.17: later versions have it on by themselves, on CUDA",
    ),
    Knob(
        name="efficient_attention",
        variables={"ORTMODULE_USE_EFFICIENT_ATTENTION": "1"},
        effect="attention runs in torch's memory-efficient kernel",
        needs="CUDA, torch 2.3",
    ),
    Knob(
        name="triton",
        variables={"ORTMODULE_USE_TRITON": "1"},
        effect="element-wise operations and reductions are fused into Triton kernels",
        needs="CUDA, ORT built with Triton, the package triton",
    ),
    Knob(
        name="tunable_kernels",
        variables={"ORTMODULE_ENABLE_TUNING": "1"},
        effect="kernels with several implementations try them at their first shapes",
        needs="CUDA",
    ),
    Knob(
        name="exhaustive_convolutions",
        variables={"ORTMODULE_CONV_ALGO_SEARCH": "EXHAUSTIVE"},
        effect="cuDNN tries its algorithms for each convolution, some with much workspace",
        needs="CUDA, a model with convolutions",
    ),
    Knob(
        name="one_malloc_arena",
        variables={"MALLOC_ARENA_MAX": "1"},
        effect="all threads share one heap: less is lost between several",
        needs="a CPU with glibc",
    ),
    Knob(
        name="keep_freed_memory",
        variables={"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1073741824"},
        effect="freed memory is used again rather than given back and faulted in anew",
        needs="a CPU with glibc",
    ),
    Knob(
        name="huge_pages",
        variables={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
        effect="the heap lies in pages of 2 MiB: fewer faults and fewer misses of the address cache",
        needs="a CPU with glibc 2.35, transparent huge pages on madvise",
    ),
)


def why_not(knob: Knob, config: Config, detection: Detection, inherited: Mapping[str, str]) -> str:
    """Return why a knob cannot be tried on a config, in words; empty where it can."""
    taken = next((name for name in knob.variables if name in inherited), None)
    return _missing(knob, config, detection) or (f"{taken} is set in your environment" if taken else "")


def plans_under(names: Collection[str], detection: Detection) -> Sequence[Plan]:
    """Return the plans that exist under the knobs of these names."""
    return OrtDetection.of(detection).layer_plans if LAYER_BOUNDARIES.name in names else detection.plans


def _missing(knob: Knob, config: Config, detection: Detection) -> str:
    match knob.name:
        case LAYER_BOUNDARIES.name:
            return _without_boundaries(config, detection)
        case MEM_EFFICIENT_GRADIENTS.name if parse_release(detection.versions["onnxruntime"]) >= (1, 19):
            return "ONNX Runtime 1.19 raises a TypeError with it"
        case MEM_EFFICIENT_GRADIENTS.name if CUSTOM_AUTOGRAD not in OrtDetection.of(detection).features:
            return "it needs ORTModule's support for custom autograd functions"
        case EXPANDABLE_SEGMENTS.name if detection.device.kind != "cuda":
            return "it is for CUDA only"
        case EXPANDABLE_SEGMENTS.name if parse_release(detection.versions["torch"]) < (2, 1):
            return "it needs torch 2.1"
    return ""


def _without_boundaries(config: Config, detection: Detection) -> str:
    if config.is_none:
        return "the winner recomputes nothing"
    if level_of(config) is not Level.CHOSEN:
        return "the winner is a level of ORT's, which ends at the boundaries by itself"
    has_boundaries = has_layer_boundaries(detection.plans, OrtDetection.of(detection).layer_plans)
    return "" if has_boundaries else "ORT finds the same plans with layer boundaries as without"
