"""The part of a page that explains memory: the frontier, a step before and after, and what each plan does."""

import dataclasses
import re

import pytest

from autorecompute import codec
from autorecompute.backends.torch.extra import OptionStep, Part, Steps, TorchDetection
from autorecompute.errors import SetupError
from autorecompute.memory import StepProfiles
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.reports.html import make_page
from autorecompute.reports.html.why import format_change
from autorecompute.studies.analysis import keep_analysis
from autorecompute.studies.detected import keep_detection
from autorecompute.units import MIB


@pytest.fixture
def graph(make_graph, make_node):
    """A step of six operations, of which every second can be made again."""
    forward = [make_node(f"Op{n}", (f"v{n - 1}",), {f"v{n}": 10 * MIB}, again=n % 2 == 1) for n in range(1, 7)]
    backward = [make_node("G", (f"v{n}", f"d{n}"), {f"d{n - 1}": MIB}) for n in range(6, 0, -1)]
    return make_graph(forward, ["v6"], [dataclasses.replace(backward[0], reads=("v6", "dv6")), *backward[1:]])


def test_a_study_with_two_profiled_steps_is_explained(keep, read, graph, make_trial, make_result):
    """The predicted frontier, the step before and after, and what each plan does are drawn from them."""
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
def keep_torch(keep, make_trial, make_detection):
    """Keeps a study of plain PyTorch: two blocks, of which each saves 10 MiB where it is recomputed."""

    def keep_torch(result=None, **changed):
        choice, saved = Choice("h.*", "checkpoint"), {"saving_bytes": 20 * MIB, "saving": str(20 * MIB)}
        plan = Plan(choices=(choice,), label="h.*", occurrences=2, counts=True, **saved)
        space = Space(plans=(plan,), own_presets={"blocks": Config.of([plan])})
        parts = [Part(phase="forward", name=f"h.{n}", owner=n, change=10 * MIB, highest=20 * MIB) for n in (0, 1)]
        parts += [Part(phase="backward", name=f"h.{n}", owner=n, change=-10 * MIB, highest=MIB) for n in (1, 0)]
        change = (-10 * MIB, -10 * MIB, 10 * MIB, 10 * MIB)
        option = OptionStep(
            site="h.*",
            option="checkpoint",
            units=((0,), (1,)),
            parts=(0, 1, 2, 3),
            change=change,
            highest=change,
            work=0.3,
        )
        steps = Steps(batch=32, parts=tuple(parts), options=(option,), later_bytes=MIB, has_own_loss=True)
        versions = {"python": "3.11", "torch": "2.13.0", "model": "Net 0123", "backend": "torch"}
        extra = {**codec.to_plain(TorchDetection(steps=steps)), **changed}
        found = {"versions": versions, "plan_versions": ("model",), "extra": extra}
        trials = [
            make_trial(config, number=n, reference_seconds=0.5, peak_bytes=(640 - n) * MIB, description=f"config {n}")
            for n, config in enumerate([Config(), Config.of([plan])])
        ]
        folder = keep(trials, result, space=space, **found)
        keep_detection(folder, make_detection(space, **found))
        return folder

    return keep_torch


def test_a_study_of_plain_pytorch_is_explained(keep_torch, read):
    """What was detected tells of the memory of every config: the frontier, the step before and after, and each plan."""
    page = read(keep_torch())
    assert "predicted frontier" in page.text
    assert "after: the config" in page.text
    assert re.search(r"h\.\* (on|off) 2 -", page.text)


def test_places_that_recompute_are_shown_in_order(keep_torch, read, make_result):
    """Of two blocks the first is filled where a config has one on, and both where it has all."""
    for count, filled in ((1, ["on", None]), (None, ["on", "on"])):
        answer = make_result(Config(frozenset({Choice("h.*", "checkpoint", count)})))
        page = read(keep_torch(answer))
        assert [attributes.get("class") for tag, attributes in page.elements if tag == "i"] == filled


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "h.0 10 MiB 0 MiB all of it h.1 10 MiB 10 MiB -"),
        (None, "h.0 to h.1 10 MiB 0 MiB all of it"),
    ],
)
def test_layers_are_shown_with_what_they_keep(keep_torch, read, make_result, count, told):
    """Each has what it keeps before and after, and what is recomputed in it; those that are alike share a row."""
    answer = make_result(Config(frozenset({Choice("h.*", "checkpoint", count)})))
    assert told in read(keep_torch(answer)).text


def test_the_memory_over_a_step_has_a_stripe_for_each_layer(keep_torch, read, make_result):
    """Each tells its layer and what that holds, before and after: the second of two blocks is kept whole."""
    answer = make_result(Config(frozenset({Choice("h.*", "checkpoint", 1)})))
    titles = re.findall(r"made in the forward pass of (h\.\d): (\d+ MiB) at most", read(keep_torch(answer)).text)
    before, after = titles[:2], titles[2:]
    assert [name for name, _ in before] == ["h.0", "h.1"]
    assert before[1] in after
    assert before[0] not in after


def test_presets_are_drawn_where_the_model_expects_them(keep_torch, read):
    """Each has its name beside it."""
    page = read(keep_torch())
    assert "presets, predicted" in page.text
    assert {"none", "blocks"} <= {text.strip() for texts in page.texts for text in texts.split(",")}


def test_a_detection_that_describes_no_step_is_told(keep_torch, read):
    """A file that somebody has changed is named in a sentence."""
    with pytest.raises(SetupError, match=r"detection\.json cannot be read: it .*steps"):
        read(keep_torch(steps={"parts": "none"}))


def test_profiled_steps_of_a_system_that_profiles_none_are_left_aside(keep, trials, make_space, make_step):
    """A study whose files were mixed up by hand still has its page."""
    versions = {"python": "3.11", "torch": "2.13.0", "model": "Net 0123", "backend": "torch"}
    folder = keep(trials, versions=versions, plan_versions=("model",))
    profiles = dict.fromkeys((Config(), make_space().all_on), make_step("flb", ("t", 0, 2, "batch")))
    keep_analysis(folder, StepProfiles(peak_bytes=MIB, held_bytes=MIB, profiles=profiles))
    assert "No answer yet" in make_page(folder, folder.path / "report.html")


@pytest.mark.parametrize(
    ("change_bytes", "text"),
    [(-1023 * 1024, "-1 MiB"), (MIB, "+1 MiB"), (-12 * 1024, "-12 KiB"), (0, "+0 MiB")],
)
def test_changes_side_by_side_are_in_one_unit(change_bytes, text):
    """1023 KiB beside 1 MiB would look like more."""
    assert format_change(change_bytes) == text
