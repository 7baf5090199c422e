"""The live view: lines for a file, and how it stands for a terminal."""

import dataclasses
import fcntl
import io
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.prediction import Prediction
from autorecompute.reports.live import LiveView
from autorecompute.reports.plane import DRAWN, draw_plane
from autorecompute.units import MIB


def refresh(view):
    """Draws what moves now, and not when its thread comes to it."""
    if view._live is not None:
        view._live.refresh()


def drawn(view, console):
    """What stands below the lines now, as text."""
    with console.capture() as capture:
        console.print(view._render())
    return capture.get()


@pytest.fixture
def watch(make_detection, make_trial):
    """What the view prints of a short tuning."""

    def watch(
        *, is_terminal=False, device="Some Processor", description="all plans", message="no memory", note="hello"
    ):
        console = Console(
            file=io.StringIO(), width=80, force_terminal=is_terminal, highlight=False, soft_wrap=True, color_system=None
        )
        detection = make_detection()
        detection = dataclasses.replace(detection, device=dataclasses.replace(detection.device, name=device))
        with LiveView(console) as view:
            known = [make_trial(number=number) for number in range(2)]
            view.detected(detection, 600 * MIB, known_trials=known, budget=40, deadline_seconds=math.inf)
            for number, outcome in ((2, Outcome.OK), (3, Outcome.OOM)):
                view.trial_begins(number, description, description)
                refresh(view)
                text = message if outcome is Outcome.OOM else ""
                view.trial_ended(
                    make_trial(
                        number=number, description=description, reference_seconds=0.25, outcome=outcome, message=text
                    )
                )
            view.note(note)
            refresh(view)
        return console.file.getvalue()

    return watch


def test_without_a_terminal_each_event_is_a_plain_line(watch):
    """In a log there is a line for each note and trial, without any control sequence, however long it is."""
    text = watch(message="no memory " * 20)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(lines) == 5
    assert all(re.match(r"\[ *\d+ ms\] |\[ *[\d.]+ s\] ", line) for line in lines)
    assert lines[-2].rstrip().endswith("no memory")


def test_a_trial_is_told_with_its_figures(watch):
    """A trial's line has its number, name, peak, share and outcome; one without figures has dashes."""
    measured, failed = watch().splitlines()[2:4]
    assert measured.split("] ")[1].split() == ["2", "all", "plans", "700", "MiB", "0.50x", "ok"]
    assert failed.split("] ")[1].split() == ["3", "all", "plans", "-", "-", "oom", "no", "memory"]


def test_without_a_reference_a_trial_is_told_in_samples_a_second(make_trial):
    """No recompute runs out of memory on a card as a rule: there is no share of it then."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    with LiveView(console) as view:
        view.trial_ended(make_trial(step_seconds=(0.5,)))
    assert "64.0 samples/s  ok" in console.file.getvalue()


def test_a_disturbed_trial_says_so_in_its_line(make_trial):
    """Marks stand behind the outcome of the trial they belong to."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    with LiveView(console) as view:
        view.trial_ended(make_trial(marks=("host busy: 1.4 of 2 cores by others",)))
    assert console.file.getvalue().rstrip().endswith("ok host busy: 1.4 of 2 cores by others")


def test_an_earlier_session_is_told(watch):
    """The first lines tell the plans, the limit, the versions and how far an earlier session came."""
    detected, known = watch().splitlines()[:2]
    for words in ("5 plans", "batch 32", "600 MiB", "3.1"):
        assert words in detected
    assert "2 trials" in known


@pytest.mark.parametrize(("is_shared", "words"), [(False, "1 trial of an earlier session"), (True, "of all workers")])
def test_who_measured_before_is_told(make_detection, make_trial, is_shared, words):
    """What several workers measured is not told as an earlier session's."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    view = LiveView(console, is_shared=is_shared)
    view.detected(make_detection(), 600 * MIB, known_trials=[make_trial()], budget=40, deadline_seconds=math.inf)
    assert words in console.file.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("part", ["device", "description", "message", "note"])
@pytest.mark.parametrize("name", ["[red]", "[/nothing]", "[bold]x[/bold]"])
def test_texts_are_printed_as_they_are(watch, is_terminal, part, name):
    """What looks like rich's markup in a device, a config, a message or a note is text."""
    assert f"some {name}" in watch(is_terminal=is_terminal, **{part: f"some {name}"})


