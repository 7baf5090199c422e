"""The plans of ONNX Runtime's memory optimizer, and the environment variables that switch them on."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from autorecompute import codec
from autorecompute.backends.interface import Emission, Knob
from autorecompute.backends.ortmodule.installation import parse_release
from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Choice, Cluster, Config, Offer, Plan, saving_of
from autorecompute.plans.savings import explain_worthless
from autorecompute.training_job import allocator_of
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from autorecompute.memory import MemoryModel, StepProfiles
    from autorecompute.plans import Space
    from autorecompute.training_job import Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtDetection:
    """The part of a detection that only ORT has.

    Attributes:
        layer_plans: Plans within the boundaries of transformer layers, which the levels switch on.
        layer_clusters: The activations that those are about.
        features: What optional parts ORT has here, and its model needs, by their names there.
    """

    layer_plans: tuple[Plan, ...] = ()
    layer_clusters: tuple[Cluster, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, detection: Detection) -> Self:
        """Return that of what a worker told."""
        return codec.from_plain(detection.extra, cls)


def has_layer_boundaries(plans: tuple[Plan, ...], layer_plans: tuple[Plan, ...]) -> bool:
    """Tell whether looking at layer boundaries changes any plan; ORT finds none in post-LN models."""
    # ORT's stated saving of a plan with several outputs varies between runs: its nodes are what tells plans apart.
    return {(plan.id, plan.occurrences) for plan in plans} != {(plan.id, plan.occurrences) for plan in layer_plans}


ALL_OCCURRENCES = -1
RECOMPUTE, COMPROMISE = "1", "2"
"""ORT's options: a subgraph is recomputed whole, or up to the cast that halves what is kept."""

LAYERS = "transformer layers"
"""The site of ORT's levels, which choose the plans within transformer layers themselves."""

_ROW = re.compile(r"([^:]+):([12]):(-1|\d+)")


class Level(enum.IntEnum):
    """ORT's ``ORTMODULE_MEMORY_OPT_LEVEL``: plans chosen one by one, or all of them within each transformer layer."""

    CHOSEN = 0
    LAYERWISE = 1
    LAYERWISE_WITH_COMPROMISE = 2


def config_of_level(level: Level) -> Config:
    """Return the config that leaves the choice to one of ORT's levels; none for level 0."""
    return Config() if level is Level.CHOSEN else Config(frozenset({Choice(LAYERS, str(int(level)))}))


def level_of(config: Config) -> Level:
    """Return the level that a config stands for."""
    return next((Level(int(on.option)) for on in config.choices if on.site == LAYERS), Level.CHOSEN)


def rows_of(config: Config) -> list[str]:
    """Return the plans of a config as ORT reads them, in a fixed order; none for a level."""
    return sorted(write_row(on) for on in config.choices if on.site != LAYERS)


def write_row(choice: Choice, count: int = ALL_OCCURRENCES) -> str:
    """``Gelu+:1:-1``."""
    return f"{choice.site}:{choice.option}:{count}"


def read_row(text: str) -> Choice:
    """Read ``Gelu+:1:-1``.

    Raises:
        UsageError: the text is not of that form, or asks for a count that ORT cannot keep.
    """
    choice, count = read_request(text)
    if count != ALL_OCCURRENCES:
        raise UsageError(
            f"'{text}' is no recompute plan that ORT can keep: it takes all occurrences or none. Write -1."
        )
    return choice


def read_request(text: str) -> tuple[Choice, int]:
    """Read ``Gelu+:1:2`` as users write it: the choice, and how many occurrences it asks for, -1 for all.

    Raises:
        UsageError: the text is not of that form.
    """
    match = _ROW.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is no recompute plan. A plan is written like Gelu+:1:-1.")
    return Choice(match[1], match[2]), int(match[3])


def make_plan(key: str, *, occurrences: int, saving_bytes: int | None, saving: str, stated: str | None = None) -> Plan:
    """Return the plan that ORT has this key for: rows joined by commas."""
    choices = tuple(sorted({read_row(text) for text in key.split(",")}, key=str))
    return Plan(
        choices=choices,
        label=_label(choices),
        occurrences=occurrences,
        saving_bytes=saving_bytes,
        saving=saving,
        stated=stated,
    )


def option_of(plan: Plan) -> str:
    """Return the strongest compromise among the choices of a plan."""
    return max(choice.option for choice in plan.choices)


def presets_of(plans: Iterable[Plan], levels: Iterable[Level], *, has_boundaries: bool) -> dict[str, Config]:
    """ORT's levels. Without boundaries of layers a level is just its plans, and the second one is all of them."""
    if has_boundaries:
        return {f"level_{int(level)}": config_of_level(level) for level in levels if level is not Level.CHOSEN}
    whole = [plan for plan in plans if option_of(plan) == RECOMPUTE]
    every = {choice.site: choice for plan in plans for choice in plan.choices}
    every |= {choice.site: choice for plan in whole for choice in plan.choices}
    return {"level_1": Config.of(whole), "level_2": Config(frozenset(every.values()))}


