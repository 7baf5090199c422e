import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest

from autorecompute import codec
from autorecompute.emit import as_json, comment_lines
from autorecompute.figures import Comparison, CurvePoint, Figures, KnobFigures, RaceEnd, Ranking, Recomputed, Verdict
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer import (
    RUNNERS_UP,
    describe_fragments,
    peak_error,
    print_trials,
    runners_up,
    step_error,
    summarise,
)
from autorecompute.reports.documents import Answer
from autorecompute.result import SearchEnd, Transfer
from autorecompute.studies.folder import StudyFolder
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from stand_ins.emitted import rendered


@pytest.fixture
def trials(make_space, make_trial):
    """Six trials that fit, each faster than the one before, and one that does not."""
    plans = make_space().plans
    fitting = [
        make_trial(Config.of(plans[: index + 1]), number=index, reference_seconds=1.0, step_seconds=(2 - index / 10,))
        for index in range(5)
    ]
    alone = make_trial(Config.of(plans[1:2]), number=5, reference_seconds=1.0, step_seconds=(1.2,))
    return [*fitting, alone, make_trial(Config.of(plans[2:3]), number=6, outcome=Outcome.OVER_LIMIT)]


def row_of(lines, role):
    (line,) = [line for line in lines if line.startswith(role)]
    return line


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, ["700 MiB", "51.2 samples/s", "0.88x", " confirmed"]),
        ({"relative_throughput": 0.87, "relative_low": 0.86, "relative_high": 0.89}, ["0.87x (0.86-0.89)"]),
        ({"relative_throughput": 0.87, "relative_low": 0.3, "relative_high": 2.4}, ["0.87x (noisy)"]),
        ({"confirmed": False}, ["not confirmed"]),
    ],
)
def test_the_winner_is_told_with_its_figures(show, make_result, figures, words):
    result = make_result(of_best=figures)
    row = row_of(show(result), "best")
    assert [word for word in (result.best.description, *words) if word not in row] == []


def race(end, rounds, *rivals):
    return Ranking(end=end, rounds=rounds, confidence=0.99, rivals=rivals)


@pytest.mark.parametrize(
    ("ranking", "sentence"),
    [
        (race(RaceEnd.RANKED, 8), "ranked at 99 % in 8 rounds"),
        (race(RaceEnd.TIE, 8, "a"), "a tie with a at 99 % in 8 rounds, given to the lower peak"),
        (race(RaceEnd.ENOUGH, 2, *"ab"), "the fastest of 3 after 2 rounds; more rounds would not pay"),
        (race(RaceEnd.ALONE, 8), "no other one was left in 8 rounds"),
        (race(RaceEnd.UNDECIDED, 8, *"abc"), "no clear winner at 99 % after 8 rounds: a and 2 others may be as fast"),
        (race(RaceEnd.UNDECIDED, 1, *"ab"), "no clear winner at 99 % after 1 round: a and 1 other may be as fast"),
    ],
)
def test_how_sure_the_winner_is_stands_below(show, make_result, ranking, sentence):
    gradients = GradientCheck(agrees=True, worst=0.0, steps=1)
    lines = show(make_result(of_best={"ranking": ranking, "gradients": gradients}))
    assert f"finalists: {sentence}" in lines
    assert "gradients equal bit for bit to those without recompute, over 1 step" in lines


def test_what_is_expected_or_unknown_is_told_from_what_was_measured(show, make_result, expected):
    rival = Figures(outcome=Outcome.OK, batch=20, samples_per_second=40.0, peak_bytes=600 * MIB)
    presets = {"light": Figures(), "all_on": Figures()}
    lines = show(make_result(presets=presets, expected={"all_on": expected}, rival=rival))
    assert row_of(lines, "baseline").split() == ["baseline", "none", "-", "-", "-", "oom"]
    light, all_on = [line for line in lines if line.startswith("preset")]
    assert light.split() == ["preset", "light", "-", "-", "-", "not", "measured"]
    for row, words in (
        (all_on, ("all on", "~512 MiB", "~0.80x", "expected, not measured")),
        (row_of(lines, "smaller batch"), ("batch 20", "600 MiB", "40.0 samples/s")),
    ):
        assert [word for word in words if word not in row] == []


