"""Knobs on a real training: a variable of ours reaches ORT, and the outer search tries what there is."""

import json

import pytest

SCRIPT = "pre_norm.py"
BATCH = "192"

ONE_PLAN = "FusedMatMul+Add+:1"
"""Saves 35 MiB here, and little time is lost with it."""

SET_BY_THE_USER = {"ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": "1"}
"""Leaves one knob to be tried, as each takes minutes."""


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory."""
    return make_workplace("knobs")


@pytest.fixture(scope="module")
def all_plans(place, scripts):
    """The variable that switches on every plan of the script's model."""
    looking = ("-m", "autorecompute", "plans", str(scripts / SCRIPT), "--batch", BATCH, "--json", "--", "--bs", BATCH)
    answer = place.finish(place.start(*looking)).answer
    assert answer["presets"]["level_1"] == ["transformer layers:1"], "there are layer boundaries"
    return switch_on(
        place.path / "all.json", [choice for plan in answer["plans"] for choice in plan["config"].split(",")]
    )


def switch_on(file, choices):
    """The variable that has ORT recompute these in all layers."""
    file.write_text(json.dumps(sorted({f"{choice}:-1" for choice in choices})))
    return {"ORTMODULE_MEMORY_OPT_CONFIG": str(file)}


@pytest.fixture(scope="module")
def peaks(place, all_plans):
    """Peaks of plain processes: without recompute, with one plan, with all, and with all ending at layer boundaries."""
    one_plan = switch_on(place.path / "one.json", [ONE_PLAN])
    environments = ({}, one_plan, all_plans, {**all_plans, "AUTORECOMPUTE_ORT_PROBE": "1:1"})
    trained = [place.train(SCRIPT, "--bs", BATCH, "--steps", "3", **variables) for variables in environments]
    return [finished.printed_peak_bytes for finished in trained]


@pytest.fixture(scope="module")
def turn_knobs(place, peaks):
    """Tunes the script with knobs, under a limit that one plan holds: a level of ORT's would leave no knob to try."""
    without, with_one_plan, *_ = peaks
    limit = str((3 * without + with_one_plan) // 4)
    options = ("--target-batch", BATCH, "--memory-limit", limit, "--max-trials", "6", "--knobs", "--json")
    return lambda: place.tune(SCRIPT, *options, arguments=("--bs", "{batch}"), **SET_BY_THE_USER)


@pytest.fixture(scope="module")
def turned(turn_knobs):
    """The script, tuned."""
    return turn_knobs()


def test_the_variable_ends_recompute_at_layer_boundaries(peaks):
    """In an adapted process the same plans save what they do not save when one chain runs through all layers."""
    without, _, everywhere, within_layers = peaks
    assert within_layers < 0.9 * min(without, everywhere)


def test_the_answer_tells_of_every_knob(turned):
    """What was tried has its figures, and what was not has its reason."""
    assert turned.code == 0, turned.stderr
    knobs = {knob["name"]: knob for knob in turned.answer["knobs"]}
    tried = knobs.pop("layer_boundaries")
    assert tried["outcome"] in {"ok", "over_limit"}
    assert tried["peak_bytes"] > 0
    assert (tried["outcome"] == "ok") == (tried["throughput_ratio"] is not None)
    assert all(knob["why_not"] and knob["outcome"] is None for knob in knobs.values())
    assert "ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT" in knobs["no_model_copy"]["why_not"]
    best = turned.answer["best"]
    assert best["knobs"] == (["layer_boundaries"] if tried["kept"] else [])
    assert ("AUTORECOMPUTE_ORT_PROBE" in best["env"]) == tried["kept"]


def test_the_same_command_turns_no_knob_again(turned, turn_knobs, place):
    """Asked again, the tool gives the same answer and starts no further process under a knob."""
    before, again = sorted(place.study().path.glob("workers/knobs/*.log")), turn_knobs()
    assert (again.code, again.answer) == (0, turned.answer)
    assert sorted(place.study().path.glob("workers/knobs/*.log")) == before
