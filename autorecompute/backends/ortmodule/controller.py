"""ORTModule as the controller sees it: its plans, and the variables that switch them on. Imports no part of it.

What is said of ORTModule's settings was read from the packages of ONNX Runtime 1.17.3, 1.18.0 and 1.19.2
(``training/ortmodule/options.py`` and what reads it).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Never, Self

from autorecompute import codec
from autorecompute.backends.interface import Emission, Knob
from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Choice, Cluster, Config, Offer, Plan, saving_of
from autorecompute.plans.savings import explain_worthless
from autorecompute.training_job import allocator_of
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from autorecompute.memory import MemoryModel, StepProfiles
    from autorecompute.plans import Lengths, Space
    from autorecompute.training_job import Detection

NAME = "ortmodule"
LEVEL_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
CONFIG_VARIABLE = "ORTMODULE_MEMORY_OPT_CONFIG"
PROBE_VARIABLE = "AUTORECOMPUTE_ORT_PROBE"  # ours: a probe config for chosen plans, in an adapted process
VARIABLES = (LEVEL_VARIABLE, CONFIG_VARIABLE, PROBE_VARIABLE)
"""Variables that decide about recompute in ORTModule; one of them left over from elsewhere changes the training."""

READ_BY = "a script that imports autorecompute.compat before ORTModule"
USUAL_PRESET = ""
USED_BY = "onnxruntime.training.ortmodule"
TRIAL_VARIABLES = {"ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE"}
"""A model that ORT cannot take must fail rather than train in plain PyTorch."""

LOG_VARIABLES = ("ORTMODULE_LOG_LEVEL",)
REPAIR = "autorecompute.backends.ortmodule.installation"
IMPORT_HOOK = (
    f"before {USED_BY} autorecompute.backends.ortmodule.adapter:adapt ORTModule goes on without being adapted to this "
    "PyTorch"
)

PLANS_FILE = "plans.json"
PROBE_NOTE = (
    "not ONNX Runtime's own: other nodes are recomputed unless the script is started with 'autorecompute run', "
    "or imports autorecompute.compat before ORTModule"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtDetection:
    """The part of a detection that only ORT has."""

    layer_plans: tuple[Plan, ...] = ()
    """Plans within the boundaries of transformer layers, which the levels switch on."""
    layer_clusters: tuple[Cluster, ...] = ()
    features: tuple[str, ...] = ()
    """Optional parts that ORT has here, and its model needs, by their names there."""

    @classmethod
    def of(cls, detection: Detection) -> Self:
        """Return that part of a detection."""
        return codec.from_plain(detection.extra, cls)


CUSTOM_AUTOGRAD = "custom_autograd"  # the feature that ORTModule's support for custom autograd functions is on


def has_layer_boundaries(plans: tuple[Plan, ...], layer_plans: tuple[Plan, ...]) -> bool:
    """Tell whether looking at layer boundaries changes any plan; ORT finds none in post-LN models."""
    # ORT's stated saving of a plan with several outputs varies between runs: its nodes are what tells plans apart.
    return {(plan.id, plan.occurrences) for plan in plans} != {(plan.id, plan.occurrences) for plan in layer_plans}


ALL_OCCURRENCES = -1
RECOMPUTE, COMPROMISE = "1", "2"  # a subgraph is recomputed whole, or up to the cast that halves what is kept
LAYERS = "transformer layers"  # the site of ORT's levels, which choose the plans within transformer layers themselves
_ROW = re.compile(r"([^:]+):([12]):(-1|\d+)")

CHOSEN, LEVELS = 0, (0, 1, 2)
"""Level 0 of ORT's ``ORTMODULE_MEMORY_OPT_LEVEL``: plans are chosen one by one. A higher one takes all of them within
each transformer layer, level 2 with the compromises."""


def config_of_level(level: int) -> Config:
    """Return the config that leaves the choice to one of ORT's levels; none for level 0."""
    return Config() if level == CHOSEN else Config(frozenset({Choice(LAYERS, str(level))}))


def level_of(config: Config) -> int:
    """Return the level that a config stands for."""
    return next((int(on.option) for on in config.choices if on.site == LAYERS), CHOSEN)


def rows_of(config: Config) -> list[str]:
    """Return the plans of a config as ORT reads them, in a fixed order; none for a level."""
    return sorted(write_row(on) for on in config.choices if on.site != LAYERS)


