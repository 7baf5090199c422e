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
from autorecompute.reports.live import FITS, LIMIT, OVER, STAR, LiveView, draw_plane
from autorecompute.units import MIB
from unit.conftest import build_detection, build_result, build_space, build_trial


def refresh(view):
    """Draws what moves now, and not when its thread comes to it."""
    if view._live is not None:
        view._live.refresh()


def watch(*, is_terminal=False, device="Some Processor", description="all plans", message="no memory", note="hello"):
    """What the view prints of a short tuning."""
    console = Console(
        file=io.StringIO(), width=80, force_terminal=is_terminal, highlight=False, soft_wrap=True, color_system=None
    )
    detection = build_detection()
    detection = dataclasses.replace(detection, device=dataclasses.replace(detection.device, name=device))
    known = [build_trial(number=number) for number in range(2)]
    with LiveView(console) as view:
        view.detected(detection, 600 * MIB, known_trials=known, budget=40, deadline_seconds=math.inf)
        for number, outcome, text in ((2, Outcome.OK, ""), (3, Outcome.OOM, message)):
            view.trial_begins(number, description, description)
            refresh(view)
            measured = {"reference_seconds": 0.25, "outcome": outcome, "message": text}
            view.trial_ended(build_trial(number=number, description=description, **measured))
        view.note(note)
        refresh(view)
    return console.file.getvalue()


def test_an_answer_that_may_be_used_is_shown_from_then_on():
    usable = build_result().best
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with LiveView(console) as view:
        view.may_be_used(usable)
        view.note("hello")
        refresh(view)
    drawn = console.file.getvalue()
    assert "may be used from now on" in drawn
    assert f"confirmed: {usable.description}" in drawn.rpartition("hello")[0].rpartition("yours")[2]


def test_without_a_terminal_each_event_is_a_plain_line_with_its_figures():
    text = watch(message="no memory " * 20)
    assert not {"\x1b", "\r"}.intersection(text)
    detected, known, measured, failed, _ = lines = text.splitlines()
    assert all(re.match(r"\[ *\d+ ms\] |\[ *[\d.]+ s\] ", line) for line in lines)
    for words in ("5 plans", "batch 32", "600 MiB", "3.1"):
        assert words in detected
    assert "2 trials of an earlier session" in known
    assert measured.split("] ")[1].split() == ["2", "all", "plans", "700", "MiB", "0.50x", "ok"]
    assert failed.split("] ")[1].split() == ["3", "all", "plans", "-", "-", "oom", *["no", "memory"] * 20]


def test_a_trial_without_a_reference_is_told_in_samples_a_second_and_what_all_workers_measured_as_such():
    """No recompute runs out of memory on a card as a rule: there is no share of it then."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    with LiveView(console) as view:
        view.trial_ended(build_trial(step_seconds=(0.5,), marks=("host busy: 1.4 of 2 cores by others",)))
    assert console.file.getvalue().rstrip().endswith("64.0 samples/s  ok host busy: 1.4 of 2 cores by others")
    console = Console(file=io.StringIO(), width=200, highlight=False)
    view = LiveView(console, is_shared=True)
    view.detected(build_detection(), 600 * MIB, known_trials=[build_trial()], budget=40, deadline_seconds=math.inf)
    assert "of all workers" in console.file.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("part", ["device", "description", "message", "note"])
@pytest.mark.parametrize(
    ("text", "shown"),
    [("[red]", "[red]"), ("[/nothing]", "[/nothing]"), ("\x1b[8m\x1b]0;title", "\\x1b[8m\\x1b]0;title")],
)
def test_texts_are_printed_as_they_are_and_steer_no_terminal(is_terminal, part, text, shown):
    printed = watch(is_terminal=is_terminal, **{part: f"some {text}"})
    assert f"some {shown}" in printed
    assert not any(code in printed for code in ("\x1b[8m", "\x1b]0;"))


@pytest.fixture
def searched(list_configs):
    """Seven trials from 700 down to 640 MiB, ever slower; those from 660 MiB down fit."""
    figures = [{"peak_bytes": (700 - 10 * n) * MIB, "step_seconds": (0.5 + n / 20,)} for n in range(7)]
    outcomes = [Outcome.OVER_LIMIT] * 4 + [Outcome.OK] * 3
    configs = list_configs(build_space())[:7]
    return [
        build_trial(config, number=number, reference_seconds=0.5, outcome=outcomes[number], **figures[number])
        for number, config in enumerate(configs)
    ]


def begin(known=(), *, width=80, height=30, encoding="utf-8", deadline=math.inf):
    """A view of a tuning with these trials on a terminal, and what gives the lines that stand below its notes now."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, force_terminal=True, width=width, height=height, highlight=False, color_system=None)
    view = LiveView(console)
    view.detected(build_detection(), 665 * MIB, known_trials=known, budget=40, deadline_seconds=deadline)

    def drawn():
        with console.capture() as capture:
            console.print(view._render())
        return capture.get().splitlines()

    return view, drawn