def test_the_fastest_others_are_the_runners_up_on_a_card_by_their_steps(show, make_result, trials):
    """Without recompute the batch ran out of memory there, so that nothing has a relative throughput."""
    lines = show(make_result(trials[4].config), trials)
    names = [line.removeprefix("runner-up").split("  ")[1].strip() for line in lines if line.startswith("runner-up")]
    assert names == [trials[place].description for place in (5, 3, 2)]
    alone = [dataclasses.replace(one, reference_seconds=None, reference_cpu_seconds=None) for one in trials if one.fits]
    alone.sort(key=lambda trial: trial.measurement.median_step_seconds)
    found = runners_up(make_result(alone[0].config, raced={}), alone[::-1])
    assert [other.description for other in found] == [trial.description for trial in alone[1 : 1 + RUNNERS_UP]]


@pytest.mark.parametrize(
    ("end", "words"), [(SearchEnd.INTERRUPTED, "interrupted"), (SearchEnd.TIME, "the time is over")], ids=str
)
def test_an_early_end_is_told_with_what_is_not_known(show, make_result, end, words):
    unknown = make_result(search_end=end, compared=False, verdict=Verdict.UNDECIDED)
    text = "\n".join(show(unknown, width=250))
    assert f"{words}: this is the best that was confirmed; rerun the command" in text
    assert "verdict: undecided: " in text
    assert "was not compared side by side. Rerun the command" in text


def test_what_nobody_confirmed_is_not_called_confirmed(show, make_result):
    found = make_result(of_best={"confirmed": False}, verdict=Verdict.UNDECIDED, search_end=SearchEnd.TRAINING)
    text = "\n".join(show(found, width=250))
    assert "no steps left for trials: this is the fastest so far, and no process has confirmed it" in text
    assert "verdict: undecided: found while training, where no smaller batch is tried" in text
    assert not any(words in text for words in ("best that was confirmed", "interrupted", "only with recompute"))


@pytest.mark.parametrize(("trials", "has_table"), [(14, True), (0, False)])
def test_no_answer_in_time_is_no_proof_that_nothing_fits(show, make_result, trials, has_table):
    unanswered = dataclasses.replace(make_result(verdict=Verdict.NO_FIT, trials=trials), best=None)
    text = "\n".join(show(unanswered.ending(SearchEnd.TIME)))
    assert "no config holds the limit" not in text
    assert "no answer yet" in text
    assert ("baseline" in text) == has_table


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        ({"ratio": 0.97, "low": 0.94, "high": 1.02, "pairs": 5}, ("within the noise of 5 pairs", "--steps")),
        ({"ratio": 0.6, "pairs": 0}, ("was not compared side by side",)),
    ],
)
def test_a_comparison_that_decides_nothing_claims_nothing(show, make_result, comparison, words):
    result = make_result(verdict=Verdict.UNDECIDED, comparison=Comparison(is_clear=False, **comparison))
    text = "\n".join(show(result, width=250))
    assert [word for word in ("verdict: undecided: ", *words) if word not in text] == []
    assert "2 % faster" not in text


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("compared", [True, False])
def test_every_output_tells_the_verdict_in_the_same_words(show, make_result, verdict, compared):
    result = make_result(verdict=verdict, compared=compared)
    emission = rendered(result, Path("/studies/bert"))
    sentence = result.verdict_sentence
    assert len(sentence.split()) > 3
    assert f"verdict: {sentence}" in show(result, width=300)
    assert json.loads(codec.dumps(Answer.of(result, (), emission)))["verdict_sentence"] == sentence
    assert json.loads(as_json(result, emission))["verdict_sentence"] == sentence
    assert f"# verdict: {sentence}" in comment_lines(result, emission)


