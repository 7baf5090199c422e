"""The variables that make an unmodified ORTModule script train with a config and knobs, by version of ONNX Runtime.

Imports neither torch nor ONNX Runtime: the controller, which has neither, asks for them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.interface import Emission, Knob
from autorecompute.backends.ortmodule.already_on import Request, make_offer
from autorecompute.backends.ortmodule.distributions import parse_release
from autorecompute.backends.ortmodule.grammar import Level, level_of, read_request, rows_of
from autorecompute.errors import SetupError, UsageError
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autorecompute.memory import MemoryModel, StepProfiles
    from autorecompute.plans import Config, Offer, Space
    from autorecompute.training_job import Detection

LEVEL_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
CONFIG_VARIABLE = "ORTMODULE_MEMORY_OPT_CONFIG"
PROBE_VARIABLE = "AUTORECOMPUTE_ORT_PROBE"
"""Ours: a probe config for chosen plans, where ORTModule is adapted (``probe.py``)."""

MEMORY_VARIABLES = (LEVEL_VARIABLE, CONFIG_VARIABLE, PROBE_VARIABLE)
"""What decides about recompute in ORTModule; one of them left over from elsewhere changes what is trained."""

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
EXPANDABLE_SEGMENTS = Knob(
    name="expandable_segments",
    variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    effect="torch's allocator, ORT's too on CUDA, grows its segments: less is lost to fragments",
    needs="CUDA, torch 2.1",
)
KNOBS = (LAYER_BOUNDARIES, MEM_EFFICIENT_GRADIENTS, NO_MODEL_COPY, EXPANDABLE_SEGMENTS)


def probe_config_of(level: Level, environment: Mapping[str, str]) -> str:
    """Return how ORT looks for plans under a level, and in an adapted process under a variable of ours."""
    return (environment.get(PROBE_VARIABLE) or IGNORING_LAYERS) if level is Level.CHOSEN else WITHIN_LAYERS


def render(config: Config, *, knobs: Collection[str] = (), versions: Mapping[str, str], folder: Path) -> Emission:
    """Return what switches the config and the knobs of these names on; nothing where neither changes anything.

    Raises:
        SetupError: that version of ONNX Runtime reads no config of this form.
        UsageError: the config cannot be written for it, or there is no knob of one of these names.
    """
    plans_file = folder.absolute() / PLANS_FILE
    variables = environment_for(config, knobs=knobs, ort_version=versions.get("onnxruntime", ""), plans_file=plans_file)
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
    """What ORTModule is given for a config, be it by variables or in the options of a live one.

    Attributes:
        level: ORT's level.
        plans: The path of the plans file, or the plans themselves; empty where there are none.
    """

    level: Level
    plans: str


def give(config: Config, ort_version: str, plans_file: Path) -> Given:
    """Return what ORTModule of that version is given for a config.

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
    """Return what the variables ask for, as ONNX Runtime reads them: the last of several rows for one subgraph counts.

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
    """Return what ORT offers to recompute at these dimensions, under what these variables switch on.

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
    """Return what ONNX Runtime 1.19 reads from the file: a JSON array with one row to a line."""
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
