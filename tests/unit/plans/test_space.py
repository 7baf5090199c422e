import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from autorecompute.errors import UsageError
from autorecompute.plans import Choice, Config, Space
from stand_ins.plans import plan_of_id

TEXTS = ["h.*.mlp:checkpoint", "h.*.attn:keep_matmul", "h.*.mlp/gelu:drop:3", "softmax:drop"]


def make_plan(text, occurrences=6, *, counts=False):
    return replace(plan_of_id(text), occurrences=occurrences, counts=counts)


BLOCK, MLP, GELU = (
    make_plan("h.*:checkpoint", counts=True),
    make_plan("h.*.mlp:checkpoint", counts=True),
    make_plan("h.*.mlp/gelu:drop"),
)
NORM = make_plan("h.*.norm:drop", occurrences=12)
NESTED = Space(
    plans=(GELU, NORM, MLP, BLOCK),
    covers={"h.*": ("h.*.mlp", "h.*.mlp/gelu", "h.*.norm"), "h.*.mlp": ("h.*.mlp/gelu",)},
)


def test_a_choice_is_written_as_it_was_read_and_neither_a_plan_nor_a_config_depends_on_the_order():
    assert [str(Choice.parse(text)) for text in TEXTS] == TEXTS
    # Other systems write all occurrences that way.
    assert Choice.parse("gelu:drop:-1") == Choice("gelu", "drop")
    plan = plan_of_id("gelu:drop,cast:keep_half,gelu:drop")
    assert plan.id == plan_of_id("cast:keep_half,gelu:drop").id == "cast:keep_half,gelu:drop"
    assert plan_of_id(plan.id) == plan
    configs = {Config.parse(order) for order in itertools.permutations(TEXTS)}
    assert len(configs) == 1
    assert {config.hash for config in configs} == {Config.parse(TEXTS).hash}
    assert Config.parse(Config.parse(TEXTS).texts) == Config.parse(TEXTS)


@pytest.mark.parametrize("text", ["", "gelu", ":1", "gelu:drop:", "gelu:drop:-1:1", "gelu:drop:-2", "gelu:drop:x"])
def test_a_choice_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=re.escape(f"'{text}' is no choice")):
        Choice.parse(text)


def test_a_hash_is_the_same_in_every_process_and_another_for_every_config():
    """Two interpreters with other seeds for their own hashes agree on a config's, which is how a study is resumed."""
    program = f"from autorecompute.plans import Config; print(Config.parse({TEXTS}).hash)"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        assert printed.strip() == Config.parse(TEXTS).hash
    subsets = [Config.parse(texts) for n in range(5) for texts in itertools.combinations(TEXTS, n)]
    others = [Config.parse([text]) for text in ("h.*.mlp:keep_matmul", "h.*.mlp:checkpoint:2", "h.*.mlp:checkpoint:3")]
    assert len({config.hash for config in subsets + others}) == len(subsets) + len(others) == 19


def test_one_site_is_recomputed_in_one_way():
    for texts in (["cast:drop", "cast:keep_half"], ["h.*:checkpoint", "h.*:checkpoint:2"]):
        with pytest.raises(UsageError, match="one way"):
            Config.parse(texts)
    with pytest.raises(ValueError, match="one way"):
        Config(frozenset({Choice("cast", "drop"), Choice("cast", "keep_half")}))


def test_switching_a_plan_on_replaces_what_excludes_it_and_off_leaves_the_others():
    """Half of a joint plan is not the plan."""
    part = make_plan("cast:keep_half")
    space = Space(plans=(make_plan("cast:drop"), part, make_plan("gelu:drop")))
    assert space.with_plan(Config.parse(["cast:drop", "gelu:drop"]), part) == Config.parse(
        ["cast:keep_half", "gelu:drop"]
    )
    assert NESTED.with_plan(Config.of([GELU, NORM]), MLP) == Config.of([MLP, NORM])
    assert NESTED.with_plan(Config.of([MLP, NORM]), BLOCK) == Config.of([BLOCK])
    joint, softmax = make_plan("cast:keep_half,gelu:drop"), make_plan("softmax:drop")
    config, half = Config.of([joint, softmax]), Config.parse(["gelu:drop"])
    without = config.without_plan(joint)
    assert config.has(joint)
    assert not without.has(joint)
    assert without == Config.of([softmax]) == without.without_plan(joint)
    assert without.without_plan(softmax).is_none
    assert not half.has(joint)
    assert Space(plans=(joint, softmax)).describe(half) != ""


