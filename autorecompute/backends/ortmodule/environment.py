"""The plans of ONNX Runtime's memory optimizer, and the environment variables that switch them on."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from autorecompute import codec
from autorecompute.backends.ortmodule.installation import parse_release
from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Choice, Cluster, Config, Offer, Plan, saving_of
from autorecompute.plans.savings import explain_worthless
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autorecompute.training_job import Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtDetection:
    """The part of a detection that only ORT has.

    Attributes:
        layer_plans: Plans within the boundaries of transformer layers, which the levels switch on.
        layer_clusters: The activations that those are about.
        features: Optional parts that ORT has here, and its model needs, by their names there.
    """

    layer_plans: tuple[Plan, ...] = ()
    layer_clusters: tuple[Cluster, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, detection: Detection) -> Self:
        """Return that part of a detection."""
        return codec.from_plain(detection.extra, cls)


CUSTOM_AUTOGRAD = "custom_autograd"
"""The feature of a detection that ORTModule's support for custom autograd functions is on."""


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


CHOSEN = 0
"""Level 0 of ORT's ``ORTMODULE_MEMORY_OPT_LEVEL``: plans are chosen one by one. A higher one takes all of them within
each transformer layer, level 2 with the compromises."""

LEVELS = (CHOSEN, 1, 2)


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
    """Return the plans that ORT offers under what the environment switches on, and what it would recompute.

    Args:
        detection: The plans that were found.
        level: ORT's level; one above 0 leaves the plans unread.
        asked: Each choice with the occurrences it is asked for, -1 for all.
        probe_config: ORT's words for how it looks for plans under the level.
        dims: The dimensions at which the plans are weighed.
    """
    is_chosen = level == CHOSEN
    # ORT says that its memory optimizer is on even where it knows none of the plans.
    is_on = not is_chosen or bool(asked)
    extra = OrtDetection.of(detection)
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

    That is for variables, or for the options of a live ORTModule. ONNX Runtime 1.19 is given the absolute path at which
    the caller keeps ``plans_file_text(config)``.

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
    """Read the level and the plans, each with its count, as ORT does: the last of several rows for a subgraph counts.

    Raises:
        UsageError: they hold what ONNX Runtime of that version cannot read.
    """
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


def _parse_version(text: str) -> tuple[int, ...]:
    version = parse_release(text)
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise SetupError(
            f"ONNX Runtime {printable(text, '') or '(unknown)'} takes no recompute plans of this form, only 1.17 to "
            "1.19 do. Install onnxruntime-training 1.19.2."
        )
    return version
