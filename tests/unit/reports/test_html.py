import dataclasses
import re
import shlex

import pytest

from autorecompute import codec
from autorecompute.backends.torch.forecast.records import OptionStep, Part, Steps, TorchDetection
from autorecompute.errors import SetupError
from autorecompute.figures import KnobFigures, Verdict
from autorecompute.measurement import Outcome
from autorecompute.memory import StepProfiles
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.reports.answer import answer_lines, answer_sentences, lines_to_paste
from autorecompute.studies.analysis import keep_analysis, keep_detection
from autorecompute.units import MIB, printable
from fake_backend.controller import READ_BY
from stand_ins.emitted import rendered
from unit.conftest import Graph, Node, build_detection, build_result, build_trial

HOSTILE = (
    "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> </style></title>"
    " {{ 7*7 }} $x^2$ مرحبا \u202e \x1b[31m\x07\x9b txt"
)


def test_the_page_says_what_the_last_screen_says(known, page, show, trials):
    result = known.result()
    screen = " ".join(" ".join(show(result, trials, width=300, folder=known)).split())
    lines = answer_lines(result, trials)
    words = [word for line in lines for word in line]
    sentences = [text.removeprefix("verdict: ") for text in answer_sentences(result, trials)]
    lines_below = lines_to_paste(result, rendered(result, known.best), known)
    pasted = [line.strip() for line in lines_below if line.startswith("  ")]
    assert len(lines) == 3 + 1 + 3 + 1
    for text in (*words, *sentences, *pasted):
        assert text in screen
        assert text in page.text
    for text in (screen, page.text):  # the command that always works comes first
        places = [text.index(way) for way in (pasted[0], f"or, in {READ_BY}:", pasted[-1])]
        assert places == sorted(places)


def test_every_trial_is_there_with_its_figures_and_a_link_to_its_log(known, page, read, trials, tmp_path):
    elsewhere = tmp_path / "of mine.html"
    for file, there in ((known.path / "report.html", page), (elsewhere, read(known, elsewhere))):
        assert len(there.logs) == len(trials)
        assert all((file.parent / link).is_file() for link in there.logs)
        assert "no memory left" in there.text
        assert "644 MiB" in there.text


def test_no_word_of_a_user_becomes_markup(keep, read, page, trials, answer):
    measured = dataclasses.replace(trials[0].measurement, message=f"message {HOSTILE}", marks=(f"mark {HOSTILE}",))
    hostile = dataclasses.replace(
        trials[0], description=f"config {HOSTILE}", reason=f"reason {HOSTILE}", measurement=measured
    )
    device = dataclasses.replace(answer.device, name=f"device {HOSTILE}")
    answer = dataclasses.replace(answer, warnings=(f"warning {HOSTILE}",), device=device)
    plain, page = page, read(keep([hostile, *trials[1:]], answer, command=["python", f"argument {HOSTILE}"]))
    for part in ("message", "mark", "config", "reason", "warning", "device"):
        assert printable(f"{part} {HOSTILE}") in page.text
    assert printable(shlex.quote(f"argument {HOSTILE}")) in page.text
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert [tag for tag, _ in page.elements].count("script") == 1


def test_nothing_comes_from_elsewhere_and_drawings_share_no_identifier(page, trials):
    """It has no style at an element, and forbids everything but its own style and script."""
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert page.values("style") == page.values("src") == []
    assert set(re.findall(r"https?://[\w./]+", page.html)) <= {"http://www.w3.org/2000/svg"}
    names = page.values("id")
    assert len(names) == len(set(names))
    targets = [link.removeprefix("#") for link in page.values("href") if link.startswith("#")]
    clips = [clip.removeprefix("url(#").removesuffix(")") for clip in page.values("clip-path")]
    assert {*targets, *clips} <= set(names)
    assert len(page.values("aria-label")) > 3
    titles = re.findall(r"<title>(\d+): [^<]*\n[^<]*MiB, [^<]*</title>", page.html)
    assert set(map(int, titles)) == {trial.number for trial in trials if trial.measurement.peak_bytes is not None}