def test_where_it_started_from_is_told_and_a_batch_that_the_tuner_gave_has_to_be_given(show, make_result):
    near = Transfer(study="small", differences=("batch 32, not 16",))
    assert "warm start from study small: batch 32, not 16" in show(make_result(transferred_from=near))
    same = show(make_result(transferred_from=Transfer(study="small")))
    assert "takes over the trials and the answer of study small: the same problem" in same
    told = ["batch size to 32" in "\n".join(show(make_result(command_gives_batch=gives))) for gives in (False, True)]
    assert told == [True, False]


@pytest.mark.parametrize("end", SearchEnd)
def test_a_search_that_ended_early_speaks_of_the_best_so_far(show, make_result, end):
    text = "\n".join(show(make_result(verdict=Verdict.DOES_NOT_PAY, search_end=end), width=200))
    assert ("does not pay so far" in text and "the best found so far" in text) == end.is_early


def test_nothing_is_to_be_pasted_where_nothing_fits_and_nothing_to_be_set_where_none_is_needed(show, make_result):
    text = "\n".join(show(dataclasses.replace(make_result(verdict=Verdict.NO_FIT), best=None)))
    assert "no fit" in text
    assert "export" not in text
    assert "train with it" not in text
    lines = show(make_result(of_best={"config": Config()}))
    assert not any(line.strip().startswith(("export", "or, ", "#")) for line in lines)
    assert any("autorecompute run bert -- python train.py" in line for line in lines)
    assert "Or start it as it is: nothing has to be set." in lines


@pytest.mark.parametrize("width", [40, 250])
def test_lines_to_paste_are_never_broken(show, make_result, width, tmp_path):
    folder = StudyFolder("it's", Path("/studies", *["a folder"] * 30))
    lines = show(make_result(command=["python", "train.py", *["--flag"] * 60]), width=width, folder=folder)
    export = row_of([line.strip() for line in lines], "export")
    (tmp_path / "pasted.sh").write_text(f'{export}\nprintf %s "$FAKE_PLANS"\n')
    read = subprocess.run(["/bin/sh", str(tmp_path / "pasted.sh")], capture_output=True, text=True, check=False)
    assert read.stdout == str(folder.best / "plans.json")
    assert row_of([line.strip() for line in lines], "autorecompute run").count("--flag") == 60


@pytest.mark.parametrize("name", ["[red]", "blocks.*/gelu[/]", "[/nothing]", "[link=x]y", "a[0]"])
def test_names_are_printed_as_they_are(show, table, make_result, make_trial, name):
    device = dataclasses.replace(make_result().device, name=f"device {name}")
    result = make_result(of_best={"description": f"best {name}"}, device=device, study=f"study{name}")
    trial = make_trial(Config.parse(["blocks.*/gelu:drop"]), description=f"trial {name}", reason=f"because {name}")
    folder = StudyFolder("study", Path(f"study{name}"))
    text = "\n".join(show(result, [trial], width=400, folder=folder))
    for words in (f"best {name}", f"device {name}", f"study{name}", f"trial {name}"):
        assert words in text
    (_, row) = table([trial])
    assert f"trial {name}" in row
    assert f"because {name}" in row


def test_every_trial_has_its_row_and_disturbed_ones_are_numbered_below_the_table(table, trials, make_trial, capsys):
    rows = table(trials)[1:]
    assert [row.split()[0] for row in rows] == [str(trial.number) for trial in trials]
    assert rows[-1].split()[-1] == "over_limit"
    row = table([make_trial(outcome=Outcome.OOM, reason="presets")])[1]
    assert row.split() == ["0", "none", "presets", "-", "-", "-", "-", "-", "-", "oom"]
    assert len(table([])) == 1
    found = [make_trial(number=number, marks=("host busy",) if number else ()) for number in range(3)]
    assert table(found)[-1] == "2 trials disturbed by something else on the machine: 1, 2"
    assert not any("disturbed" in line for line in table(found[:1]))
    print_trials(trials)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(trials) + 1
    # Off a terminal nobody gets blanks up to the width of the widest cell.
    assert not [line for line in lines if re.search(r"\s$", line)]


