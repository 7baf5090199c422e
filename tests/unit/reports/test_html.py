"""The page of a study: what it says, and that nothing in it can do or load anything."""

import dataclasses
import io
import re
import shlex

import pytest
from matplotlib import rc_context
from rich.console import Console

from autorecompute.errors import SetupError, UsageError
from autorecompute.figures import CurvePoint, Figures, KnobFigures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer import answer_lines, answer_sentences, lines_to_paste
from autorecompute.reports.html import make_page
from autorecompute.reports.html.charts import draw_predictions
from autorecompute.reports.html.svg import style
from autorecompute.reports.screen import print_result
from autorecompute.studies import StudyFolder
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.units import MIB, printable
from autorecompute.verdict import Verdict
from fake_backend.controller import READ_BY
from stand_ins.emitted import rendered

HOSTILE = (
    "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> </style></title>"
    " {{ 7*7 }} $x^2$ مرحبا \u202e \x1b[31m\x07\x9b txt"
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


def test_the_command_that_always_works_comes_first(keep, read, trials, answer):
    """``run`` stands before the variables and the scripts that read them, and alone where nothing is to be set."""
    text = read(keep(trials, answer)).text
    places = [text.index(words) for words in ("autorecompute run bert", f"or, in {READ_BY}:", "export FAKE_PLANS=")]
    assert places == sorted(places)
    best = dataclasses.replace(answer.best, config=Config())
    text = read(keep(trials, dataclasses.replace(answer, best=best), name="plain")).text
    assert "autorecompute run plain" in text
    assert "or, in a script" not in text


def test_figures_of_every_trial_are_there_with_their_logs(keep, read, trials, answer):
    """The list has a row for each trial, and each log's link leads to the file from the study's folder."""
    folder = keep(trials, answer)
    page = read(folder)
    links = [link for link in page.values("href") if link.endswith("output.log")]
    assert len(links) == len(trials)
    assert all((folder.path / link).is_file() for link in links)
    assert "no memory left" in page.text
    assert "644 MiB" in page.text


def test_links_lead_to_the_logs_from_another_folder(keep, read, trials, answer, tmp_path):
    """A page that is written elsewhere finds the logs all the same."""
    folder = keep(trials, answer)
    page = tmp_path / "pages" / "of mine.html"
    page.parent.mkdir()
    links = [link for link in read(folder, page).values("href") if link.endswith("output.log")]
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


def test_nothing_comes_from_elsewhere(keep, read, trials, answer):
    """The page names no address, has no style at an element, and forbids everything but its own style and script."""
    html = make_page(folder := keep(trials, answer), folder.path / "report.html")
    page = read(folder)
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
    assert "1 setting was not tried triton was not tried: it is for CUDA only" in page.text


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
