"""The page of a study: what it says, and that nothing in it can do or load anything."""

from __future__ import annotations

import dataclasses
import io
import re
import shlex
from html.parser import HTMLParser

import pytest
from matplotlib import rc_context
from rich.console import Console

from autorecompute import codec
from autorecompute.backends.torch.extra import OptionStep, Part, Steps, TorchDetection
from autorecompute.errors import SetupError, UsageError
from autorecompute.figures import CurvePoint, Figures, KnobFigures, Recomputed
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.memory import StepProfiles
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.prediction import Prediction
from autorecompute.reports.answer import answer_lines, answer_sentences, lines_to_paste
from autorecompute.reports.html import make_page
from autorecompute.reports.html.charts import draw_predictions
from autorecompute.reports.html.svg import style
from autorecompute.reports.html.why import format_change
from autorecompute.reports.screen import print_result
from autorecompute.result import RaceEnd, Ranking, Transfer
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.analysis import keep_analysis
from autorecompute.studies.detected import keep_detection
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.storage import TrialStore
from autorecompute.units import MIB, printable
from autorecompute.verdict import Verdict
from stand_ins.emitted import rendered

HOSTILE = (
    "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> </style></title>"
    " {{ 7*7 }} $x^2$ مرحبا \u202e \x1b[31m\x07\x9b txt"
)
VOID = {"meta", "img", "br", "hr", "link", "input"}
LIMIT_BYTES = 650 * MIB


class Page(HTMLParser):
    """A page as a browser would read it: its elements, and its text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        """Notes an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        """Closes it, and what was left open in it."""
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        """Notes what is to be read."""
        if not {"script", "style"}.intersection(self._open):
            self.texts.append(data)

    @property
    def text(self):
        """All that is to be read, in single spaces."""
        return " ".join(" ".join(self.texts).split())

    def values(self, name):
        """All values of an attribute."""
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture
def keep(tmp_path, make_detection):
    """Keeps a study as a tuning does: begun, with its trials and, where there is one, its answer."""

    def keep(trials=(), result=None, *, name="bert", batch=32, command=("python", "train.py"), space=None, **found):
        detection = make_detection(space, **found)
        folder = StudyFolder(name, tmp_path)
        folder.prepare()
        problem = dataclasses.replace(Problem.of(detection, LIMIT_BYTES), batch=batch)
        folder.begin(problem, list(command), Sizes.of(detection))
        if batch != SEVERAL_BATCHES:
            store = TrialStore(folder.database, name, detection.space, LIMIT_BYTES)
            for trial in trials:
                store.add(trial)
                folder.keep_trial(trial, list(command), {}, "output\n")
        if result is not None:
            folder.finish(dataclasses.replace(result, study=name))
        return folder

    return keep


@pytest.fixture
def read():
    """The page of a study, read."""
    return lambda folder: Page(make_page(folder, folder.path / "report.html"))


@pytest.fixture
def trials(make_trial, make_space, list_configs):
    """Twelve configs with predictions, some over the limit, one out of memory."""
    configs = list_configs(make_space())[:12]
    expected = Prediction(
        peak_bytes=640 * MIB, peak_low=600 * MIB, peak_high=700 * MIB, step=1.1, step_low=1.0, step_high=1.2, fits=0.8
    )
    found = [
        dataclasses.replace(
            make_trial(
                config, number=n, reference_seconds=0.5, peak_bytes=(700 - 8 * n) * MIB,
                step_seconds=(0.5 + n / 100, 0.52 + n / 100),
                outcome=Outcome.OK if n > 6 else Outcome.OVER_LIMIT, marks=("host busy",) if n == 3 else (),
            ),
            prediction=expected,
        )
        for n, config in enumerate(configs)
    ]  # fmt: skip
    lost = make_trial(configs[1], number=12, outcome=Outcome.OOM, message="no memory left")
    return [*found, lost]


@pytest.fixture
def answer(make_result, trials):
    """An answer with all there can be to tell."""
    result = make_result(trials[9].config)
    best = dataclasses.replace(
        result.best,
        relative_low=0.85,
        relative_high=0.9,
        limit_bytes=LIMIT_BYTES,
        ranking=Ranking(end=RaceEnd.TIE, rounds=8, confidence=0.99, rivals=("blocks.*/gelu",)),
        gradients=GradientCheck(agrees=True, worst=0.0, steps=3),
    )
    return dataclasses.replace(
        result,
        best=best,
        rival=Figures(outcome=Outcome.OK, batch=18, samples_per_second=44.4, peak_bytes=600 * MIB),
        warnings=("train.py:12 runs the model twice",),
        transferred_from=Transfer(study="other", differences=("batch 32, not 16",)),
        raced={trials[8].config.hash: 0.91},
    )


