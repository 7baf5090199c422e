"""Plans, configs and the space they span."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys

import pytest

from autorecompute.errors import UsageError
from autorecompute.plans import Config, Level, Option, Plan, Row, Space

TEXTS = ["Gelu+:1:-1", "Cast+:2:-1", "FusedMatMul+Add+:1:-1", "Softmax+:1:-1"]


def make_plan(key, saving_bytes=1):
    """A plan by its key."""
    return Plan.parse(key, frequency=6, saving_bytes=saving_bytes, saving_symbolic="d0")


@pytest.mark.parametrize("text", TEXTS)
def test_a_row_is_written_as_it_was_read(text):
    """Reading and writing a row loses nothing."""
    assert str(Row.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gelu+",
        "Gelu+:1",
        ":1:-1",
        "Gelu+:0:-1",
        "Gelu+:3:-1",
        "Gelu+:1:2",
        "Gelu+:1:",
        "Gelu+:1:-1:1",
        "Gelu+: 1:-1",
    ],
)
def test_a_row_of_another_form_is_refused(text):
    """A missing part, another option and a count that ORT cannot keep are told with the row in the sentence."""
    with pytest.raises(UsageError, match=re.escape(f"'{text}' is no recompute plan")):
        Row.parse(text)


def test_a_plan_of_several_rows_is_known_by_all_of_them():
    """ORT's joint key is read in any order and with repetitions; the strongest compromise names the plan."""
    plan = make_plan("Gelu+:1:-1,Cast+:2:-1,Gelu+:1:-1")
    assert plan.key == make_plan("Cast+:2:-1,Gelu+:1:-1").key == "Cast+:2:-1,Gelu+:1:-1"
    assert plan.option is Option.RECOMPUTE_WITH_COMPROMISE
    assert make_plan(plan.key) == plan


def test_a_config_does_not_depend_on_the_order_of_its_rows():
    """Every order of the same rows gives equal configs with one hash and one list of texts."""
    configs = {Config.from_rows(order) for order in itertools.permutations(TEXTS)}
    assert len(configs) == 1
    assert {config.hash for config in configs} == {Config.from_rows(TEXTS).hash}
    assert Config.from_rows(Config.from_rows(TEXTS).row_texts) == Config.from_rows(TEXTS)


def test_a_hash_is_the_same_in_every_process():
    """Two interpreters with other seeds for their own hashes agree on a config's, which is how a study is resumed."""
    program = f"from autorecompute.plans import Config; print(Config.from_rows({TEXTS}).hash)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {Config.from_rows(TEXTS).hash}


def test_different_configs_have_different_hashes():
    """Each subset, each option and each level is a config of its own."""
    subsets = [Config.from_rows(rows) for n in range(5) for rows in itertools.combinations(TEXTS, n)]
    others = [Config.from_rows(["Cast+:1:-1"]), Config(level=Level.LAYERWISE), Config(level=Level(2))]
    assert len({config.hash for config in subsets + others}) == len(subsets) + len(others) == 19


def test_one_subgraph_takes_one_option():
    """Both options of a subgraph together are refused, in words where a user wrote them."""
    rows = ["Cast+:1:-1", "Cast+:2:-1"]
    with pytest.raises(UsageError, match="one option"):
        Config.from_rows(rows)
    with pytest.raises(ValueError, match="one option"):
        Config(frozenset(map(Row.parse, rows)))


def test_a_level_takes_no_rows():
    """A level chooses its own rows, so none may stand beside it."""
    with pytest.raises(ValueError, match="level"):
        Config(frozenset({Row.parse(TEXTS[0])}), Level.LAYERWISE)


def test_switching_a_plan_on_replaces_the_other_option():
    """A plan takes the place of another option of its subgraph and leaves the rest."""
    config = Config.from_rows(["Cast+:1:-1", "Gelu+:1:-1"]).with_plan(make_plan("Cast+:2:-1"))
    assert config == Config.from_rows(["Cast+:2:-1", "Gelu+:1:-1"])


def test_switching_a_plan_off_leaves_the_others():
    """All rows of the plan go, and it is off then; switching off what is off changes nothing."""
    joint = make_plan("Cast+:2:-1,Gelu+:1:-1")
    config = Config.of([joint, make_plan("Softmax+:1:-1")])
    without = config.without_plan(joint)
    assert config.has(joint)
    assert not without.has(joint)
    assert without == Config.from_rows(["Softmax+:1:-1"]) == without.without_plan(joint)
    assert Config.of(make_plan(text) for text in without.row_texts).without_plan(make_plan("Softmax+:1:-1")).is_none