def test_a_study_without_an_answer_says_how_to_go_on_and_one_that_nothing_fits_what_it_would_take(keep, read, trials):
    page = read(keep(trials))
    assert "No answer yet: run its tune command again" in page.text
    assert "What it buys" not in page.text
    assert len(page.logs) == len(trials)
    assert "Nothing was measured yet." in read(keep(name="begun")).text
    over = [trial for trial in trials if trial.measurement.outcome is Outcome.OVER_LIMIT]
    nothing = dataclasses.replace(build_result(verdict=Verdict.NO_FIT), best=None)
    text = read(keep(over, nothing, name="full")).text
    assert "no config holds the limit" in text
    assert "the lowest peak of any config was 652 MiB at batch 32, 2 MiB over the limit" in text
    assert "export " not in text


def test_knobs_are_told_tried_and_untried(keep, read, trials, answer):
    knobs = (
        KnobFigures(name="one_arena", outcome=Outcome.OK, throughput_ratio=1.04,
                    low=1.02, high=1.06, peak_bytes=600 * MIB, base_peak_bytes=605 * MIB, kept=True),
        KnobFigures(name="triton", why_not="it is for CUDA only"),
    )  # fmt: skip
    text = read(keep(trials, dataclasses.replace(answer, knobs=knobs))).text
    assert "one_arena 1.04x 1.02-1.06 600 MiB -5 MiB kept" in text
    assert "1 setting was not tried triton was not tried: it is for CUDA only" in text


def test_settings_to_try_are_told_where_there_are_any(known, page, read, monkeypatch):
    assert "Other settings 1 setting to try yourself" in page.text
    monkeypatch.setattr("fake_backend.controller.HINTS", ())
    assert "Other settings" not in read(known).text


def test_a_missing_library_is_named_with_the_command_that_installs_it(keep, read, trials, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    folder = keep(trials)
    with pytest.raises(SetupError, match=r'pip install "autorecompute\[report\]"'):
        read(folder)


FORWARD = [Node(f"Op{n}", (f"v{n - 1}",), {f"v{n}": 10 * MIB}, again=n % 2 == 1) for n in range(1, 7)]
LOSS, *BACKWARD = (Node("G", (f"v{n}", f"d{n}"), {f"d{n - 1}": MIB}) for n in range(6, 0, -1))
GRAPH = Graph(FORWARD, ["v6"], [dataclasses.replace(LOSS, reads=("v6", "dv6")), *BACKWARD])


def test_a_study_with_two_profiled_steps_is_explained(keep, read):
    space = GRAPH.space
    trials = [
        build_trial(
            config, number=n, reference_seconds=0.5, peak_bytes=(640 - n) * MIB, description=space.describe(config)
        )
        for n, config in enumerate([Config(), space.all_on, Config.of(space.plans[:1])])
    ]
    folder = keep(trials, build_result(Config.of(space.plans[:1])), space=space, batch=1)
    profiles = {Config(): GRAPH.run(), space.all_on: GRAPH.run(space.all_on)}
    keep_analysis(folder, StepProfiles(peak_bytes=100 * MIB, held_bytes=40 * MIB, profiles=profiles))
    page = read(folder)
    assert "measured frontier" in page.text
    assert "after: the config" in page.text
    assert "What each layer keeps" not in page.text  # its operations are no layers


@pytest.fixture
def keep_torch(keep):
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
            build_trial(config, number=n, reference_seconds=0.5, peak_bytes=(640 - n) * MIB, description=f"config {n}")
            for n, config in enumerate([Config(), Config.of([plan])])
        ]
        result = build_result(Config(frozenset({dataclasses.replace(choice, count=count)})), trials=2)
        folder = keep(trials, result, space=space, **found)
        keep_detection(folder, build_detection(space, **found))
        return folder

    return keep_torch


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "h.0 10 MiB 0 MiB all of it h.1 10 MiB 10 MiB -"), (None, "h.0 to h.1 10 MiB 0 MiB all of it")],
)
def test_each_layer_is_shown_with_what_it_keeps(keep_torch, read, count, told):
    text = read(keep_torch(count=count)).text
    assert "after: the config" in text
    assert told in text


def test_the_memory_over_a_step_has_a_stripe_for_each_layer(keep_torch, read):
    titles = re.findall(r"made in the forward pass of (h\.\d): (\d+ MiB) at most", read(keep_torch(count=1)).text)
    before, after = titles[:2], titles[2:]
    assert [name for name, _ in before] == ["h.0", "h.1"]
    assert before[1] in after
    assert before[0] not in after


def test_a_detection_that_describes_no_step_is_told(keep_torch, read):
    with pytest.raises(SetupError, match=r"detection\.json cannot be read: it .*steps"):
        read(keep_torch(steps={"parts": "none"}))