def _label(choices: tuple[Choice, ...]) -> str:
    subgraphs = " with ".join(choice.site for choice in choices)
    is_compromise = any(choice.option == COMPROMISE for choice in choices)
    return f"{subgraphs} (compromise)" if is_compromise else subgraphs


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request in the variables of ORTModule: plans, or a level that chooses them.

    Attributes:
        level: ORT's level; one above 0 leaves the plans unread.
        counts: Each choice with the occurrences it is asked for, -1 for all.
    """

    level: Level = Level.CHOSEN
    counts: Mapping[Choice, int] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Tell whether ORT says that its memory optimizer is on; it says so even where it knows none of the plans."""
        return self.level is not Level.CHOSEN or bool(self.counts)

    def resolve(self, plans: Sequence[Plan]) -> dict[Choice, int]:
        """Return the choices that take effect, each with its count.

        Args:
            plans: What is offered under the level, largest saving first. A level takes them in this order, and of two
                options for one subgraph ORT keeps the last.
        """
        offered = [choice for plan in plans for choice in plan.choices]
        if self.level is Level.CHOSEN:
            return {choice: count for choice, count in self.counts.items() if choice in offered}
        last = {choice.site: choice for choice in offered if int(choice.option) <= self.level}
        return dict.fromkeys(last.values(), ALL_OCCURRENCES)

    def unknown(self, plans: Sequence[Plan]) -> list[str]:
        """Return the plans that ORT ignores without a word, as the graph has none of them."""
        offered = {choice for plan in plans for choice in plan.choices}
        return sorted(write_row(choice) for choice in self.counts if choice not in offered)


def make_offer(detection: Detection, request: Request, probe_config: str, dims: Mapping[str, int]) -> Offer:
    """Return the plans that ORT offers under a request, and what it would recompute.

    Args:
        detection: What was found.
        request: What the environment switches on.
        probe_config: How ORT looks for plans under the level, in its own words.
        dims: The dimensions at which the plans are weighed.
    """
    extra = OrtDetection.of(detection)
    is_chosen = request.level is Level.CHOSEN
    plans = detection.plans if is_chosen else extra.layer_plans
    clusters = detection.clusters if is_chosen else extra.layer_clusters
    counts, unknown = request.resolve(plans), request.unknown(plans)
    problems = [f"no plan {row} in this graph: ORT ignores it without a word" for row in unknown]
    config = Config(frozenset(counts)) if is_chosen else _config_of(request.level, detection)
    return Offer(
        plans=tuple(sorted(plans, key=lambda plan: (-(plan.saving_bytes or 0), plan.id))),
        clusters=clusters,
        summary=_summarize(request, probe_config),
        is_on=request.is_on,
        config=config,
        requested=counts,
        recomputed={choice: count_recomputed(choice, counts, clusters) for choice in counts},
        unknown=tuple(unknown),
        problems=(*problems, *_describe_counts(counts, clusters)),
        notes=NOTES,
        stated_note=STATED_NOTE,
        worthless=_explain_worthless(plans, dims),
    )


def count_recomputed(choice: Choice, counts: Mapping[Choice, int], clusters: Sequence[Cluster]) -> int:
    """Count the nodes that ORT 1.17 to 1.19 recomputes for a choice.

    All it is offered for, all but one for a count of 0.

    Of two options for one node the first takes effect.

    Args:
        choice: The choice.
        counts: The choices that take effect, each with its count.
        clusters: What they are offered for.
    """
    if choice not in counts:
        return 0
    nodes = sum(
        cluster.occurrences
        for cluster in clusters
        if next((way.choice for way in cluster.alternatives if way.choice in counts), None) == choice
    )
    return max(0, nodes - (counts[choice] == 0))


def _config_of(level: Level, detection: Detection) -> Config:
    name = f"level_{int(level)}"
    return detection.own_presets.get(name, config_of_level(level))


def _summarize(request: Request, probe_config: str) -> str:
    on = "ON" if request.is_on else "OFF"
    rows = ", ".join(write_row(choice, count) for choice, count in request.counts.items())
    config = rows or ("set by the level" if request.is_on else "none")
    return f"Memory Optimizer: {on}   level {int(request.level)}, probe config {probe_config}, config: {config}"


