import dataclasses
import json
import os

import pytest

from autorecompute.errors import UsageError
from autorecompute.plans import Config, Space, choose_config
from stand_ins.plans import plan_of_id


def make_plan(text, *, counts=False):
    return dataclasses.replace(plan_of_id(text), occurrences=6, counts=counts)


MLP, WHOLE, PART = make_plan("h.*.mlp:checkpoint", counts=True), make_plan("h.*:full"), make_plan("h.*:keep")
BLOCKS = Config.parse(["blocks:by the system"])
SPACE = Space(plans=(MLP, WHOLE, PART), own_presets={"all_blocks": BLOCKS}, covers={"h.*": ("h.*.mlp",)})
NUMBERED = (WHOLE, MLP, PART)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("none", Config()),
        ("all", Config.of([MLP])),
        ("all_blocks", BLOCKS),
        ("allblocks", BLOCKS),
        ("2", Config.of([MLP])),
        ("1, 3", Config.of([PART])),
        ("1,2", Config.of([MLP])),
    ],
)
def test_a_config_has_a_name(text, config):
    assert choose_config(text, SPACE, NUMBERED) == config


def test_a_file_of_plans_names_a_config(tmp_path):
    file = tmp_path / "plans.json"
    file.write_text(json.dumps(["h.*.mlp:checkpoint:6"]))
    assert choose_config(str(file), SPACE, NUMBERED) == Config.of([MLP])


@pytest.mark.parametrize("text", ["4", "0", "1,9"])
def test_a_number_without_a_plan_is_refused(text):
    with pytest.raises(UsageError, match="from 1 to 3"):
        choose_config(text, SPACE, NUMBERED)


@pytest.mark.parametrize("content", [None, "{}", "[1]", "not json", '["blocks.*/tanh:drop"]', "[" * 100_000, "\udcff"])
def test_a_file_without_a_config_is_refused_and_a_pipe_that_nobody_writes_not_waited_for(tmp_path, content):
    file = tmp_path / "plans.json"
    if content is not None:
        file.write_text(content, errors="surrogateescape")
    with pytest.raises(UsageError, match=r"plans\.json|tanh"):
        choose_config(str(file), SPACE, NUMBERED)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a pipe"):
        choose_config(str(tmp_path / "pipe"), SPACE, NUMBERED)


@pytest.mark.parametrize("text", ["9" * 5000, "n" * 300])
def test_what_is_neither_a_number_nor_a_file_is_refused(text):
    with pytest.raises(UsageError, match=r"numbers of plans") as refused:
        choose_config(text, SPACE, NUMBERED)
    assert len(str(refused.value)) < 300