def test_knobs_are_told_with_what_they_changed(show, make_result):
    base = {"outcome": Outcome.OK, "base_peak_bytes": 600 * MIB}
    knobs = (
        KnobFigures(name="fast", throughput_ratio=1.08, low=1.05, high=1.11, peak_bytes=610 * MIB, kept=True, **base),
        KnobFigures(name="slow", throughput_ratio=0.9, low=0.8, high=1.0, peak_bytes=590 * MIB, **base),
        KnobFigures(name="broken", outcome=Outcome.CRASH, message="signal 11"),
        KnobFigures(name="absent", why_not="it is for CUDA only"),
        KnobFigures(name="late"),
    )
    lines = show(make_result(knobs=knobs))
    assert row_of(lines, "fast").split() == ["fast", "1.08x", "1.05-1.11", "610", "MiB", "+10", "MiB", "kept"]
    assert row_of(lines, "slow").split()[-4:] == ["-10", "MiB", "not", "kept"]
    assert row_of(lines, "broken").endswith("crash: signal 11")
    assert row_of(lines, "absent").endswith("not tried: it is for CUDA only")
    assert row_of(lines, "late").endswith("was not tried yet")


@pytest.mark.parametrize(("seconds", "is_told"), [(0.2, True), (0.6, False)])
def test_a_winner_far_from_its_own_trial_is_told(show, make_result, make_trial, seconds, is_told):
    """One config with 51.25 samples/s in one process and 160 in another was disturbed in one of them."""
    result = make_result()
    own = make_trial(result.best.config, step_seconds=(seconds,))
    text = " ".join(" ".join(show(result, [own])).split())
    assert ("51.2 samples/s in its own process and 160.0 samples/s in its trial" in text) is is_told


@pytest.mark.parametrize(
    ("kind", "allocated", "is_told"),
    [("cuda", 600, True), ("cuda", 690, False), ("cpu", 600, False)],
    ids=["a seventh lost", "little lost", "no card"],
)
def test_what_an_allocator_loses_to_fragments_is_told(make_result, make_trial, kind, allocated, is_told):
    result = make_result(device=Device(kind=kind, name="Some Card", total_bytes=80 * GIB))
    own = make_trial(result.best.config, peak_bytes=700 * MIB, allocated_bytes=allocated * MIB)
    told = describe_fragments(result, [make_trial(), own])
    assert ("reserved 700 MiB of the card for 600 MiB of tensors" in told) is bool(told) is is_told
    growing = {**result.versions, "allocator": "expandable_segments:True"}
    for other in ({"best": None}, {"versions": growing}):
        assert describe_fragments(dataclasses.replace(result, **other), [own]) == ""


def test_predictions_are_summed_up_in_a_line_with_errors_of_the_expected(make_trial, expected):
    """A peak of 100 bytes, and 1.25 times the reference's step."""
    prediction = dataclasses.replace(expected, peak_bytes=100, peak_low=95, peak_high=105)

    def predicted(peak_bytes, seconds):
        trial = make_trial(peak_bytes=peak_bytes, step_seconds=(seconds,), reference_seconds=1.0)
        return dataclasses.replace(trial, prediction=prediction)

    trial = predicted(110, 1.0)
    assert peak_error(trial) == pytest.approx(0.1)
    assert step_error(trial) == pytest.approx(-0.2)
    assert peak_error(make_trial(peak_bytes=1)) is None
    assert step_error(dataclasses.replace(trial, reference_seconds=None)) is None
    line = summarise([predicted(104, 1.25), predicted(90, 1.25), predicted(101, 1.5), make_trial()]).sentence
    assert "peaks 4.0% off in the median and 10.0% at worst, 2 of 3 within" in line
    assert line.endswith("step times 0.0% off in the median, 2 of 3 within theirs")
    assert "relied" not in line
    assert "relied on its trials" in summarise([predicted(106, 1.25), predicted(94, 1.25)]).sentence
    assert summarise([make_trial()]) is None