def _describe_counts(counts: Mapping[Choice, int], clusters: tuple[Cluster, ...]) -> Iterator[str]:
    for choice, count in counts.items():
        _, offered = saving_of(choice, clusters)
        recomputed = count_recomputed(choice, counts, clusters)
        if recomputed != (offered if count == ALL_OCCURRENCES else count):
            asked = "all" if count == ALL_OCCURRENCES else str(count)
            yield f"{write_row(choice, count)} asks for {asked} of {offered}; ORT recomputes {recomputed}"


def _explain_worthless(plans: Sequence[Plan], dims: Mapping[str, int]) -> str:
    found = explain_worthless(plans, dims)
    return f"{found} {NEVER_RECOMPUTED}" if found else ""


LEVEL_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
CONFIG_VARIABLE = "ORTMODULE_MEMORY_OPT_CONFIG"
PROBE_VARIABLE = "AUTORECOMPUTE_ORT_PROBE"
"""Ours: a probe config for chosen plans, where ORTModule is adapted (``adapter.py``)."""

MEMORY_VARIABLES = (LEVEL_VARIABLE, CONFIG_VARIABLE, PROBE_VARIABLE)
"""Variables that decide about recompute in ORTModule; one of them left over from elsewhere changes the training."""

IGNORING_LAYERS, WITHIN_LAYERS = "1:0", "1:1"
"""ORT's probe configs: all recomputable operators, without or with regard to transformer layer boundaries."""

OLDEST_VERSION, NEWEST_VERSION = (1, 17), (1, 19)
FIRST_VERSION_WITH_COMPROMISE_LEVEL = (1, 18)
FIRST_VERSION_WITH_FILE = (1, 19)

LONGEST_COMMA_STRING = 2048
"""Characters that a session option of ONNX Runtime holds."""

PLANS_FILE = "plans.json"
PROBE_NOTE = (
    "not ONNX Runtime's own: other nodes are recomputed unless the script is started with 'autorecompute run', "
    "or imports autorecompute.compat before ORTModule"
)

LAYER_BOUNDARIES = Knob(
    name="layer_boundaries",
    variables={PROBE_VARIABLE: WITHIN_LAYERS},
    effect="what is recomputed ends at the boundaries of transformer layers, as under ORT's levels",
    needs="ORT finds boundaries (pre-LN models)",
)
MEM_EFFICIENT_GRADIENTS = Knob(
    name="mem_efficient_gradients",
    variables={"ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": "1"},
    effect="each gradient leaves ORT's memory as soon as it is known",
    needs="1.17 and 1.18, with support for custom autograd functions",
)
NO_MODEL_COPY = Knob(
    name="no_model_copy",
    variables={"ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": "0"},
    effect="the model is exported itself, not a copy of it: less memory at the first step",
)
KNOBS = (LAYER_BOUNDARIES, MEM_EFFICIENT_GRADIENTS, NO_MODEL_COPY)


def probe_config_of(level: Level, environment: Mapping[str, str]) -> str:
    """Return the way in which ORT looks for plans under a level; an adapted process obeys a variable of ours."""
    return (environment.get(PROBE_VARIABLE) or IGNORING_LAYERS) if level is Level.CHOSEN else WITHIN_LAYERS


def render(config: Config, *, knobs: Collection[str] = (), versions: Mapping[str, str], folder: Path) -> Emission:
    """Render the config and the knobs of these names; nothing where neither changes anything.

    Raises:
        SetupError: that version of ONNX Runtime reads no config of this form.
        UsageError: the config cannot be written for it, or there is no knob of one of these names.
    """
    plans_file = folder.absolute() / PLANS_FILE
    given = environment_for(config, knobs=knobs, ort_version=versions.get("onnxruntime", ""), plans_file=plans_file)
    variables = {**given, **allocator_of(versions)}
    has_file = variables.get(CONFIG_VARIABLE) == str(plans_file)
    notes = {"plans file": "must be readable under the same path wherever the script trains"} if has_file else {}
    if PROBE_VARIABLE in variables:
        notes[PROBE_VARIABLE] = PROBE_NOTE
    return Emission(variables=variables, files={plans_file: plans_file_text(config)} if has_file else {}, notes=notes)


def environment_for(
    config: Config, *, knobs: Collection[str] = (), ort_version: str, plans_file: Path
) -> dict[str, str]:
    """Return the variables that switch the config and the knobs of these names on; none where neither changes anything.

    Args:
        config: What to recompute.
        knobs: Names among ``KNOBS``.
        ort_version: ``onnxruntime.__version__`` of the environment that trains.
        plans_file: Where the caller keeps ``plans_file_text(config)``; ONNX Runtime 1.19 is given its absolute path.

    Raises:
        SetupError: that version reads no config of this form.
        UsageError: the config cannot be written for that version, or there is no knob of one of these names.
    """
    given = give(config, ort_version, plans_file)
    level = {LEVEL_VARIABLE: str(int(given.level))} if given.level is not Level.CHOSEN else {}
    plans = {CONFIG_VARIABLE: given.plans} if given.plans else {}
    return {**level, **plans, **_knob_variables(knobs)}