def test_a_failure_leaves_the_terminal_usable():
    """After an exception the cursor is shown again."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True)

    def work():
        with LiveView(console) as view:
            view.note("working")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    text = console.file.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


@pytest.fixture
def searched(make_trial, make_space, list_configs):
    """Seven trials from 700 down to 640 MiB, ever slower; those from 660 MiB down fit."""
    configs = list_configs(make_space())
    return [
        make_trial(
            configs[number],
            number=number,
            reference_seconds=0.5,
            peak_bytes=(700 - 10 * number) * MIB,
            step_seconds=(0.5 + number / 20,),
            outcome=Outcome.OK if number > 3 else Outcome.OVER_LIMIT,
        )
        for number in range(7)
    ]


def console_of(width, height=30, encoding="utf-8"):
    """A terminal of that size."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, force_terminal=True, width=width, height=height, highlight=False, color_system=None)


@pytest.mark.parametrize("width", [40, 60, 120])
def test_how_it_stands_fits_the_terminal(make_detection, searched, width):
    """The best, what is tried and expected, and the time are told, and no line is broken or too long."""
    console = console_of(width)
    view = LiveView(console)
    deadline = time.monotonic() + 36_000
    view.detected(make_detection(), 665 * MIB, known_trials=searched[:5], budget=40, deadline_seconds=deadline)
    for trial in searched[5:]:
        view.trial_begins(trial.number, trial.description, trial.reason)
        view.trial_ended(trial)
    expected = Prediction(
        peak_bytes=600 * MIB, peak_low=590 * MIB, peak_high=610 * MIB, step=1.25, step_low=1, step_high=2, fits=0.9
    )
    view.trial_begins(7, "a config of a very long name " * 5, "90% to fit", expected)
    lines = drawn(view, console).splitlines()
    assert max(map(len, lines)) <= width
    best, now, expecting, ends = lines[-4:]
    assert best.startswith(f"best  660 MiB, {0.5 / 0.7:.2f}x: ")
    assert now.startswith("now   trial 7: a config")
    assert expecting.startswith("      expected: 590 MiB to 610 MiB")
    assert ends.startswith("time  ")
    if width == 120:
        assert "90% to fit" in expecting
        assert "33 trials left at most, about " in ends
        assert re.search(r"ends within (600|59\d) min \d\d s$", ends)


def test_no_trials_are_promised_once_the_search_is_over(make_detection, searched):
    """A race and a confirmation take their own time, which nobody knows; a further trial brings the estimate back."""
    console = console_of(120)
    view = LiveView(console)
    view.detected(make_detection(), 665 * MIB, known_trials=[], budget=40, deadline_seconds=math.inf)
    view.trial_begins(0, "none", "baseline")
    view.trial_ended(searched[0])
    assert "39 trials left at most" in drawn(view, console)
    view.note("racing in interleaved rounds")
    assert "left at most" not in drawn(view, console)
    view.trial_begins(1, "a config", "91% to fit")
    assert "39 trials left at most" in drawn(view, console)


def test_who_is_confirmed_is_the_best_until_the_search_goes_on(make_detection, searched):
    """After the race its winner is told and starred, not the fastest trial; a further trial ends that."""
    console = console_of(80)
    view = LiveView(console)
    view.detected(make_detection(), 665 * MIB, known_trials=searched, budget=40, deadline_seconds=math.inf)
    fastest, starred = drawn(view, console).splitlines()[-3], stars(view, console)
    view.leads(searched[6], 0.9)
    view.note("confirming in a fresh process")
    assert drawn(view, console).splitlines()[-3] == f"best  640 MiB, 0.90x: {searched[6].description}"
    assert stars(view, console) != starred
    view.trial_begins(7, "a config", "why")
    assert drawn(view, console).splitlines()[-3] == fastest


def stars(view, console):
    """Where the best is drawn."""
    return [(row, line.find(DRAWN.best)) for row, line in enumerate(drawn(view, console).splitlines()) if "★" in line]