def test_the_page_says_what_the_last_screen_says(keep, read, trials, answer):
    """Every cell, sentence and command of the terminal's last screen stands on the page, word for word."""
    folder = keep(trials, answer)
    page = read(folder)
    console = Console(file=io.StringIO(), width=300, highlight=False)
    print_result(folder.result(), trials, folder.path, rendered(folder.result(), folder.best), console)
    screen = " ".join(console.file.getvalue().split())
    lines = answer_lines(folder.result(), trials)
    words = [
        word
        for line in lines
        for word in (line.role, line.config, line.peak, line.throughput, line.relative, line.outcome)
    ]
    sentences = [text.removeprefix("verdict: ") for text in answer_sentences(folder.result(), trials)]
    pasted = [
        line.strip()
        for line in lines_to_paste(folder.result(), rendered(folder.result(), folder.best))
        if line.startswith("  ")
    ]
    assert len(lines) == 3 + 1 + 3 + 1
    for text in (*words, *sentences, *pasted):
        assert text in screen
        assert text in page.text


def test_figures_of_every_trial_are_there_with_their_logs(keep, read, trials, answer):
    """The list has a row for each trial, and each log's link leads to the file from the study's folder."""
    folder = keep(trials, answer)
    page = read(folder)
    links = [link for link in page.values("href") if link.endswith("output.log")]
    assert len(links) == len(trials)
    assert all((folder.path / link).is_file() for link in links)
    assert "no memory left" in page.text
    assert "644 MiB" in page.text


def test_links_lead_to_the_logs_from_another_folder(keep, trials, answer, tmp_path):
    """A page that is written elsewhere finds the logs all the same."""
    folder = keep(trials, answer)
    page = tmp_path / "pages" / "of mine.html"
    page.parent.mkdir()
    links = [link for link in Page(make_page(folder, page)).values("href") if link.endswith("output.log")]
    assert links
    assert all((page.parent / link).is_file() for link in links)


def test_no_word_of_a_user_becomes_markup(keep, read, trials, answer):
    """Whatever looks like a script, a style or a template in a user's words is text on the page, and nothing else."""
    plain = read(keep(trials, answer, name="plain"))
    measured = dataclasses.replace(trials[0].measurement, message=f"message {HOSTILE}", marks=(f"mark {HOSTILE}",))
    trials[0] = dataclasses.replace(
        trials[0], description=f"config {HOSTILE}", reason=f"reason {HOSTILE}", measurement=measured
    )
    answer = dataclasses.replace(
        answer,
        warnings=(f"warning {HOSTILE}",),
        device=dataclasses.replace(answer.device, name=f"device {HOSTILE}"),
    )
    page = read(keep(trials, answer, command=["python", f"argument {HOSTILE}"]))
    for part in ("message", "mark", "config", "reason", "warning", "device"):
        assert printable(f"{part} {HOSTILE}") in page.text
    assert printable(shlex.quote(f"argument {HOSTILE}")) in page.text
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert [tag for tag, _ in page.elements].count("script") == 1


