"""ORTModule as the controller sees it. Imports neither torch nor ONNX Runtime.

What is said of ORTModule's settings was read from the packages of ONNX Runtime 1.17.3, 1.18.0 and 1.19.2
(``training/ortmodule/options.py`` and what reads it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.interface import Emission, Knob
from autorecompute.backends.ortmodule.environment import (
    CHOSEN,
    CONFIG_VARIABLE,
    CUSTOM_AUTOGRAD,
    LEVEL_VARIABLE,
    MEMORY_VARIABLES,
    PROBE_VARIABLE,
    WITHIN_LAYERS,
    OrtDetection,
    give,
    has_layer_boundaries,
    level_of,
    make_offer,
    plans_file_text,
    probe_config_of,
    requested_by,
)
from autorecompute.backends.ortmodule.installation import parse_release
from autorecompute.errors import SetupError, UsageError
from autorecompute.training_job import allocator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from autorecompute.memory import MemoryModel, StepProfiles
    from autorecompute.plans import Config, Offer, Plan, Space
    from autorecompute.training_job import Detection

NAME = "ortmodule"
VARIABLES = MEMORY_VARIABLES
READ_BY = "a script that imports autorecompute.compat before ORTModule"
USED_BY = "onnxruntime.training.ortmodule"
TRIAL_VARIABLES = {"ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE"}
"""A model that ORT cannot take must fail rather than train in plain PyTorch."""

LOG_VARIABLES = ("ORTMODULE_LOG_LEVEL",)
REPAIR = "autorecompute.backends.ortmodule.extensions"
IMPORT_HOOK = (
    f"before {USED_BY} autorecompute.backends.ortmodule.adapter:adapt ORTModule goes on without being adapted to this "
    "PyTorch"
)

PLANS_FILE = "plans.json"
PROBE_NOTE = (
    "not ONNX Runtime's own: other nodes are recomputed unless the script is started with 'autorecompute run', "
    "or imports autorecompute.compat before ORTModule"
)


def _why_no_boundaries(config: Config, detection: Detection) -> str:
    if config.is_none:
        return "the winner recomputes nothing"
    if level_of(config) != CHOSEN:
        return "the winner is a level of ORT's, which ends at the boundaries by itself"
    if not has_layer_boundaries(detection.plans, _plans_in_layers(detection)):
        return "ORT finds the same plans with layer boundaries as without"
    return ""


def _plans_in_layers(detection: Detection) -> tuple[Plan, ...]:
    return OrtDetection.of(detection).layer_plans


def _why_no_efficient_gradients(_config: Config, detection: Detection) -> str:
    if parse_release(detection.versions["onnxruntime"]) >= (1, 19):
        return "ONNX Runtime 1.19 raises a TypeError with it"
    if CUSTOM_AUTOGRAD not in OrtDetection.of(detection).features:
        return "it needs ORTModule's support for custom autograd functions"
    return ""


KNOBS = (
    Knob(
        name="layer_boundaries",
        variables={PROBE_VARIABLE: WITHIN_LAYERS},
        effect="what is recomputed ends at the boundaries of transformer layers, as under ORT's levels",
        needs="ORT finds boundaries (pre-LN models)",
        why_not=_why_no_boundaries,
        plans=_plans_in_layers,
    ),
    Knob(
        name="mem_efficient_gradients",
        variables={"ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": "1"},
        effect="each gradient leaves ORT's memory as soon as it is known",
        needs="1.17 and 1.18, with support for custom autograd functions",
        why_not=_why_no_efficient_gradients,
    ),
    Knob(
        name="no_model_copy",
        variables={"ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": "0"},
        effect="the model is exported itself, not a copy of it: less memory at the first step",
    ),
)

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


def render(config: Config, *, knobs: Collection[str] = (), versions: Mapping[str, str], folder: Path) -> Emission:
    """Render the config and the knobs of these names; nothing where neither changes anything.

    Raises:
        SetupError: that version of ONNX Runtime reads no config of this form.
        UsageError: the config cannot be written for it, or there is no knob of one of these names.
    """
    plans_file = folder.absolute() / PLANS_FILE
    level, plans = give(config, versions.get("onnxruntime", ""), plans_file)
    if strangers := sorted(set(knobs) - {knob.name for knob in KNOBS}):
        raise UsageError(f"This autorecompute knows no setting '{strangers[0]}'. Tune again with --knobs.")
    variables = {
        **({LEVEL_VARIABLE: str(level)} if level != CHOSEN else {}),
        **({CONFIG_VARIABLE: plans} if plans else {}),
        **{name: value for knob in KNOBS if knob.name in knobs for name, value in knob.variables.items()},
        **allocator_of(versions),
    }
    has_file = plans == str(plans_file)
    notes = {"plans file": "must be readable under the same path wherever the script trains"} if has_file else {}
    if PROBE_VARIABLE in variables:
        notes[PROBE_VARIABLE] = PROBE_NOTE
    return Emission(variables=variables, files={plans_file: plans_file_text(config)} if has_file else {}, notes=notes)


def script(config: Config, versions: Mapping[str, str]) -> str:
    """Raise.

    Raises:
        UsageError: always.
    """
    del config, versions
    raise UsageError("ORTModule reads variables, and no Python code can take their place. Use --format shell.")


def unmeasured(config: Config, versions: Mapping[str, str]) -> str:
    """Raise: planned configs are in variables, and nothing marks those.

    Raises:
        UsageError: always.
    """
    del config, versions
    raise UsageError("ORTModule reads variables, which cannot say that nobody measured them. Tune the script.")


def planned(environment: Mapping[str, str]) -> None:
    """Return nothing: variables do not say that nobody measured them."""
    del environment


def offer(detection: Detection, environment: Mapping[str, str], dims: Mapping[str, int]) -> Offer:
    """Return ORT's offer at these dimensions, and the plans that these variables switch on.

    Raises:
        UsageError: they hold what ONNX Runtime of that version cannot read.
    """
    level, asked = requested_by(environment, ort_version=detection.versions["onnxruntime"])
    return make_offer(detection, level, asked, probe_config_of(level, environment), dims)


def takes_turns(detection: Detection) -> bool:
    """Return False: every swap makes the sessions anew."""
    del detection
    return False


def needs_of(detection: Detection) -> Callable[[Config], frozenset[str]]:
    """Tell nothing that is made once: every swap makes the sessions anew, whatever the config."""
    del detection
    return lambda _config: frozenset()


def memory_of(detection: Detection) -> None:
    """Return nothing: steps have to be profiled."""
    del detection


peaks_of = memory_of


def memory_model(space: Space, small: StepProfiles) -> MemoryModel:
    """Return a memory model of every config, from profiled small steps."""
    from autorecompute.backends.ortmodule.memory import OrtMemoryModel

    return OrtMemoryModel(space, small)


def rough_memory_of(detection: Detection) -> None:
    """Raise: a training follows plain PyTorch alone, and never comes here.

    Raises:
        SetupError: always.
    """
    del detection
    raise SetupError("only plain PyTorch is tuned while it trains: measure with 'autorecompute tune SCRIPT'")