def test_the_plane_has_every_trial_and_the_limit(searched):
    """Fast is above and small is left; what fits, what does not and the best are told apart, with the scale below."""
    *lines, scale = draw_plane(searched, 665 * MIB, width=68, height=7, marks=DRAWN)
    assert [sum(line.count(mark) for line in lines) for mark in (DRAWN.fits, DRAWN.over, DRAWN.best)] == [2, 4, 1]
    columns = [place for line in lines if (place := max(map(line.find, (DRAWN.fits, DRAWN.over, DRAWN.best)))) >= 0]
    assert columns == sorted(columns, reverse=True)
    limits = {line.find(DRAWN.limit) for line in lines} - {-1}
    (limit,) = limits
    assert lines[3].find(DRAWN.over) > limit > lines[-1].find(DRAWN.fits)
    assert lines[0].split()[0].startswith("1.00x")
    assert scale.split() == ["640", "MiB", "limit", "665", "MiB", "700", "MiB"]


def test_too_little_is_not_drawn(searched, make_trial):
    """One trial, or none with figures, is no picture; equal ones are."""
    lost = make_trial(outcome=Outcome.OOM)
    assert draw_plane([searched[0], lost], 665 * MIB, width=60, height=6, marks=DRAWN) == []
    same = [make_trial(config, peak_bytes=665 * MIB) for config in (Config(), searched[1].config)]
    assert len(draw_plane(same, 665 * MIB, width=60, height=6, marks=DRAWN)) == 7


def test_a_terminal_without_unicode_gets_ascii(make_detection, searched):
    """Nothing is drawn that the terminal cannot show."""
    console = console_of(80, encoding="ascii")
    view = LiveView(console)
    view.detected(make_detection(), 665 * MIB, known_trials=searched, budget=40, deadline_seconds=math.inf)
    assert drawn(view, console).isascii()
    assert "*" in drawn(view, console)


def test_a_low_terminal_gets_no_drawing(make_detection, searched):
    """Where it would push the lines away there are only words."""
    console = console_of(80, height=12)
    view = LiveView(console)
    view.detected(make_detection(), 665 * MIB, known_trials=searched, budget=40, deadline_seconds=math.inf)
    assert len(drawn(view, console).splitlines()) == 3


@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_the_terminals_wishes_are_kept(make_trial, monkeypatch, settings):
    """A dumb terminal gets plain lines and nothing that moves, and NO_COLOR no colour."""
    for name, value in {"TERM": "xterm-256color", **settings}.items():
        monkeypatch.setenv(name, value)
    console = Console(file=io.StringIO(), width=100, force_terminal=True, highlight=False, soft_wrap=True)
    with LiveView(console) as view:
        view.trial_ended(make_trial())
        refresh(view)
    text = console.file.getvalue()
    assert "700 MiB" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text)
    assert ("\x1b" in text) == ("NO_COLOR" in settings)


PROGRAM = """
import sys, time
from autorecompute.reports.live import LiveView
with LiveView() as view:
    view.note("ready")
    view.trial_begins(0, "a long description " * 20, "because")
    while True:
        time.sleep(0.1)
"""


def read_until(terminal, pattern):
    """What a terminal shows until then."""
    shown = b""
    while not re.search(pattern, shown):
        shown += os.read(terminal, 4096)
    return shown.decode()


def resize(terminal, columns):
    """Makes a terminal so wide."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


def test_a_real_terminal_may_be_resized_and_interrupted():
    """Made narrower, the view keeps within the new width; after Ctrl-C the cursor is back and the lines are gone."""
    ours, theirs = pty.openpty()
    resize(ours, 100)
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as program:
        os.close(theirs)
        assert "\x1b[?25l" in read_until(ours, b"now   trial 0")
        resize(ours, 60)
        read_until(ours, rb"(?s)now   [^\r\n]*\r\n.*now   [^\r\n]*\r\n")
        narrow = read_until(ours, rb"now   [^\r\n]*\r\n")
        assert len(re.findall(r"now   [^\r\n]*", narrow)[-1]) <= 60
        program.send_signal(signal.SIGINT)
        assert "\x1b[?25h" in read_until(ours, rb"\x1b\[\?25h")
        os.close(ours)
        program.wait(timeout=60)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_note_cannot_steer_the_terminal(watch, is_terminal):
    """What a script or another study says is shown with its control characters written out."""
    shown = watch(is_terminal=is_terminal, description="\x1b[8mall", message="\x1b[2J", note="\x1b]0;title")
    assert not any(code in shown for code in ("\x1b[8m", "\x1b[2J", "\x1b]0;"))
    assert "\\x1b[2J" in shown