def test_nothing_comes_from_elsewhere(keep, trials, answer):
    """The page names no address, has no style at an element, and forbids everything but its own style and script."""
    html = make_page(folder := keep(trials, answer), folder.path / "report.html")
    page = Page(html)
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert page.values("style") == page.values("src") == []
    addresses = set(re.findall(r"https?://[\w./]+", html)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()


def test_every_identifier_is_there_once(keep, read, trials, answer):
    """Drawings share a page: each reference within it leads to one element, and no two have a name in common."""
    page = read(keep(trials, answer))
    names = page.values("id")
    assert len(names) == len(set(names))
    targets = [link.removeprefix("#") for link in page.values("href") if link.startswith("#")]
    clips = [clip.removeprefix("url(#").removesuffix(")") for clip in page.values("clip-path")]
    assert {*targets, *clips} <= set(names)
    assert len(page.values("aria-label")) > 3


def test_a_mark_of_the_chart_tells_its_trial(keep, trials, answer):
    """Every measured trial has a mark with its number, its config and its figures."""
    folder = keep(trials, answer)
    html = make_page(folder, folder.path / "report.html")
    titles = re.findall(r"<title>(\d+): ([^<]*)\n[^<]*MiB, [^<]*</title>", html)
    measured = [trial for trial in trials if trial.measurement.peak_bytes is not None]
    assert {int(number) for number, _ in titles} == {trial.number for trial in measured}


def test_a_study_with_two_profiled_steps_is_explained(keep, make_graph, make_node, make_trial, make_result):
    """The predicted frontier, the step before and after, and what each plan does are drawn from them."""
    forward = [make_node(f"Op{n}", (f"v{n - 1}",), {f"v{n}": 10 * MIB}, again=n % 2 == 1) for n in range(1, 7)]
    backward = [make_node("G", (f"v{n}", f"d{n}"), {f"d{n - 1}": MIB}) for n in range(6, 0, -1)]
    graph = make_graph(forward, ["v6"], [dataclasses.replace(backward[0], reads=("v6", "dv6")), *backward[1:]])
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
    html = make_page(folder, folder.path / "report.html")
    page = Page(html)
    assert "predicted frontier" in page.text
    assert "after: the config" in page.text
    assert f"{2 ** len(space.plans)} configs as the model expects" in page.text
    for plan in space.plans:
        assert re.search(rf"{re.escape(plan.label)} (on|off) 1 [+-]", page.text)


@pytest.fixture
def keep_torch(keep, make_trial, make_detection):
    """Keeps a study of plain PyTorch: two blocks, of which each saves 10 MiB where it is recomputed."""

    def keep_torch(**changed):
        choice, saved = Choice("h.*", "checkpoint"), {"saving_bytes": 20 * MIB, "saving": str(20 * MIB)}
        plan = Plan(choices=(choice,), label="h.*", occurrences=2, counts=True, **saved)
        space = Space(plans=(plan,), own_presets={"blocks": Config.of([plan])})
        parts = [Part(phase="forward", name=f"h.{n}", owner=n, change=10 * MIB, highest=20 * MIB) for n in (0, 1)]
        parts += [Part(phase="backward", name=f"h.{n}", owner=n, change=-10 * MIB, highest=MIB) for n in (1, 0)]
        change = (-10 * MIB, -10 * MIB, 10 * MIB, 10 * MIB)
        option = OptionStep(
            site="h.*", option="checkpoint", units=(0, 1), parts=(0, 1, 2, 3), change=change, highest=change, work=0.3
        )
        steps = Steps(batch=32, parts=tuple(parts), options=(option,), later_bytes=MIB, has_own_loss=True)
        versions = {"python": "3.11", "torch": "2.13.0", "model": "Net 0123", "backend": "torch"}
        extra = {**codec.to_plain(TorchDetection(steps=steps)), **changed}
        found = {"versions": versions, "plan_versions": ("model",), "extra": extra}
        trials = [
            make_trial(config, number=n, reference_seconds=0.5, peak_bytes=(640 - n) * MIB, description=f"config {n}")
            for n, config in enumerate([Config(), Config.of([plan])])
        ]
        folder = keep(trials, space=space, **found)
        keep_detection(folder, make_detection(space, **found))
        return folder

    return keep_torch


def test_a_study_of_plain_pytorch_is_explained(keep_torch, read):
    """What was detected tells of the memory of every config: the frontier, the step before and after, and each plan."""
    page = read(keep_torch())
    assert "predicted frontier" in page.text
    assert "after: the config" in page.text
    assert re.search(r"h\.\* (on|off) 2 -", page.text)


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


def test_a_study_without_an_answer_says_how_to_go_on(keep, read, trials):
    """What was measured so far is told, and that the tune command goes on."""
    page = read(keep(trials))
    assert "No answer yet: run its tune command again" in page.text
    assert "What it buys" not in page.text
    assert len([link for link in page.values("href") if link.endswith("output.log")]) == len(trials)


def test_a_study_without_a_trial_is_a_page(keep, read):
    """A study that was begun and no more has a page that says so."""
    assert "Nothing was measured yet." in read(keep()).text


def test_nothing_fits_is_told_with_what_it_would_take(keep, read, trials, make_result):
    """There is nothing to paste, and the lowest peak is named."""
    over = [t for t in trials if t.measurement.outcome is Outcome.OVER_LIMIT]
    result = dataclasses.replace(make_result(), best=None, verdict=Verdict.NO_FIT)
    page = read(keep(over, result))
    assert "no config holds the limit" in page.text
    assert "the lowest peak of any config was 652 MiB at batch 32, 2 MiB over the limit" in page.text
    assert "export " not in page.text


def test_several_batches_are_one_page(keep, read, trials, answer):
    """The curve is drawn, and the trials of all batches are listed, each with its batch and its log."""
    part = keep(trials[:5], name="bert-b32")
    keep(trials[:2], name="bert-b48", batch=48)
    with_it = Recomputed(
        study=part.name, description="blocks.*/gelu", figures=Figures.of(trials[8]), config=trials[8].config
    )
    none = Recomputed(study="bert-b48", description="no config fits", figures=Figures(), least_peak_bytes=700 * MIB)
    curve = (
        CurvePoint(batch=16, without=Figures(outcome=Outcome.OK, batch=16, samples_per_second=40.0, peak_bytes=MIB)),
        CurvePoint(batch=32, without=Figures.of(trials[0]), recomputed=with_it),
        CurvePoint(batch=48, without=Figures(outcome=Outcome.OOM, batch=48), recomputed=none),
    )
    folder = keep((), dataclasses.replace(answer, curve=curve), batch=SEVERAL_BATCHES)
    page = read(folder)
    links = [link for link in page.values("href") if link.endswith("output.log")]
    assert len(links) == 7
    assert all((folder.path / link).is_file() for link in links)
    assert "* 32" in page.text
    assert "predicted before each trial: peaks" in page.text
    assert "Throughput by batch" in page.text


def test_knobs_are_told_tried_and_untried(keep, read, trials, answer):
    """A knob that was tried has its figures, one that was not its reason."""
    knobs = (
        KnobFigures(name="one_arena", outcome=Outcome.OK, throughput_ratio=1.04,
                    low=1.02, high=1.06, peak_bytes=600 * MIB, base_peak_bytes=605 * MIB, kept=True),
        KnobFigures(name="triton", why_not="it is for CUDA only"),
    )  # fmt: skip
    page = read(keep(trials, dataclasses.replace(answer, knobs=knobs)))
    assert "one_arena 1.04x 1.02-1.06 600 MiB -5 MiB kept" in page.text
    assert "triton was not tried: it is for CUDA only" in page.text


def test_settings_to_try_are_told_where_there_are_any(keep, read, trials, answer, monkeypatch):
    """The fake system has a setting to try; without it the page has no heading for settings."""
    assert "Other settings 1 setting to try yourself" in read(keep(trials, answer)).text
    monkeypatch.setattr("fake_backend.controller.HINTS", ())
    assert "Other settings" not in read(keep(trials, answer, name="other")).text


def test_a_plan_says_at_how_many_of_its_places_it_is_on(keep, read, trials, answer, make_space):
    """Of the plans, one is on at two of six places, one everywhere, the others nowhere."""
    some, whole, off, *_ = make_space().plans
    (choice,) = some.choices
    config = Config(frozenset({dataclasses.replace(choice, count=2), *whole.choices}))
    page = read(keep(trials, dataclasses.replace(answer, best=dataclasses.replace(answer.best, config=config))))
    assert f"{some.label} 2 of 6 {whole.label} on {off.label} off" in page.text


def test_a_study_that_is_not_there_is_a_usage_error(tmp_path):
    """The name is told, and how to list those there are."""
    with pytest.raises(UsageError, match="no study 'gpt'"):
        make_page(StudyFolder("gpt", tmp_path), tmp_path / "report.html")


def test_a_missing_library_is_named_with_the_command_that_installs_it(keep, trials, monkeypatch):
    """Without the extra there is one sentence, with the exit code for installations."""
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    folder = keep(trials)
    with pytest.raises(SetupError, match=r'pip install "autorecompute\[report\]"') as caught:
        make_page(folder, folder.path / "report.html")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("seconds", "label"), [(0.9, "predicted step, ms"), (12.0, "predicted step, s")])
def test_steps_are_in_the_unit_that_the_list_has(seconds, label):
    """Steps of seconds are not drawn as thousands of ms."""
    with rc_context(style()):
        drawing = draw_predictions([(6.0, 6.1, "0: none")], [(seconds, seconds / 2, "0: none"), (0.1, 0.1, "1: all")])
    assert f">{label}<" in drawing


@pytest.mark.parametrize(
    ("change_bytes", "text"),
    [(-1023 * 1024, "-1 MiB"), (MIB, "+1 MiB"), (-12 * 1024, "-12 KiB"), (0, "+0 MiB")],
)
def test_changes_side_by_side_are_in_one_unit(change_bytes, text):
    """1023 KiB beside 1 MiB would look like more."""
    assert format_change(change_bytes) == text