@pytest.mark.parametrize("width", [40, 60, 120])
def test_how_it_stands_fits_the_terminal(searched, expected, width):
    view, drawn = begin(searched[:5], width=width, deadline=time.monotonic() + 36_000)
    for trial in searched[5:]:
        view.trial_begins(trial.number, trial.description, trial.reason)
        view.trial_ended(trial)
    view.trial_begins(7, "a config of a very long name " * 5, "90% to fit", expected)
    lines = drawn()
    assert max(map(len, lines)) <= width
    best, now, expecting, ends = lines[-4:]
    assert best.startswith(f"best  660 MiB, {0.5 / 0.7:.2f}x: ")
    assert now.startswith("now   trial 7: a config")
    assert expecting.startswith("      expected: 500 MiB to 520 MiB")
    assert ends.startswith("time  ")
    if width == 120:
        assert "90% to fit" in expecting
        assert "33 trials left at most, about " in ends
        assert re.search(r"ends within (600|5\d\d) min \d\d s$", ends)


def test_no_trials_are_promised_while_a_race_takes_its_own_time(searched):
    view, drawn = begin(width=120)
    view.trial_begins(0, "none", "baseline")
    view.trial_ended(searched[0])
    assert "39 trials left at most" in drawn()[-1]
    view.note("racing in interleaved rounds")
    assert "left at most" not in "".join(drawn())
    view.trial_begins(1, "a config", "91% to fit")
    assert "39 trials left at most" in drawn()[-1]


def test_who_is_confirmed_is_the_best_until_the_search_goes_on(searched):
    """After the race its winner is told and starred, not the fastest trial; a further trial ends that."""
    view, drawn = begin(searched)

    def stars():
        return [(row, line.find(STAR)) for row, line in enumerate(drawn()) if "★" in line]

    fastest, starred = drawn()[-3], stars()
    view.leads(searched[6], 0.9)
    view.note("confirming in a fresh process")
    assert drawn()[-3] == f"best  640 MiB, 0.90x: {searched[6].description}"
    assert stars() != starred
    view.trial_begins(7, "a config", "why")
    assert drawn()[-3] == fastest


def test_the_plane_has_every_trial_and_the_limit_and_too_little_is_not_drawn(searched):
    """Fast is above and small is left; what fits, what does not and the best are told apart, with the scale below."""
    *lines, scale = draw_plane(searched, 665 * MIB, width=68, height=7)
    assert [sum(line.count(mark) for line in lines) for mark in (FITS, OVER, STAR)] == [2, 4, 1]
    columns = [place for line in lines if (place := max(map(line.find, (FITS, OVER, STAR)))) >= 0]
    assert columns == sorted(columns, reverse=True)
    (limit,) = {line.find(LIMIT) for line in lines} - {-1}
    assert lines[3].find(OVER) > limit > lines[-1].find(FITS)
    assert lines[0].split()[0].startswith("1.00x")
    assert scale.split() == ["640", "MiB", "limit", "665", "MiB", "700", "MiB"]
    lost = build_trial(outcome=Outcome.OOM)
    assert draw_plane([searched[0], lost], 665 * MIB, width=60, height=6) == []
    same = [build_trial(config, peak_bytes=665 * MIB) for config in (Config(), searched[1].config)]
    assert len(draw_plane(same, 665 * MIB, width=60, height=6)) == 7


def test_a_terminal_without_unicode_gets_ascii_and_a_low_one_words_alone(searched):
    _, drawn = begin(searched, encoding="ascii")
    assert "".join(drawn()).isascii()
    assert "*" in "".join(drawn())
    assert len(begin(searched, height=12)[1]()) == 3


@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_the_terminals_wishes_are_kept(monkeypatch, settings):
    for name, value in {"TERM": "xterm-256color", **settings}.items():
        monkeypatch.setenv(name, value)
    console = Console(file=io.StringIO(), width=100, force_terminal=True, highlight=False, soft_wrap=True)
    with LiveView(console) as view:
        view.trial_ended(build_trial())
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
    shown = b""
    while not re.search(pattern, shown):
        shown += os.read(terminal, 4096)
    return shown.decode()


def resize(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


def test_a_real_terminal_may_be_resized_and_interrupted():
    ours, theirs = pty.openpty()
    resize(ours, 100)
    command = ["env", "-u", "COLUMNS", "-u", "LINES", "TERM=xterm", sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        assert "\x1b[?25l" in read_until(ours, b"now   trial 0")
        resize(ours, 60)
        read_until(ours, rb"(?s)now   [^\r\n]*\r\n.*now   [^\r\n]*\r\n")
        narrow = read_until(ours, rb"now   [^\r\n]*\r\n")
        assert len(re.findall(r"now   [^\r\n]*", narrow)[-1]) <= 60
        program.send_signal(signal.SIGINT)
        read_until(ours, rb"\x1b\[\?25h")
        os.close(ours)