def write_row(choice: Choice, count: int = ALL_OCCURRENCES) -> str:
    """``Gelu+:1:-1``."""
    return f"{choice.site}:{choice.option}:{count}"


def read_row(text: str) -> tuple[Choice, int]:
    """Read ``Gelu+:1:2`` as users write it: the choice, and the number of occurrences it asks for, -1 for all.

    Raises:
        UsageError: the text is not of that form.
    """
    match = _ROW.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is no recompute plan. A plan is written like Gelu+:1:-1.")
    return Choice(match[1], match[2]), int(match[3])


def make_plan(key: str, *, occurrences: int, saving_bytes: int | None, saving: str) -> Plan:
    """Return the plan that ORT has this key for: rows joined by commas."""
    choices = tuple(sorted({read_row(text)[0] for text in key.split(",")}, key=str))
    compromise = " (compromise)" if any(choice.option == COMPROMISE for choice in choices) else ""
    return Plan(
        choices=choices,
        label=" with ".join(choice.site for choice in choices) + compromise,
        occurrences=occurrences,
        saving_bytes=saving_bytes,
        saving=saving,
    )


def option_of(plan: Plan) -> str:
    """Return the strongest compromise among the choices of a plan."""
    return max(choice.option for choice in plan.choices)


def presets_of(plans: Iterable[Plan], levels: Iterable[int], *, has_boundaries: bool) -> dict[str, Config]:
    """Return ORT's levels; without boundaries of layers a level is just its plans, and the second one all of them."""
    if has_boundaries:
        return {f"level_{level}": config_of_level(level) for level in levels if level != CHOSEN}
    whole = [plan for plan in plans if option_of(plan) == RECOMPUTE]
    every = {choice.site: choice for plan in plans for choice in plan.choices}
    every |= {choice.site: choice for plan in whole for choice in plan.choices}
    return {"level_1": Config.of(whole), "level_2": Config(frozenset(every.values()))}


NOTES = (
    "by itself a plan can save less: what it recomputes from is kept instead (an Add+ behind a Dropout, for one)",
    (
        "several plans at a time: list them in the JSON file that ORTMODULE_MEMORY_OPT_CONFIG names (ORT 1.19), "
        "or join them by commas in the variable (1.17, 1.18); ORTMODULE_MEMORY_OPT_LEVEL=1 or 2 takes all in layers"
    ),
)
STATED_NOTE = (
    "! ORT counts only one output of a node that keeps several, and miscounts buffers that outputs of two plans lie "
    "in; the saving here is right in both"
)

NEVER_RECOMPUTED = (
    "ORT recomputes no convolution, pooling, Relu, Sigmoid, Tanh or batch normalization, nor anything that would need "
    "one of them again."
)


def make_offer(
    detection: Detection, level: int, asked: Mapping[Choice, int], probe_config: str, dims: Mapping[str, int]
) -> Offer:
    """Return the plans that ORT offers at these dimensions, and what it would recompute.

    A ``level`` above 0 leaves the plans unread. Each choice is ``asked`` for at so many occurrences, -1 for all.
    """
    extra = OrtDetection.of(detection)
    is_chosen = level == CHOSEN
    plans = detection.plans if is_chosen else extra.layer_plans
    clusters = detection.clusters if is_chosen else extra.layer_clusters
    offered = [choice for plan in plans for choice in plan.choices]
    unknown = sorted(write_row(choice) for choice in asked if choice not in offered)
    if is_chosen:
        counts = {choice: count for choice, count in asked.items() if choice in offered}
        config = Config(frozenset(counts))
    else:
        # Plans come with the largest saving first. A level takes them in this order, and of two options for one
        # subgraph ORT keeps the last.
        last = {choice.site: choice for choice in offered if int(choice.option) <= level}
        counts = dict.fromkeys(last.values(), ALL_OCCURRENCES)
        config = detection.own_presets.get(f"level_{level}", config_of_level(level))
    # ORT says that its memory optimizer is on even where it knows none of the plans.
    is_on = not is_chosen or bool(asked)
    rows = ", ".join(write_row(choice, count) for choice, count in asked.items())
    words = rows or ("set by the level" if is_on else "none")
    summary = f"level {level}, probe config {probe_config}, config: {words}"
    worthless = explain_worthless(plans, dims)
    return Offer(
        plans=tuple(sorted(plans, key=lambda plan: (-(plan.saving_bytes or 0), plan.id))),
        clusters=clusters,
        summary=f"Memory Optimizer: {'ON' if is_on else 'OFF'}   {summary}",
        is_on=is_on,
        config=config,
        requested=counts,
        recomputed={choice: count_recomputed(choice, counts, clusters) for choice in counts},
        unknown=tuple(unknown),
        problems=(
            *(f"no plan {row} in this graph: ORT ignores it without a word" for row in unknown),
            *_describe_counts(counts, clusters),
        ),
        notes=NOTES,
        stated_note=STATED_NOTE,
        worthless=f"{worthless} {NEVER_RECOMPUTED}" if worthless else "",
    )


