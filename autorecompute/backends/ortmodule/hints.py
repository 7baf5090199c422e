"""Settings of ORTModule that are left to the user to try."""

from __future__ import annotations

from autorecompute.backends.interface import Knob

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
