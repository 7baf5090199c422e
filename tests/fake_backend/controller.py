import json
from pathlib import Path

from autorecompute.backends.interface import Emission, Knob
from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Config, Offer
from autorecompute.plans.savings import evaluate
from fake_backend.memory import LinearMemory
from fake_backend.space import PLANS_VARIABLE, read_config

NAME = "fake"
MODE_VARIABLE = "FAKE_MODE"
VARIABLES = (PLANS_VARIABLE, MODE_VARIABLE)
USED_BY = "fake"
USUAL_PRESET = ""
READ_BY = "a script that reads the plans itself"
CACHE_VARIABLES = ("FAKE_CACHE",)
TRIAL_VARIABLES = {"FAKE_STRICT": "1"}
CROSSING = "plans that may cross a block"  # under which a detection lists the ids of such plans


def why_not_whole(config, detection):
    return f"nothing is recomputed on {detection.device.name}" if config.is_none else ""


def plans_of_whole(detection):
    return [plan for plan in detection.plans if plan.id in detection.extra.get(CROSSING, (plan.id,))]


KNOBS = (
    Knob(name="fused_kernels", variables={"FAKE_FUSED": "1"}, effect="neighbouring operations run as one"),
    Knob(
        name="whole_graph",
        variables={MODE_VARIABLE: "whole"},
        effect="plans cross blocks",
        needs="a model with blocks",
        why_not=why_not_whole,
        plans=plans_of_whole,
    ),
)
HINTS = (Knob(name="lazy", variables={"FAKE_LAZY": "1"}, effect="nothing is computed before it is read"),)
REPAIR = ""

OLDEST_VERSION = 2  # that reads a file
PLANS_FILE = "plans.json"
FILE_NOTE = "must lie where it was written"
IMPORT_HOOK = "before fake fake_backend.controller:start plans are not read"


def takes_turns(_detection):
    return False


def render(config, *, knobs=(), versions, folder, lengths=None):
    del lengths
    text = versions.get(NAME, "")
    if not text.split(".")[0].isdecimal() or int(text.split(".")[0]) < OLDEST_VERSION:
        raise SetupError(f"Fake {text or '(unknown)'} reads no plans. Install fake {OLDEST_VERSION}.")
    known = {knob.name: knob for knob in KNOBS}
    if strangers := sorted(set(knobs) - set(known)):
        raise UsageError(f"Fake knows no setting '{strangers[0]}'. Tune again with --knobs.")
    variables = {name: value for knob in KNOBS if knob.name in knobs for name, value in knob.variables.items()}
    if config.is_none:
        return Emission(variables=variables)
    file = folder.absolute() / PLANS_FILE
    return Emission(
        variables={PLANS_VARIABLE: str(file), **variables},
        files={file: plans_text(config)},
        notes={"plans file": FILE_NOTE},
    )


def plans_text(config):
    if strange := [text for text in config.texts if not text.isprintable()]:
        raise UsageError(f"{strange[0]!r} is no site that fake can find. Nothing was written.")
    chosen = sorted(config.choices, key=str)
    return json.dumps({choice.site: {"how": choice.option, "first": choice.count} for choice in chosen}, indent=1)


def script(config, versions):
    raise UsageError(f"Fake {versions[NAME]} takes {config.hash} from a variable alone. Use --format shell.")


def offer(detection, environment, dims):
    config = read_config(environment)
    plans = sorted(detection.plans, key=lambda plan: evaluate(plan.saving, dims) or 0, reverse=True)
    return Offer(plans=tuple(plans), is_on=not config.is_none, config=config)


def unmeasured(config, versions):
    del versions
    return json.dumps({"unmeasured": True, "plans": config.texts})


def planned(environment):
    named = environment.get(PLANS_VARIABLE)
    plain = json.loads(Path(named).read_text()) if named else {}
    return Config.parse(plain["plans"]) if "unmeasured" in plain else None


def needs_of(_detection):
    return lambda _config: frozenset()


def unknown(_detection):
    """Its memory: no forecast is made of that."""


rough_memory_of = peaks_of = memory_of = memory_by_length = unknown


def memory_model(space, small):
    return LinearMemory(space, small)


def start():
    """What an emission has a process call."""
