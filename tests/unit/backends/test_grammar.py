"""How ORT writes plans, and what its levels are as configs."""

import re

import pytest

from autorecompute.backends.ortmodule.environment import levels_of
from autorecompute.backends.ortmodule.extra import has_layer_boundaries
from autorecompute.backends.ortmodule.grammar import (
    Level,
    config_of_level,
    level_of,
    make_plan,
    presets_of,
    read_row,
    rows_of,
    write_row,
)
from autorecompute.errors import UsageError
from autorecompute.plans import Config, Space


def plan(key, occurrences=6, saving_bytes=1):
    """A plan by ORT's key."""
    return make_plan(key, occurrences=occurrences, saving_bytes=saving_bytes, saving="d0")


@pytest.mark.parametrize("text", ["Gelu+:1:-1", "Cast+:2:-1", "FusedMatMul+Add+:1:-1"])
def test_a_row_is_written_as_it_was_read(text):
    """Reading and writing a row loses nothing."""
    assert write_row(read_row(text)) == text


@pytest.mark.parametrize(
    "text", ["", "Gelu+", "Gelu+:1", ":1:-1", "Gelu+:0:-1", "Gelu+:3:-1", "Gelu+:1:2", "Gelu+:1:", "Gelu+:1:-1:1"]
)
def test_a_row_of_another_form_is_refused(text):
    """A missing part, another option and a count that ORT cannot keep are told with the row in the sentence."""
    with pytest.raises(UsageError, match=re.escape(f"'{text}' is no recompute plan")):
        read_row(text)


def test_a_compromise_is_told_in_the_label():
    """The strongest compromise among the choices of a joint plan names it."""
    assert plan("Gelu+:1:-1,Cast+:2:-1").label == "Cast+ with Gelu+ (compromise)"
    assert plan("Gelu+:1:-1").label == "Gelu+"


def test_rows_of_a_config_are_what_ort_reads():
    """Sorted, with all occurrences; a level has none of its own."""
    assert rows_of(Config.parse(["Softmax+:1", "Cast+:2"])) == ["Cast+:2:-1", "Softmax+:1:-1"]
    assert rows_of(config_of_level(Level.LAYERWISE)) == []


@pytest.mark.parametrize("level", list(Level))
def test_a_level_is_a_config(level):
    """Each level is told from its config again, and level 0 is no recompute."""
    assert level_of(config_of_level(level)) is level
    assert config_of_level(level).is_none == (level is Level.CHOSEN)


def test_without_layer_boundaries_the_levels_are_sets_of_plans():
    """Level 1 leaves out the plans that are a compromise, level 2 has them; both are measured as what they are."""
    presets = presets_of((plan("Gelu+:1:-1"), plan("Cast+:2:-1")), Level, has_boundaries=False)
    assert presets["level_1"] == Config.parse(["Gelu+:1"])
    assert presets["level_2"] == Config.parse(["Gelu+:1", "Cast+:2"])


def test_without_layer_boundaries_level_2_prefers_whole_recompute():
    """Where a subgraph comes with both options, it is recomputed whole, as with all plans on."""
    plans = (plan("Cast+:1:-1"), plan("Gelu+:1:-1"), plan("Cast+:2:-1"))
    presets = presets_of(plans, Level, has_boundaries=False)
    assert presets["level_2"] == Space(plans=plans).all_on == Config.parse(["Cast+:1", "Gelu+:1"])


def test_with_layer_boundaries_the_levels_stay_levels():
    """A level is then no set of plans, and goes by its name."""
    plans = (plan("Gelu+:1:-1"),)
    space = Space(plans=plans, own_presets=presets_of(plans, Level, has_boundaries=True))
    assert len(set(space.presets.values())) == 4
    assert space.describe(config_of_level(Level.LAYERWISE)) == "level 1"


def test_a_level_that_ort_does_not_have_is_not_offered():
    """ORT 1.17 has no level 2, which later versions have."""
    presets = presets_of((plan("Gelu+:1:-1"),), levels_of("1.17.3"), has_boundaries=True)
    assert presets == {"level_1": config_of_level(Level.LAYERWISE)}
    assert levels_of("1.18.0") == levels_of("1.19.2") == tuple(Level)


def test_boundaries_do_not_depend_on_stated_savings():
    """A saving that ORT states differently between two looks is no layer boundary; other nodes are one."""
    assert not has_layer_boundaries((plan("Gelu+:1:-1", saving_bytes=4),), (plan("Gelu+:1:-1", saving_bytes=5),))
    assert has_layer_boundaries((plan("Gelu+:1:-1"),), (plan("Gelu+:1:-1", occurrences=5),))