def levels_of(ort_version: str) -> tuple[Level, ...]:
    """Return the levels that this version has.

    Raises:
        SetupError: that version reads no recompute plans of any form.
    """
    has_compromise = _parse_version(ort_version) >= FIRST_VERSION_WITH_COMPROMISE_LEVEL
    return tuple(level for level in Level if has_compromise or level is not Level.LAYERWISE_WITH_COMPROMISE)


class Given(NamedTuple):
    """Settings of ORTModule for a config, be it by variables or in the options of a live one.

    Attributes:
        level: ORT's level.
        plans: The path of the plans file, or the plans themselves; empty where there are none.
    """

    level: Level
    plans: str


def give(config: Config, ort_version: str, plans_file: Path) -> Given:
    """Return the settings of that version's ORTModule for a config.

    Args:
        config: What to recompute.
        ort_version: ``onnxruntime.__version__`` of the environment that trains.
        plans_file: Where the caller keeps ``plans_file_text(config)``; ONNX Runtime 1.19 is given its absolute path.

    Raises:
        SetupError: that version reads no config of this form.
        UsageError: the config cannot be written for that version.
    """
    level, has_plans = level_of(config), bool(rows_of(config))
    if level not in levels_of(ort_version):
        raise UsageError("ONNX Runtime 1.17 has no recompute level 2. Use level 1, or ONNX Runtime 1.18 or 1.19.")
    if has_plans and _parse_version(ort_version) >= FIRST_VERSION_WITH_FILE:
        return Given(level, str(plans_file.absolute()))
    return Given(level, _join_rows(config))


def _knob_variables(names: Collection[str]) -> dict[str, str]:
    if strangers := sorted(set(names) - {knob.name for knob in KNOBS}):
        raise UsageError(f"This autorecompute knows no setting '{strangers[0]}'. Tune again with --knobs.")
    return {name: value for knob in KNOBS if knob.name in names for name, value in knob.variables.items()}


def requested_by(environment: Mapping[str, str], *, ort_version: str) -> Request:
    """Read the variables as ONNX Runtime does: the last of several rows for one subgraph counts.

    Raises:
        UsageError: they hold what ONNX Runtime of that version cannot read.
    """
    level_text, text = environment.get(LEVEL_VARIABLE, "0"), environment.get(CONFIG_VARIABLE, "")
    if level_text not in {str(int(level)) for level in Level}:
        raise UsageError(f"{LEVEL_VARIABLE} is '{level_text}'. Set it to 0, 1 or 2, or unset it.")
    level = Level(int(level_text))
    if level is not Level.CHOSEN or not text:
        return Request(level=level)
    listed = _read_plans_file(Path(text)) if _parse_version(ort_version) >= FIRST_VERSION_WITH_FILE else [text]
    by_subgraph = {}
    for row in filter(None, ",".join(listed).split(",")):
        choice, count = read_request(row)
        by_subgraph[choice.site] = (choice, count)
    return Request(level=level, counts=dict(by_subgraph.values()))


def offer(detection: Detection, environment: Mapping[str, str], dims: Mapping[str, int]) -> Offer:
    """Return ORT's offer at these dimensions, and the plans that these variables switch on.

    Raises:
        UsageError: they hold what ONNX Runtime of that version cannot read.
    """
    request = requested_by(environment, ort_version=detection.versions["onnxruntime"])
    return make_offer(detection, request, probe_config_of(request.level, environment), dims)


def memory_model(space: Space, small: StepProfiles) -> MemoryModel:
    """Peaks of every config, from profiled small steps."""
    from autorecompute.backends.ortmodule.memory import OrtMemoryModel

    return OrtMemoryModel(space, small)


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


def _parse_version(text: str) -> tuple[int, ...]:
    version = parse_release(text)
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise SetupError(
            f"ONNX Runtime {printable(text, '') or '(unknown)'} takes no recompute plans of this form, only 1.17 to "
            "1.19 do. Install onnxruntime-training 1.19.2."
        )
    return version


def _join_rows(config: Config) -> str:
    joined = ",".join(rows_of(config))
    if not joined.isprintable():
        raise UsageError("A plan has a character in its name that no variable can hold. Nothing was written.")
    if len(joined) > LONGEST_COMMA_STRING:
        raise UsageError(
            f"These plans take {len(joined)} characters, and ONNX Runtime 1.17 and 1.18 read {LONGEST_COMMA_STRING} "
            "at most. Use fewer plans, or ONNX Runtime 1.19, which reads them from a file."
        )
    return joined