def test_a_plan_is_on_at_some_of_its_occurrences_and_has_no_needless_count():
    config = NESTED.with_plan(Config(), BLOCK, 2)
    assert config.texts == ["h.*:checkpoint:2"]
    assert (config.count_of(BLOCK), config.share_of(BLOCK)) == (2, 2 / 6)
    assert config.has(BLOCK)
    assert NESTED.with_plan(config, BLOCK, 5).texts == ["h.*:checkpoint:5"]
    assert NESTED.with_plan(config, BLOCK, 6) == NESTED.with_plan(config, BLOCK) == Config.of([BLOCK])
    assert config.without_plan(BLOCK).is_none
    config = Config.parse(["h.*.mlp:checkpoint:6", "h.*.norm:drop:0"])
    assert NESTED.normalize(config) == Config.of([MLP])
    assert NESTED.normalize(Config.parse(["h.*:checkpoint:3"])).texts == ["h.*:checkpoint:3"]


def test_an_opaque_preset_is_no_mix_of_plans_and_all_on_prefers_what_comes_first():
    plans = [make_plan("cast:drop"), make_plan("cast:keep_half"), make_plan("gelu:drop")]
    assert Space(plans=tuple(plans)).all_on == Config.parse(["cast:drop", "gelu:drop"])
    assert Space(plans=tuple(reversed(plans))).all_on == Config.parse(["cast:keep_half", "gelu:drop"])
    assert NESTED.all_on == Config.of([GELU, NORM])
    opaque = Config.parse(["the system's own:2"])
    space = Space(plans=(GELU, NORM), own_presets={"half_of_it": Config.of([GELU]), "by_itself": opaque})
    assert list(space.presets) == ["none", "half_of_it", "by_itself", "all_on"]
    assert space.opaque_presets == {"by_itself": opaque}
    assert not space.is_mix(opaque)
    assert space.is_mix(space.all_on)
    assert space.describe(opaque) == "by itself"


def test_a_config_is_described_by_the_fewer_of_its_plans_by_what_covers_others_and_by_counts():
    plans = tuple(make_plan(f"Node{index}+:1") for index in range(8))
    space = Space(plans=plans)
    assert space.describe(Config()) == "none"
    assert space.describe(space.all_on) == "all plans"
    assert space.describe(Config.of(plans[:2])) == f"{plans[0].label} and {plans[1].label}"
    assert space.describe(space.all_on.without_plan(plans[3])) == f"all but {plans[3].label}"
    half = Config.of(plans[:4])
    assert space.describe(half).startswith("4 of 8 plans")
    assert space.describe(half) != space.describe(Config.of(plans[4:]))
    # An option that gave way to another one of its site is not missing.
    names = ("cast:drop", "cast:keep_half", "gelu:drop", "softmax:drop", "dropout:drop")
    space = Space(plans=tuple(map(make_plan, names)))
    assert space.describe(space.all_on.without_plan(space.plans[2])) == "all but gelu"
    parts = [make_plan(f"h.*.part{number}:drop") for number in range(3)]
    space = Space(plans=(BLOCK, *parts), covers={"h.*": tuple(site for part in parts for site in part.sites)})
    assert space.describe(space.all_on) == "h.*"
    assert space.describe(Config.of(parts)).startswith("3 of 4 plans")
    assert NESTED.describe(NESTED.with_plan(Config.of([NORM]), MLP, 4)) == "h.*.norm and 4 of 6 h.*.mlp"


def test_every_config_has_a_description_of_its_own_up_to_five_plans(make_space, list_configs):
    space = make_space()
    descriptions = {space.describe(config) for config in list_configs(space)}
    assert len(descriptions) == 2**5
    assert "" not in descriptions