def count_recomputed(choice: Choice, counts: Mapping[Choice, int], clusters: Sequence[Cluster]) -> int:
    """Count the nodes that ORT 1.17 to 1.19 recomputes for a choice, where these choices take effect with their counts.

    These are all that it is offered for, or all but one for a count of 0. Of two options for one node the first counts.
    """
    if choice not in counts:
        return 0
    nodes = sum(
        cluster.occurrences
        for cluster in clusters
        if next((way.choice for way in cluster.alternatives if way.choice in counts), None) == choice
    )
    return max(0, nodes - (counts[choice] == 0))


def _describe_counts(counts: Mapping[Choice, int], clusters: tuple[Cluster, ...]) -> Iterator[str]:
    for choice, count in counts.items():
        _, offered = saving_of(choice, clusters)
        recomputed = count_recomputed(choice, counts, clusters)
        if recomputed != (offered if count == ALL_OCCURRENCES else count):
            asked = "all" if count == ALL_OCCURRENCES else str(count)
            yield f"{write_row(choice, count)} asks for {asked} of {offered}; ORT recomputes {recomputed}"


IGNORING_LAYERS, WITHIN_LAYERS = "1:0", "1:1"  # probe configs: without or with regard to transformer layer boundaries
OLDEST_VERSION, NEWEST_VERSION = (1, 17), (1, 19)
FIRST_VERSION_WITH_COMPROMISE_LEVEL, FIRST_VERSION_WITH_FILE = (1, 18), (1, 19)

LONGEST_COMMA_STRING = 2048  # characters that a session option of ONNX Runtime holds


def probe_config_of(level: int, environment: Mapping[str, str]) -> str:
    """Return the way in which ORT looks for plans under a level; an adapted process obeys a variable of ours."""
    return (environment.get(PROBE_VARIABLE) or IGNORING_LAYERS) if level == CHOSEN else WITHIN_LAYERS


def levels_of(ort_version: str) -> tuple[int, ...]:
    """Return the levels that this version has.

    Raises:
        SetupError: that version reads no recompute plans of any form.
    """
    return LEVELS if _parse_version(ort_version) >= FIRST_VERSION_WITH_COMPROMISE_LEVEL else LEVELS[:-1]


def give(config: Config, ort_version: str, plans_file: Path) -> tuple[int, str]:
    """Return ORT's level for a config, and the path of the plans file or the plans; empty where there are none.

    ONNX Runtime 1.19 is given the absolute path at which the caller keeps ``plans_file_text(config)``.

    Raises:
        SetupError: that version reads no config of this form.
        UsageError: the config cannot be written for that version.
    """
    level, rows = level_of(config), rows_of(config)
    if level not in levels_of(ort_version):
        raise UsageError("ONNX Runtime 1.17 has no recompute level 2. Use level 1, or ONNX Runtime 1.18 or 1.19.")
    if rows and _parse_version(ort_version) >= FIRST_VERSION_WITH_FILE:
        return level, str(plans_file.absolute())
    joined = ",".join(rows)
    if not joined.isprintable():
        raise UsageError("A plan has a character in its name that no variable can hold. Nothing was written.")
    if len(joined) > LONGEST_COMMA_STRING:
        raise UsageError(
            f"These plans take {len(joined)} characters, and ONNX Runtime 1.17 and 1.18 read {LONGEST_COMMA_STRING} "
            "at most. Use fewer plans, or ONNX Runtime 1.19, which reads them from a file."
        )
    return level, joined


def requested_by(environment: Mapping[str, str], *, ort_version: str) -> tuple[int, dict[Choice, int]]:
    """Read the level and the plans with their counts, as ORT does: the last of several rows for a subgraph counts."""
    level_text, text = environment.get(LEVEL_VARIABLE, "0"), environment.get(CONFIG_VARIABLE, "")
    if level_text not in map(str, LEVELS):
        raise UsageError(f"{LEVEL_VARIABLE} is '{level_text}'. Set it to 0, 1 or 2, or unset it.")
    level = int(level_text)
    if level != CHOSEN or not text:
        return level, {}
    listed = _read_plans_file(Path(text)) if _parse_version(ort_version) >= FIRST_VERSION_WITH_FILE else [text]
    requests = map(read_row, filter(None, ",".join(listed).split(",")))
    by_subgraph = {choice.site: (choice, count) for choice, count in requests}
    return level, dict(by_subgraph.values())


