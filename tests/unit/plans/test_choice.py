"""Configs as they are named on a command line."""

from __future__ import annotations

import json
import os

import pytest

from autorecompute.errors import UsageError
from autorecompute.plans import Config, Level, Plan, Space
from autorecompute.plans.choice import choose_config


def make_plan(key, frequency=1):
    """A plan with nothing but a name."""
    return Plan.parse(key, frequency=frequency, saving_bytes=1, saving_symbolic="1")


GELU, CAST, WIDE = make_plan("Gelu+:1:-1"), make_plan("Cast+:2:-1"), make_plan("Cast+:1:-1")
SPACE = Space(plans=(GELU, CAST, WIDE), layer_plans=(make_plan("Gelu+:1:-1", frequency=9),))
NUMBERED = (WIDE, GELU, CAST)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("none", Config()),
        ("all", Config.of([GELU, WIDE])),
        ("level1", Config(level=Level.LAYERWISE)),
        ("level2", Config(level=Level.LAYERWISE_WITH_COMPROMISE)),
        ("2", Config.of([GELU])),
        ("1, 2", Config.of([GELU, WIDE])),
        ("1,3", Config.of([CAST])),
    ],
)
def test_a_config_has_a_name(text, config):
    """Presets go by their names and plans by their numbers; of two options for one subgraph the last counts."""
    assert choose_config(text, SPACE, NUMBERED) == config


def test_a_file_of_plans_names_a_config(tmp_path):
    """What ``emit`` wrote, or a user by hand, is read as ORT reads it."""
    file = tmp_path / "plans.json"
    file.write_text(json.dumps(["Gelu+:1:-1"]))
    assert choose_config(str(file), SPACE, NUMBERED) == Config.of([GELU])


@pytest.mark.parametrize("text", ["4", "0", "1,9"])
def test_a_number_without_a_plan_is_refused(text):
    """The sentence says how the plans are numbered."""
    with pytest.raises(UsageError, match="from 1 to 3"):
        choose_config(text, SPACE, NUMBERED)


@pytest.mark.parametrize("content", [None, "{}", "[1]", "not json", '["Tanh+:1:-1"]', "[" * 100_000, "\udcff"])
def test_a_file_without_a_config_is_refused(tmp_path, content):
    """A file that is missing, holds something else or plans of another graph ends in a sentence that names it."""
    file = tmp_path / "plans.json"
    if content is not None:
        file.write_text(content, errors="surrogateescape")
    with pytest.raises(UsageError, match=r"plans\.json|Tanh\+"):
        choose_config(str(file), SPACE, NUMBERED)


@pytest.mark.parametrize("text", ["9" * 5000, "n" * 300])
def test_what_is_neither_a_number_nor_a_file_is_refused(text):
    """The sentence says what there can be, and does not repeat all of it."""
    with pytest.raises(UsageError, match=r"level1, level2, numbers of plans") as refused:
        choose_config(text, SPACE, NUMBERED)
    assert len(str(refused.value)) < 300


def test_a_pipe_that_nobody_writes_is_not_waited_for(tmp_path):
    """It is refused as a file of plans."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a pipe"):
        choose_config(str(tmp_path / "pipe"), SPACE, NUMBERED)
