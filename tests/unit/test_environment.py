import json
import re
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.controller import (
    CONFIG_VARIABLE,
    LEVEL_VARIABLE,
    LONGEST_COMMA_STRING,
    VARIABLES,
    config_of_level,
    plans_file_text,
    render,
    requested_by,
    rows_of,
    write_row,
)
from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Choice, Config

CONFIG = Config.parse(["Gelu+:1:-1", "Cast+:2:-1"])
LEVEL_1, LEVEL_2 = config_of_level(1), config_of_level(2)
FOLDER = Path("best")
FILE = str(FOLDER.absolute() / "plans.json")


def variables_for(config, version):
    """Returns the text that switches the config on in this version of ORT."""
    return render(config, versions={"onnxruntime": version}, folder=FOLDER).variables


def config_of_length(characters):
    overhead = len(write_row(Choice("", "1")))
    return Config(frozenset({Choice("A" * (characters - overhead), "1")}))


@pytest.mark.parametrize(
    ("version", "config", "environment"),
    [
        *((version, Config(), {}) for version in ("1.17.3", "1.18.0", "1.19.2")),
        *((version, CONFIG, {CONFIG_VARIABLE: FILE}) for version in ("1.19.2", "1.19.0+cu118")),
        *((version, CONFIG, {CONFIG_VARIABLE: ",".join(rows_of(CONFIG))}) for version in ("1.17.3", "1.18.0")),
        *((version, LEVEL_1, {LEVEL_VARIABLE: "1"}) for version in ("1.17.3", "1.18.0", "1.19.2")),
        *((version, LEVEL_2, {LEVEL_VARIABLE: "2"}) for version in ("1.18.0", "1.19.2")),
    ],
)
def test_each_version_gets_what_it_reads(version, config, environment):
    """ORT 1.19 the absolute path of the file, earlier ones the rows themselves; a level by its number."""
    given = variables_for(config, version)
    assert given == environment
    assert set(given) <= set(VARIABLES), "a trial clears every variable that a config can set"


def test_ort_1_17_knows_one_level():
    """Level 2 came with ORT 1.18 and is refused for 1.17, which would recompute nothing."""
    with pytest.raises(UsageError):
        variables_for(LEVEL_2, "1.17.3")


def test_the_longest_comma_string_is_accepted_a_longer_one_refused_and_fits_the_file():
    longest = config_of_length(LONGEST_COMMA_STRING)
    (value,) = variables_for(longest, "1.18.0").values()
    assert len(value) == LONGEST_COMMA_STRING
    with pytest.raises(UsageError, match=r"fewer plans, or ONNX Runtime 1\.19"):
        variables_for(config_of_length(LONGEST_COMMA_STRING + 1), "1.18.0")
    config = config_of_length(10 * LONGEST_COMMA_STRING)
    assert variables_for(config, "1.19.2")
    assert Config.parse(json.loads(plans_file_text(config))) == config


@pytest.mark.parametrize("version", ["1.16.3", "1.20.0", "0.9", "2.0.1", "", "unknown"])
@pytest.mark.parametrize("config", [Config(), CONFIG])
def test_other_versions_are_refused(version, config):
    with pytest.raises(SetupError):
        variables_for(config, version)


@pytest.mark.parametrize("version", ["1.17.3", "1.18.0", "1.19.2"])
def test_what_the_variables_ask_for_is_read_as_ort_reads_it(tmp_path, version):
    file = tmp_path / "plans.json"
    file.write_text(json.dumps(["Gelu+:1:2,Cast+:1:-1", "Cast+:2:-1", ""]))
    text = str(file) if version >= "1.19" else "Gelu+:1:2,Cast+:1:-1,Cast+:2:-1"
    request = requested_by({"ORTMODULE_MEMORY_OPT_CONFIG": text}, ort_version=version)
    assert request == (0, {Choice("Gelu+", "1"): 2, Choice("Cast+", "2"): -1})


def test_a_level_leaves_the_rows_unread():
    """ORT reads no rows under a level, so they may be anything."""
    variables = {"ORTMODULE_MEMORY_OPT_LEVEL": "2", "ORTMODULE_MEMORY_OPT_CONFIG": "/nowhere"}
    request = requested_by(variables, ort_version="1.19.2")
    assert request == (2, {})


@pytest.mark.parametrize(
    ("variables", "content", "words"),
    [
        ({"ORTMODULE_MEMORY_OPT_LEVEL": "3"}, "", "'3'"),
        ({}, None, "cannot be read"),
        ({}, "Gelu+:1:-1", "cannot be read"),
        ({}, "{}", "no JSON array"),
        ({}, "[1]", "no JSON array"),
        ({}, '["Gelu+"]', "'Gelu+'"),
        ({}, '["Gelu+:1:-5"]', "'Gelu+:1:-5'"),
    ],
)
def test_variables_that_ort_cannot_read_are_refused(tmp_path, variables, content, words):
    file = tmp_path / "plans.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        requested_by({"ORTMODULE_MEMORY_OPT_CONFIG": str(file), **variables}, ort_version="1.19.2")
