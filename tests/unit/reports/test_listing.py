import dataclasses
import re

import pytest

from autorecompute.checking import check_speed
from autorecompute.emit import comment_lines
from autorecompute.figures import CurvePoint, Figures, Verdict
from autorecompute.measurement import Outcome
from autorecompute.reports.live import AXIS, draw_plane
from autorecompute.reports.tables import StudyLine, print_studies
from autorecompute.result import SearchEnd
from autorecompute.studies import list_studies
from autorecompute.units import MIB
from stand_ins.emitted import rendered


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    def listed(columns=200):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_studies([StudyLine.of(folder) for folder in list_studies(tmp_path / "studies")])
        return capsys.readouterr().out

    return listed


def test_studies_are_told_with_their_answers_and_open_ones_as_such(keep, listed, make_result):
    nothing = dataclasses.replace(make_result(verdict=Verdict.NO_FIT, trials=0), best=None)
    answers = {
        "a": None,
        "b": make_result(trials=0),
        "c": make_result(trials=0).ending(SearchEnd.INTERRUPTED),
        "d": nothing.ending(SearchEnd.TIME),
        "e": nothing,
    }
    for name, result in answers.items():
        keep((), result, name=name)
    begun, done, interrupted, unanswered, unfit = listed().splitlines()[1:]
    assert "no answer yet" in begun
    assert done.startswith("b ")
    assert "recompute_pays" in done
    assert "batch 32" in done
    assert "at batch 32, so far" in interrupted
    assert "no answer yet" in unanswered
    assert "no_fit" not in unanswered
    assert "no_fit" in unfit


def test_a_name_can_be_copied_from_a_pipe(keep, listed):
    name = "transformer_pretraining-train_with_deepspeed-b128-1f3a5c"
    script = "experiments/pretraining/train_with_deepspeed.py"
    keep(name=name, command=["python", script, *["--some-long-flag=value"] * 6])
    assert any(line.startswith(f"{name} ") for line in listed(columns=80).splitlines())


def test_names_commands_and_answers_are_printed_as_they_are_and_steer_no_terminal(keep, listed, make_result):
    result = make_result(of_best={"description": "\x1b]0;all\x07"}, trials=0)
    keep((), result, name="a[red]c", command=["python", "\x1b[31mtrain.py", "--layers", "[/all]"])
    out = listed()
    assert [word for word in ("a[red]c", "\\x1b[31mtrain.py", "[/all]", "\\x1b]0;all") if word not in out] == []
    assert "\x1b" not in out


SAMPLES_PER_SECOND = 32 / 35_200
TOLD = "0.000909"


@pytest.fixture
def trials(make_trial, list_configs, make_space):
    return [
        make_trial(config, number=n, peak_bytes=(600 + n) * MIB, step_seconds=(35_200.0 + 4_000 * n,))
        for n, config in enumerate(list_configs(make_space())[:2])
    ]


def test_a_slow_throughput_is_told_everywhere(show, table, make_result, trials, keep, read):  # noqa: PLR0917
    figures = Figures(outcome=Outcome.OK, batch=32, samples_per_second=SAMPLES_PER_SECOND, peak_bytes=600 * MIB)
    told = {"baseline": figures, "curve": (CurvePoint(batch=32, without=figures),)}
    result = make_result(trials[0].config, of_best={"samples_per_second": SAMPLES_PER_SECOND}, **told)
    printed = (show(result, trials, width=200), table(trials), comment_lines(result, rendered(result)))
    line = check_speed([SAMPLES_PER_SECOND, 2 * SAMPLES_PER_SECOND], result.best, is_same_device=True)
    assert (line.stored, line.here) == (f"{TOLD} samples/s", "0.00136 samples/s (0.000909-0.00182)")
    for text in (*map("\n".join, printed), read(keep(trials, result)).text):
        assert TOLD in text
        assert not re.search(r"(?<![\d.])0\.0(?![\d])", text)


def test_the_axis_of_the_drawing_is_straight_beside_long_labels(trials):
    *lines, _ = draw_plane(trials, 650 * MIB, width=60, height=5)
    assert lines[0].startswith(f"{TOLD}/s")
    assert len({line.index(AXIS) for line in lines}) == 1
