import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule import controller
from autorecompute.backends.ortmodule.worker import give_here
from autorecompute.backends.registry import render
from autorecompute.emit import RENDERERS
from autorecompute.errors import UsageError
from autorecompute.plans import Config, Space


def plan(key, occurrences=6, saving_bytes=1):
    return controller.make_plan(key, occurrences=occurrences, saving_bytes=saving_bytes, saving="d0")


@pytest.mark.parametrize("text", ["Gelu+:1:-1", "Cast+:2:3", "FusedMatMul+Add+:1:-1"])
def test_a_row_is_written_as_it_was_read(text):
    assert controller.write_row(*controller.read_row(text)) == text


@pytest.mark.parametrize(
    "text", ["", "Gelu+", "Gelu+:1", ":1:-1", "Gelu+:0:-1", "Gelu+:3:-1", "Gelu+:1:-2", "Gelu+:1:", "Gelu+:1:-1:1"]
)
def test_a_row_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=re.escape(f"'{text}' is no recompute plan")):
        controller.read_row(text)


def test_a_compromise_is_told_in_the_label_and_rows_are_what_ort_reads():
    assert plan("Gelu+:1:-1,Cast+:2:-1").label == "Cast+ with Gelu+ (compromise)"
    assert plan("Gelu+:1:-1").label == "Gelu+"
    assert controller.rows_of(Config.parse(["Softmax+:1", "Cast+:2"])) == ["Cast+:2:-1", "Softmax+:1:-1"]
    assert controller.rows_of(controller.config_of_level(1)) == []


@pytest.mark.parametrize("level", controller.LEVELS)
def test_a_level_is_a_config(level):
    assert controller.level_of(controller.config_of_level(level)) == level
    assert controller.config_of_level(level).is_none == (level == controller.CHOSEN)


def test_the_levels_are_sets_of_plans_without_layer_boundaries_and_stay_levels_with_them_where_ort_has_them():
    """Level 1 has no compromise; level 2 has those of subgraphs that cannot be recomputed whole."""
    plans = (plan("Cast+:1:-1"), plan("Gelu+:1:-1"), plan("Cast+:2:-1"), plan("Mul+:2:-1"))
    presets = controller.presets_of(plans, controller.LEVELS, has_boundaries=False)
    assert presets["level_1"] == Config.parse(["Cast+:1", "Gelu+:1"])
    assert presets["level_2"] == Space(plans=plans).all_on == Config.parse(["Cast+:1", "Gelu+:1", "Mul+:2"])
    plans = (plan("Gelu+:1:-1"),)
    space = Space(plans=plans, own_presets=controller.presets_of(plans, controller.LEVELS, has_boundaries=True))
    assert len(set(space.presets.values())) == 4
    assert space.describe(controller.config_of_level(1)) == "level 1"
    presets = controller.presets_of((plan("Gelu+:1:-1"),), controller.levels_of("1.17.3"), has_boundaries=True)
    assert presets == {"level_1": controller.config_of_level(1)}
    assert controller.levels_of("1.18.0") == controller.levels_of("1.19.2") == controller.LEVELS
    less, more = ((plan("Gelu+:1:-1", saving_bytes=size),) for size in (4, 5))
    assert not controller.has_layer_boundaries(less, more)
    assert controller.has_layer_boundaries((plan("Gelu+:1:-1"),), (plan("Gelu+:1:-1", occurrences=5),))


LONG = Config.parse([f"Gelu+{'Add+' * place}:1:-1" for place in range(200)])


def test_a_plans_file_is_whole_whenever_it_is_read(tmp_path):
    """One rank reads it while another, which switches at the same moment, writes it again."""
    file = Path(give_here(LONG, "1.19.2", tmp_path)[1])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [give_here(LONG, "1.19.2", tmp_path) for _ in range(50)])
        while not writing.done():
            assert json.loads(file.read_text()) == controller.rows_of(LONG)
    writing.result()


@pytest.mark.parametrize("version", ["1.17.3", "1.18.0"])
def test_a_live_ortmodule_is_held_to_what_the_variable_holds(tmp_path, version):
    with pytest.raises(UsageError, match="2048 at most"):
        give_here(LONG, version, tmp_path)
    short = Config.parse(["Gelu+:1:-1", "Add+:1:-1"])
    assert give_here(short, version, tmp_path) == (controller.CHOSEN, ",".join(controller.rows_of(short)))
    assert list(tmp_path.iterdir()) == []


CONFIG = Config.parse(["Gelu+:1:-1", "FusedMatMul+Add+:1:-1"])
VERSIONS = {"torch": "2.13.0", "onnxruntime": "1.19.2", "backend": controller.NAME}


@pytest.mark.parametrize(
    ("config", "version"), [(Config(), "1.19.2"), (CONFIG, "1.18.0"), (controller.config_of_level(1), "1.19.2")]
)
def test_variables_without_a_file_need_none(config, version):
    assert render(config, (), {**VERSIONS, "onnxruntime": version}, Path("nowhere")).files == {}


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_a_variable_of_ours_comes_with_what_reads_it(make_result, form):
    result = make_result(CONFIG, versions=VERSIONS)
    text = RENDERERS[form](result, render(CONFIG, ("layer_boundaries",), VERSIONS, Path("/studies/bert/best")))
    lines = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert controller.PROBE_VARIABLE in lines.partition("must not be set")[2].partition("\n")[2]
    assert "autorecompute.compat" in lines
    assert controller.PROBE_VARIABLE not in lines.partition("must not be set: ")[2].partition("\n")[0]
