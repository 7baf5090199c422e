import dataclasses
import re

import pytest

from autorecompute import codec
from autorecompute.backends.torch.extra import OptionStep, Part, Steps, TorchDetection
from autorecompute.errors import SetupError
from autorecompute.memory import StepProfiles
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.reports.html.why import format_change
from autorecompute.studies.analysis import keep_analysis
from autorecompute.studies.detected import keep_detection
from autorecompute.units import MIB


@pytest.fixture
def graph(make_graph, make_node):
    forward = [make_node(f"Op{n}", (f"v{n - 1}",), {f"v{n}": 10 * MIB}, again=n % 2 == 1) for n in range(1, 7)]
    backward = [make_node("G", (f"v{n}", f"d{n}"), {f"d{n - 1}": MIB}) for n in range(6, 0, -1)]
    return make_graph(forward, ["v6"], [dataclasses.replace(backward[0], reads=("v6", "dv6")), *backward[1:]])


def test_a_study_with_two_profiled_steps_is_explained(keep, read, graph, make_trial, make_result):
    space = graph.space
    trials = [
        make_trial(
            config, number=n, reference_seconds=0.5, peak_bytes=(640 - n) * MIB, description=space.describe(config)
        )
        for n, config in enumerate([Config(), space.all_on, Config.of(space.plans[:1])])
    ]
    folder = keep(trials, make_result(Config.of(space.plans[:1])), space=space, batch=1)
    profiles = {Config(): graph.run(), space.all_on: graph.run(space.all_on)}
    keep_analysis(folder, StepProfiles(peak_bytes=100 * MIB, held_bytes=40 * MIB, profiles=profiles))
    page = read(folder)
    assert "predicted frontier" in page.text
    assert "after: the config" in page.text
    assert "What each layer keeps" not in page.text  # its operations are no layers
    assert f"{2 ** len(space.plans)} configs as the model expects" in page.text
    for plan in space.plans:
        assert re.search(rf"{re.escape(plan.label)} (on|off) 1 [+-]", page.text)


@pytest.fixture
def keep_torch(keep, make_trial, make_detection, make_result):
    """Keeps a study of two blocks; its answer has so many of them recomputed, ``None`` stands for all."""

    def keep_torch(*, count=None, **changed):
        choice, saved = Choice("h.*", "checkpoint"), {"saving_bytes": 20 * MIB, "saving": str(20 * MIB)}
        plan = Plan(choices=(choice,), label="h.*", occurrences=2, counts=True, **saved)
        space = Space(plans=(plan,), own_presets={"blocks": Config.of([plan])})
        parts = [Part(phase="forward", name=f"h.{n}", owner=n, change=10 * MIB, highest=20 * MIB) for n in (0, 1)]
        parts += [Part(phase="backward", name=f"h.{n}", owner=n, change=-10 * MIB, highest=MIB) for n in (1, 0)]
        change = (-10 * MIB, -10 * MIB, 10 * MIB, 10 * MIB)
        changes = {"parts": (0, 1, 2, 3), "change": change, "highest": change}
        option = OptionStep(site="h.*", option="checkpoint", units=((0,), (1,)), work=0.3, **changes)
        steps = Steps(batch=32, parts=tuple(parts), options=(option,), later_bytes=MIB, has_own_loss=True)
        versions = {"python": "3.11", "torch": "2.13.0", "model": "Net 0123", "backend": "torch"}
        extra = {**codec.to_plain(TorchDetection(steps=steps)), **changed}
        found = {"versions": versions, "plan_versions": ("model",), "extra": extra}
        trials = [
            make_trial(config, number=n, reference_seconds=0.5, peak_bytes=(640 - n) * MIB, description=f"config {n}")
            for n, config in enumerate([Config(), Config.of([plan])])
        ]
        result = make_result(Config(frozenset({dataclasses.replace(choice, count=count)})), trials=2)
        folder = keep(trials, result, space=space, **found)
        keep_detection(folder, make_detection(space, **found))
        return folder

    return keep_torch


def test_a_study_of_plain_pytorch_is_explained(keep_torch, read):
    page = read(keep_torch())
    assert "predicted frontier" in page.text
    assert "after: the config" in page.text
    assert re.search(r"h\.\* (on|off) 2 -", page.text)
    assert "presets, predicted" in page.text
    assert {"none", "blocks"} <= {text.strip() for texts in page.texts for text in texts.split(",")}


@pytest.mark.parametrize(
    ("count", "filled", "told"),
    [
        (1, ["on", None], "h.0 10 MiB 0 MiB all of it h.1 10 MiB 10 MiB -"),
        (None, ["on", "on"], "h.0 to h.1 10 MiB 0 MiB all of it"),
    ],
)
def test_each_layer_is_shown_with_what_it_keeps(keep_torch, read, count, filled, told):
    page = read(keep_torch(count=count))
    assert [attributes.get("class") for tag, attributes in page.elements if tag == "i"] == filled
    assert told in page.text


def test_the_memory_over_a_step_has_a_stripe_for_each_layer(keep_torch, read):
    titles = re.findall(r"made in the forward pass of (h\.\d): (\d+ MiB) at most", read(keep_torch(count=1)).text)
    before, after = titles[:2], titles[2:]
    assert [name for name, _ in before] == ["h.0", "h.1"]
    assert before[1] in after
    assert before[0] not in after


def test_a_detection_that_describes_no_step_is_told(keep_torch, read):
    with pytest.raises(SetupError, match=r"detection\.json cannot be read: it .*steps"):
        read(keep_torch(steps={"parts": "none"}))


@pytest.mark.parametrize(
    ("change_bytes", "text"), [(-1023 * 1024, "-1 MiB"), (MIB, "+1 MiB"), (-12 * 1024, "-12 KiB"), (0, "+0 MiB")]
)
def test_changes_side_by_side_are_in_one_unit(change_bytes, text):
    """1023 KiB beside 1 MiB would look like more."""
    assert format_change(change_bytes) == text