def test_half_of_a_joint_plan_is_not_the_plan():
    """A plan of two rows is on only with both."""
    assert not Config.from_rows(["Gelu+:1:-1"]).has(make_plan("Cast+:2:-1,Gelu+:1:-1"))


def test_all_on_prefers_whole_recompute():
    """Where a subgraph comes with both options, all-on takes the one that saves all of it, whatever the order."""
    plans = [make_plan("Cast+:1:-1", 4), make_plan("Cast+:2:-1", 2), make_plan("Gelu+:1:-1", 1)]
    for order in itertools.permutations(plans):
        assert Space(plans=order).all_on == Config.from_rows(["Cast+:1:-1", "Gelu+:1:-1"])


def test_without_layer_boundaries_the_levels_are_sets_of_plans(make_space):
    """In a graph without boundaries level 1 and all-on are one config, so that it is measured once."""
    presets = make_space().presets()
    assert not make_space().has_layer_boundaries
    assert presets["level_1"] == presets["level_2"] == presets["all_on"]
    assert presets["none"].is_none


def test_without_layer_boundaries_level_1_has_no_compromise():
    """Level 1 leaves out the plans that are a compromise, level 2 has them."""
    plans = (make_plan("Gelu+:1:-1"), make_plan("Cast+:2:-1"))
    presets = Space(plans=plans, layer_plans=plans).presets()
    assert presets["level_1"] == Config.from_rows(["Gelu+:1:-1"])
    assert presets["level_2"] == Config.from_rows(["Gelu+:1:-1", "Cast+:2:-1"])


def test_with_layer_boundaries_the_levels_stay_levels(make_space):
    """In a graph with boundaries a level is no set of plans, and all four presets are different configs."""
    space = make_space(layers=("Gelu+",))
    presets = space.presets()
    assert space.has_layer_boundaries
    assert len(set(presets.values())) == 4
    assert presets["level_2"] == Config(level=Level.LAYERWISE_WITH_COMPROMISE)


def test_boundaries_do_not_depend_on_stated_savings():
    """A saving that ORT states differently between two looks is no layer boundary."""
    space = Space(plans=(make_plan("Gelu+:1:-1", 4),), layer_plans=(make_plan("Gelu+:1:-1", 5),))
    assert not space.has_layer_boundaries


@pytest.mark.parametrize("layers", [(), ("Gelu+",)])
def test_canonical_is_final(make_space, layers):
    """The canonical form of a canonical form is itself, for each preset."""
    space = make_space(layers=layers)
    assert all(space.canonical(config) == config for config in space.presets().values())


def test_a_config_is_described_by_the_fewer_of_its_plans(make_space):
    """Few plans are named, few missing ones are named as missing, and in between they are counted."""
    space = make_space()
    plans = space.plans
    assert space.describe(Config()) == "none"
    assert space.describe(space.all_on) == "all plans"
    assert space.describe(Config.of(plans[:2])) == f"{plans[0].name} and {plans[1].name}"
    assert space.describe(space.all_on.without_plan(plans[3])) == f"all but {plans[3].name}"
    assert space.describe(Config(level=Level.LAYERWISE)) == "level 1"
    wide = Space(plans=tuple(make_plan(f"Node{index}+:1:-1") for index in range(8)))
    half = Config.of(wide.plans[:4])
    assert wide.describe(half).startswith("4 of 8 plans")
    assert wide.describe(half) != wide.describe(Config.of(wide.plans[4:]))


def test_every_config_has_a_description_of_its_own_up_to_five_plans(make_space):
    """With five plans no two configs share a description, and none is empty."""
    space = make_space()
    configs = [Config.of(plans) for n in range(6) for plans in itertools.combinations(space.plans, n)]
    descriptions = {space.describe(config) for config in configs}
    assert len(descriptions) == len(configs)
    assert "" not in descriptions


def test_half_of_a_joint_plan_has_a_description():
    """A config of rows that make up no whole plan is still named by something."""
    space = Space(plans=(make_plan("Cast+:2:-1,Gelu+:1:-1"), make_plan("Softmax+:1:-1")))
    assert space.describe(Config.from_rows(["Gelu+:1:-1"])) != ""


def test_an_option_that_gave_way_is_not_missing():
    """All but one plan is called so even where another subgraph's second option cannot be on at the same time."""
    keys = ("Cast+:1:-1", "Cast+:2:-1", "Gelu+:1:-1", "Softmax+:1:-1", "Dropout+:1:-1")
    space = Space(plans=tuple(map(make_plan, keys)))
    config = space.all_on.without_plan(space.plans[2])
    assert space.describe(config) == "all but Gelu+"