WIDTHS = pytest.mark.parametrize("width", [40, 60, 70, 80, 84, 100, 104, 120])
NAME = "blocks.*.attention/linear and blocks.*.mlp/layer_norm"


def lines_before(lines, end):
    return lines[: next(place for place, line in enumerate(lines) if line.startswith(end))]


def assert_whole(lines, width, words):
    """Every word is in one piece, and no line is wider than the terminal."""
    found = {word.strip(",:") for line in lines for word in line.split()}
    assert [word for text in words for word in text.split() if word not in found] == []
    assert max(map(len, lines)) <= width


@WIDTHS
def test_the_answer_a_curve_and_knobs_are_whole_at_any_width(show, make_result, expected, width):
    """It has all that makes a table wide: an interval, many samples/s, and a preset that was not measured."""
    best = {"samples_per_second": 15924.4, "relative_throughput": 0.69, "relative_low": 0.46, "relative_high": 1.07}
    presets = {"every_second_block": Figures(), "all_on": Figures()}
    result = make_result(
        of_best={"description": NAME, **best}, presets=presets, expected={"every_second_block": expected}
    )
    lines = lines_before(show(result, width=width), "verdict")
    assert_whole(lines, width, [NAME, "every second block", "all on", "baseline none", "confirmed"])
    for figure in ("700 MiB", "15924.4 samples/s", "0.69x (0.46-1.07)", "~512 MiB", "~0.80x", "expected, not measured"):
        assert any(figure in line for line in lines)
    figures = Figures(outcome=Outcome.OK, batch=32, samples_per_second=15095.1, peak_bytes=600 * MIB)
    recomputed = Recomputed(study="bert-b32", description="blocks.*/layer_norm", figures=figures, config=Config())
    curve = (CurvePoint(batch=32, without=figures, recomputed=recomputed),)
    knob = KnobFigures(
        name="expandable_segments", outcome=Outcome.OK, kept=True, throughput_ratio=1.08, low=1.05, high=1.11,
        peak_bytes=610 * MIB, base_peak_bytes=600 * MIB,
    )  # fmt: skip
    lines = show(dataclasses.replace(result, curve=curve, knobs=(knob,)), width=width)
    assert_whole(lines_before(lines, "verdict"), width, ["32", "15095.1", "600 MiB", "blocks.*/layer_norm"])
    assert_whole(
        lines_before(lines, "train with"), width, ["expandable_segments", "1.08x", "1.05-1.11", "610 +10", "kept"]
    )


@WIDTHS
def test_trials_are_whole_at_any_width(table, make_trial, expected, width):
    trials = [
        make_trial(Config.parse(["blocks.*/gelu:drop"]), number=7, description=NAME, reason="the best at 12 % to fit"),
        make_trial(number=8, outcome=Outcome.WRONG_GRADIENT),
    ]
    lines = table([dataclasses.replace(trial, prediction=expected) for trial in trials], width)
    assert_whole(lines, width, ["7 8", NAME, "none", "ok", "wrong_gradient"])
    assert any("700 MiB" in line for line in lines)


def test_a_narrow_terminal_does_without_what_matters_least(table, make_trial, expected):
    """Before a table becomes a list, the reasons and what was expected are left out of it."""
    trial = dataclasses.replace(make_trial(description=NAME, reason="presets"), prediction=expected)
    texts = ["\n".join(table([trial], width)) for width in (200, 80, 60)]
    assert ["presets" in text for text in texts] == [True, False, True]
    assert ["config" in text for text in texts] == [True, True, False]
