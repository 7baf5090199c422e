"""A variable of a knob of ours reaches ORT."""

import json

SCRIPT = "pre_norm.py"
BATCH = "192"


def test_the_variable_ends_recompute_at_layer_boundaries(make_workplace, scripts):
    """In an adapted process the same plans save what they do not save when one chain runs through all layers."""
    place = make_workplace("knobs")
    looking = ("-m", "autorecompute", "plans", str(scripts / SCRIPT), "--batch", BATCH, "--json", "--", "--bs", BATCH)
    answer = place.finish(place.start(*looking)).answer
    assert answer["presets"]["level_1"] == ["transformer layers:1"], "there are layer boundaries"
    choices = {choice for plan in answer["plans"] for choice in plan["config"].split(",")}
    file = place.path / "all.json"
    file.write_text(json.dumps(sorted(f"{choice}:-1" for choice in choices)))
    everywhere = {"ORTMODULE_MEMORY_OPT_CONFIG": str(file)}
    environments = ({}, everywhere, {**everywhere, "AUTORECOMPUTE_ORT_PROBE": "1:1"})
    trained = [place.train(SCRIPT, "--bs", BATCH, "--steps", "3", **variables) for variables in environments]
    without, in_one_chain, within_layers = (finished.printed_peak_bytes for finished in trained)
    assert within_layers < 0.9 * min(without, in_one_chain)
