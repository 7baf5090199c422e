import json
from pathlib import Path

from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.units import MIB

PLANS_VARIABLE = "FAKE_PLANS"

BLOCKS = 12
CHECKPOINT, KEEP_MATMUL, GELU, NORM, HEAD = (
    Plan(
        choices=(Choice(site, option),),
        label=f"{site} {option}",
        occurrences=1 if site == "head" else BLOCKS,
        counts=site != "head",
        saving_bytes=32 * saving,
        saving=f"{saving}*batch",
    )
    for site, option, saving in (
        ("blocks.*", "checkpoint", 14 * MIB),
        ("blocks.*", "keep_matmul", 9 * MIB),
        ("blocks.*/gelu", "drop", 6 * MIB),
        ("blocks.*/norm", "drop", 3 * MIB),
        ("head", "drop", MIB),
    )
)
SPACE = Space(
    plans=(CHECKPOINT, KEEP_MATMUL, GELU, NORM, HEAD),
    own_presets={
        "blocks": Config.of([CHECKPOINT]),
        "every_2nd_block": Config(frozenset(CHECKPOINT.chosen(BLOCKS // 2))),
    },
    covers={"blocks.*": ("blocks.*/gelu", "blocks.*/norm")},
)


def read_config(environment):
    if (path := environment.get(PLANS_VARIABLE)) is None:
        return Config()
    plain = json.loads(Path(path).read_text())
    return Config(frozenset(Choice(site, chosen["how"], chosen["first"]) for site, chosen in plain.items()))
