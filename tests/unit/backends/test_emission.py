from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.controller import NAME, PROBE_VARIABLE, config_of_level
from autorecompute.backends.registry import render
from autorecompute.emit import RENDERERS
from autorecompute.plans import Config

CONFIG = Config.parse(["Gelu+:1:-1", "FusedMatMul+Add+:1:-1"])
VERSIONS = {"torch": "2.13.0", "onnxruntime": "1.19.2", "backend": NAME}


@pytest.mark.parametrize(
    ("config", "version"), [(Config(), "1.19.2"), (CONFIG, "1.18.0"), (config_of_level(1), "1.19.2")]
)
def test_variables_without_a_file_need_none(config, version):
    assert render(config, (), {**VERSIONS, "onnxruntime": version}, Path("nowhere")).files == {}


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_a_variable_of_ours_comes_with_what_reads_it(make_result, form):
    result = make_result(CONFIG, versions=VERSIONS)
    text = RENDERERS[form](result, render(CONFIG, ("layer_boundaries",), VERSIONS, Path("/studies/bert/best")))
    lines = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert PROBE_VARIABLE in lines.partition("must not be set")[2].partition("\n")[2]
    assert "autorecompute.compat" in lines
    assert PROBE_VARIABLE not in lines.partition("must not be set: ")[2].partition("\n")[0]
