"""The live view: lines for a file, a bar for a terminal."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

from autorecompute.measurement import Outcome
from autorecompute.reports.live import LiveView
from autorecompute.units import MIB


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
            view.detected(detection, 600 * MIB, known_trials=2, budget=40)
            for number, outcome in ((2, Outcome.OK), (3, Outcome.OOM)):
                view.trial_begins(number, description, description)
                view._bar.refresh()
                text = message if outcome is Outcome.OOM else ""
                view.trial_ended(
                    make_trial(
                        number=number, description=description, reference_seconds=0.25, outcome=outcome, message=text
                    )
                )
            view.note(note)
            view._bar.refresh()
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


def test_a_disturbed_trial_says_so_in_its_line(make_trial):
    """Marks stand behind the outcome of the trial they belong to."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    with LiveView(console) as view:
        view.trial_ended(make_trial(marks=("host busy: 1.4 of 2 cores by others",)))
    assert console.file.getvalue().rstrip().endswith("ok host busy: 1.4 of 2 cores by others")


def test_an_earlier_session_is_told(watch):
    """The first lines tell the plans, the limit, the versions and how far an earlier session came."""
    detected, known = watch().splitlines()[:2]
    for words in ("5 plans", "batch 32", "600 MiB", "1.19.2"):
        assert words in detected
    assert "2 trials" in known


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