def _read_plans_file(file: Path) -> list[str]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{CONFIG_VARIABLE} names {file}, which cannot be read: {error}. Mend or unset it.") from error
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise UsageError(f"{CONFIG_VARIABLE} names {file}, which is no JSON array of strings. Mend or unset it.")
    return rows


def plans_file_text(config: Config) -> str:
    """Return the file's text for ONNX Runtime 1.19: a JSON array with one row to a line."""
    return json.dumps(rows_of(config), indent=2) + "\n"


def parse_release(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version such as ``2.13.0+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _parse_version(text: str) -> tuple[int, ...]:
    version = parse_release(text)
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise SetupError(
            f"ONNX Runtime {printable(text, '') or '(unknown)'} takes no recompute plans of this form, only 1.17 to "
            "1.19 do. Install onnxruntime-training 1.19.2."
        )
    return version


def _plans_in_layers(detection: Detection) -> tuple[Plan, ...]:
    return OrtDetection.of(detection).layer_plans


def _why_no_boundaries(config: Config, detection: Detection) -> str:
    if config.is_none:
        return "the winner recomputes nothing"
    if level_of(config) != CHOSEN:
        return "the winner is a level of ORT's, which ends at the boundaries by itself"
    if not has_layer_boundaries(detection.plans, _plans_in_layers(detection)):
        return "ORT finds the same plans with layer boundaries as without"
    return ""


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


def render(
    config: Config,
    *,
    knobs: Collection[str] = (),
    versions: Mapping[str, str],
    folder: Path,
    lengths: Lengths | None = None,
) -> Emission:
    """Render the config and the knobs of these names; nothing where neither changes anything.

    Raises:
        SetupError: that version of ONNX Runtime reads no config of this form.
        UsageError: the config cannot be written for it, or there is no knob of one of these names.
    """
    del lengths  # none is tuned here
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
    notes |= {PROBE_VARIABLE: PROBE_NOTE} if PROBE_VARIABLE in variables else {}
    return Emission(variables=variables, files={plans_file: plans_file_text(config)} if has_file else {}, notes=notes)


def script(_config: Config, _versions: Mapping[str, str]) -> Never:
    """Raise ``UsageError``: code cannot do what the variables do."""
    raise UsageError("ORTModule reads variables, and no Python code can take their place. Use --format shell.")


def unmeasured(_config: Config, _versions: Mapping[str, str]) -> Never:
    """Raise ``UsageError``: nothing marks variables that are only planned."""
    raise UsageError("ORTModule reads variables, which cannot say that nobody measured them. Tune the script.")


def offer(detection: Detection, environment: Mapping[str, str], dims: Mapping[str, int]) -> Offer:
    """Return ORT's offer at these dimensions, and the plans that these variables switch on.

    Raises:
        UsageError: they hold what ONNX Runtime of that version cannot read.
    """
    level, asked = requested_by(environment, ort_version=detection.versions["onnxruntime"])
    return make_offer(detection, level, asked, probe_config_of(level, environment), dims)


def takes_turns(_detection: Detection) -> bool:
    """Return False: every swap makes the sessions anew."""
    return False


def needs_of(_detection: Detection) -> Callable[[Config], frozenset[str]]:
    """Tell nothing that is made once: every swap makes the sessions anew, whatever the config."""
    return lambda _config: frozenset()


def nothing(_asked: object) -> None:
    """Return nothing: variables do not say that nobody measured them, and memory is known from profiled steps alone."""


planned = memory_of = memory_by_length = peaks_of = nothing


def memory_model(space: Space, small: StepProfiles) -> MemoryModel:
    """Return a memory model of every config, from profiled small steps."""
    from autorecompute.backends.ortmodule.memory import OrtMemoryModel

    return OrtMemoryModel(space, small)


def rough_memory_of(_detection: Detection) -> Never:
    """Raise ``SetupError``: a training follows plain PyTorch alone, and never comes here."""
    raise SetupError("only plain PyTorch is tuned while it trains: measure with 'autorecompute tune SCRIPT'")
