"""The last screen of a tuning and the table of its trials, as a terminal shows them."""

import dataclasses
import io
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from autorecompute.emit.emitted import Emitted
from autorecompute.emit.provenance import comment_lines
from autorecompute.figures import Comparison, Figures, KnobFigures
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.prediction import Prediction
from autorecompute.ranking import RaceEnd, Ranking
from autorecompute.reports.answer import RUNNERS_UP, runners_up
from autorecompute.reports.answer_json import Answer
from autorecompute.reports.screen import print_result, print_trials
from autorecompute.result import SearchEnd, Transfer
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from stand_ins.emitted import rendered

FOLDER = Path("/studies/bert")


@pytest.fixture
def show(make_result):
    """The lines of the last screen."""

    def show(result=None, trials=(), width=80, place=FOLDER):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        result = result or make_result()
        print_result(result, trials, FOLDER, rendered(result, place), console)
        return console.file.getvalue().splitlines()

    return show


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
    """The one line of a role, by words."""
    (line,) = [line for line in lines if line.startswith(role)]
    return line


def test_the_winner_is_told_with_its_figures(show, make_result):
    """One row has the winner's name, peak, throughput and share, and that it was confirmed."""
    row = row_of(show(width=120), "best")
    for words in (make_result().best.description, "700 MiB", "51.2 samples/s", "0.88x", " confirmed"):
        assert words in row


def test_a_relative_figure_is_told_with_its_spread(show, make_result):
    """The winner's share of the throughput has its interval beside it, or that this tells nothing."""
    best = dataclasses.replace(make_result().best, relative_throughput=0.87, relative_low=0.86, relative_high=0.89)
    assert "0.87x (0.86-0.89)" in row_of(show(dataclasses.replace(make_result(), best=best), width=120), "best")
    wild = dataclasses.replace(best, relative_low=0.3, relative_high=2.4)
    assert "0.87x (noisy)" in row_of(show(dataclasses.replace(make_result(), best=wild), width=120), "best")


@pytest.mark.parametrize(
    ("end", "rivals", "sentence"),
    [
        (RaceEnd.RANKED, (), "race: ranked at 99 % in 8 rounds"),
        (
            RaceEnd.TIE,
            ("blocks.*/gelu",),
            "race: a tie with blocks.*/gelu at 99 % in 8 rounds, given to the lower peak",
        ),
        (RaceEnd.ALONE, (), "race: no rival was left in 8 rounds"),
        (
            RaceEnd.UNDECIDED,
            ("a", "b", "c"),
            "race: no clear winner at 99 % after 8 rounds: a and 2 others may be as fast",
        ),
    ],
)
def test_how_sure_the_winner_is_stands_below(show, make_result, end, rivals, sentence):
    """A lead, a tie and a race without a decision are told apart, with who else was left."""
    ranking = Ranking(end=end, rounds=8, confidence=0.99, rivals=rivals)
    best = dataclasses.replace(make_result().best, ranking=ranking)
    assert sentence in show(dataclasses.replace(make_result(), best=best), width=120)


def test_one_is_no_plural(show, make_result):
    """A race can be cut off after its first round, and one step is enough to compare gradients."""
    ranking = Ranking(end=RaceEnd.UNDECIDED, rounds=1, confidence=0.99, rivals=("a", "b"))
    gradients = GradientCheck(agrees=True, worst=0.0, steps=1)
    best = dataclasses.replace(make_result().best, ranking=ranking, gradients=gradients)
    lines = show(dataclasses.replace(make_result(), best=best), width=120)
    assert "race: no clear winner at 99 % after 1 round: a and 1 other may be as fast" in lines
    assert "gradients equal bit for bit to those without recompute, over 1 step" in lines


def test_an_unconfirmed_winner_is_told_apart(show, make_result):
    """A config that was not confirmed is never called so."""
    best = dataclasses.replace(make_result().best, confirmed=False)
    assert "not confirmed" in row_of(show(dataclasses.replace(make_result(), best=best)), "best")


def test_a_preset_that_was_not_measured_has_what_is_expected_of_it(show, make_result):
    """Expected figures are marked as such, and never stand beside measured ones."""
    expected = Prediction(
        peak_bytes=512 * MIB, peak_low=500 * MIB, peak_high=520 * MIB, step=1.25, step_low=1.2, step_high=1.3, fits=0.9
    )
    result = dataclasses.replace(make_result(), presets={"all_on": Figures()}, expected={"all_on": expected})
    row = row_of(show(result, width=120), "preset")
    for words in ("all on", "~512 MiB", "~0.80x", "expected, not measured"):
        assert words in row


def test_what_was_not_measured_is_a_dash(show, make_result):
    """Neither a preset that was never tried nor a baseline out of memory has a figure that looks like one."""
    result = dataclasses.replace(make_result(), presets={"light": Figures()})
    lines = show(result, width=120)
    assert row_of(lines, "baseline").split() == ["baseline", "none", "-", "-", "-", "oom"]
    assert row_of(lines, "preset").split() == ["preset", "light", "-", "-", "-", "not", "measured"]


def test_the_fastest_others_are_the_runners_up(show, make_result, trials):
    """A few of the trials that fit follow the winner, the fastest first, and the winner is none of them."""
    lines = show(dataclasses.replace(make_result(best=trials[4].config)), trials, width=120)
    names = [line.removeprefix("runner-up").split("  ")[1].strip() for line in lines if line.startswith("runner-up")]
    assert names == [trials[place].description for place in (5, 3, 2)]


def test_runners_up_on_a_card_are_the_fastest_by_their_steps(make_result, trials):
    """Without recompute the batch ran out of memory there, so that nothing has a relative throughput."""
    alone = [dataclasses.replace(one, reference_seconds=None, reference_cpu_seconds=None) for one in trials if one.fits]
    alone.sort(key=lambda trial: trial.measurement.median_step_seconds)
    found = runners_up(dataclasses.replace(make_result(best=alone[0].config), raced={}), alone[::-1])
    assert [name for name, _ in found] == [trial.description for trial in alone[1 : 1 + RUNNERS_UP]]


def test_the_rival_is_told_with_its_batch(show, make_result):
    """The smaller batch without recompute has a row of its own."""
    rival = Figures(outcome=Outcome.OK, batch=20, samples_per_second=40.0, peak_bytes=600 * MIB)
    row = row_of(show(dataclasses.replace(make_result(), rival=rival), width=120), "rival")
    for words in ("batch 20", "600 MiB", "40.0 samples/s"):
        assert words in row


@pytest.mark.parametrize(
    ("end", "words"), [(SearchEnd.INTERRUPTED, "interrupted"), (SearchEnd.TIME, "the time is over")], ids=str
)
def test_an_early_end_is_told_with_what_is_not_known(show, make_result, end, words):
    """An answer that was compared with nothing does not say that no smaller batch is faster, and how to go on."""
    unknown = make_result(search_end=end, compared=False, verdict=Verdict.UNDECIDED)
    text = "\n".join(show(unknown, width=250))
    assert f"{words}: this is the best that was confirmed; the same command goes on" in text
    assert "verdict: undecided: " in text
    assert "was not compared side by side. The same command goes on" in text


def test_what_nobody_confirmed_is_not_called_confirmed(show, make_result):
    """What a training found is no one's interruption, and nothing is said of batches that it cannot try."""
    found = make_result(verdict=Verdict.UNDECIDED, search_end=SearchEnd.TRAINING)
    text = "\n".join(show(dataclasses.replace(found, best=dataclasses.replace(found.best, confirmed=False)), width=250))
    assert "no steps left for trials: this is the fastest so far, and no process has confirmed it" in text
    assert "verdict: undecided: found while training, where no smaller batch is tried" in text
    assert not any(words in text for words in ("best that was confirmed", "interrupted", "only with recompute"))


def test_no_answer_in_time_is_no_proof_that_nothing_fits(show, make_result):
    """Where the time was over first, the verdict does not blame the limit."""
    unanswered = dataclasses.replace(make_result(), best=None, verdict=Verdict.NO_FIT)
    lines = show(unanswered.ending(SearchEnd.TIME))
    assert not any("no config holds the limit" in line for line in lines)
    assert any("no answer yet" in line for line in lines)


def test_a_comparison_that_bears_no_verdict_says_what_would_decide(show, make_result):
    """Within the noise of its pairs nothing is claimed, and a quiet machine or more steps are the way out."""
    close = Comparison(ratio=0.97, low=0.94, high=1.02, pairs=5, is_clear=False)
    text = "\n".join(show(make_result(verdict=Verdict.UNDECIDED, comparison=close), width=250))
    assert "verdict: undecided: " in text
    assert "within the noise of 5 pairs" in text
    assert "--steps" in text


def test_processes_that_ran_minutes_apart_claim_nothing(show, make_result):
    """Without a pair of neighbours the verdict says that nothing was measured side by side."""
    apart = Comparison(ratio=0.6, pairs=0, is_clear=False)
    text = "\n".join(show(make_result(verdict=Verdict.UNDECIDED, comparison=apart), width=250))
    assert "was not compared side by side" in text
    assert "2 % faster" not in text


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("compared", [True, False])
def test_every_output_has_the_same_words(show, make_result, verdict, compared):
    """Screen, JSON, emitted JSON and the comments beside emitted variables give one and the same sentence."""
    result = make_result(verdict=verdict, compared=compared)
    emission = rendered(result, FOLDER)
    answer, given = Answer.of(result, (), emission), Emitted.of(result, emission)
    sentence = result.verdict_sentence
    assert f"verdict: {sentence}" in show(result, width=300)
    assert (answer.verdict_sentence, given.verdict_sentence) == (sentence, sentence)
    assert f"# verdict: {sentence}" in comment_lines(result, emission)


def test_where_it_started_from_is_told(show, make_result):
    """The study that gave the first configs has a line, with the differences."""
    near = Transfer(study="small", differences=("batch 32, not 16",))
    assert "warm start from study small: batch 32, not 16" in show(make_result(transferred_from=near), width=120)
    same = show(make_result(transferred_from=Transfer(study="small")), width=120)
    assert "takes over the trials and the answer of study small: the same problem" in same


@pytest.mark.parametrize("end", SearchEnd)
def test_a_search_that_ended_early_speaks_of_the_best_so_far(show, make_result, end):
    """That recompute does not pay is known of what was found in the time; the rest of the search may find more."""
    text = "\n".join(show(make_result(verdict=Verdict.DOES_NOT_PAY, search_end=end), width=200))
    assert ("does not pay so far" in text and "the best found so far" in text) == end.is_early


@pytest.mark.parametrize("verdict", Verdict)
def test_each_verdict_is_a_sentence(show, make_result, verdict):
    """Every verdict is told in words, and where the study lies."""
    lines = show(dataclasses.replace(make_result(), verdict=verdict))
    assert any(line.startswith("verdict: ") and len(line.split()) > 3 for line in lines)
    assert any(str(FOLDER) in line for line in lines)


def test_without_a_trial_there_is_no_table(show, make_result):
    """Where the time was over before the first trial, no row has anything to tell."""
    empty = dataclasses.replace(make_result(), best=None, verdict=Verdict.NO_FIT, trials=0, curve=())
    lines = show(empty.ending(SearchEnd.TIME))
    assert not any("baseline" in line for line in lines)
    assert any("no answer yet" in line for line in lines)


def test_nothing_is_to_be_pasted_where_nothing_fits(show, make_result):
    """Without a winner the screen has a verdict and no variables."""
    lines = show(dataclasses.replace(make_result(), best=None, verdict=Verdict.NO_FIT))
    assert any("no fit" in line for line in lines)
    assert not any("export" in line or "train with it" in line for line in lines)


def test_nothing_is_to_be_set_where_recompute_is_not_needed(show, make_result):
    """A winner without variables exports nothing."""
    best = dataclasses.replace(make_result().best, config=Config())
    lines = show(dataclasses.replace(make_result(), best=best))
    assert not any(line.strip().startswith(("export", "or, ", "#")) for line in lines)
    assert any("autorecompute run bert -- python train.py" in line for line in lines)
    assert "Or start it as it is: nothing has to be set." in lines


def test_the_command_that_always_works_comes_first(show):
    """``run`` stands before the variables, which do nothing to a script that does not read them."""
    lines = [line.strip() for line in show(width=200)]
    after = lines[lines.index("train with it:") + 1 :]
    assert after[0].startswith("autorecompute run ")
    assert after[1].startswith("or, in a script that ")
    assert after[2].startswith("export ")
    assert after[2].startswith("export ")


@pytest.mark.parametrize("width", [40, 80, 250])
def test_lines_to_paste_are_never_broken(show, make_result, width, tmp_path):
    """However narrow the terminal, a shell that reads the export line gets the whole value."""
    place = Path("/studies", *["a folder"] * 30, "it's")
    result = dataclasses.replace(make_result(), command=["python", "train.py", *["--flag"] * 60])
    lines = [line.strip() for line in show(result, width=width, place=place)]
    (export,) = [line for line in lines if line.startswith("export")]
    script = f'{export}\nprintf %s "$FAKE_PLANS"\n'
    (tmp_path / "pasted.sh").write_text(script)
    read = subprocess.run(["/bin/sh", str(tmp_path / "pasted.sh")], capture_output=True, text=True, check=False)
    assert read.stdout == str(place / "plans.json")
    (start,) = [line for line in lines if line.startswith("autorecompute run")]
    assert start.count("--flag") == 60


def test_a_batch_that_the_tuner_gave_has_to_be_given(show, make_result):
    """Where tuning overrode the DataLoader, the screen says that the script has to set its batch size."""
    told = show(dataclasses.replace(make_result(), command_gives_batch=False), width=120)
    assert any("batch size to 32" in line for line in told)
    assert not any("batch size to 32" in line for line in show(width=120))


@pytest.mark.parametrize("name", ["[red]", "blocks.*/gelu[/]", "[/nothing]", "[link=x]y", "a[0]"])
def test_names_are_printed_as_they_are(show, make_result, make_trial, name):
    """What looks like rich's markup in the name of a config, a device or a study is text."""
    honest = make_result()
    result = dataclasses.replace(
        honest,
        best=dataclasses.replace(honest.best, description=f"best {name}"),
        device=dataclasses.replace(honest.device, name=f"device {name}"),
        study=f"study{name}",
    )
    trials = [make_trial(Config.parse(["blocks.*/gelu:drop"]), description=f"trial {name}")]
    text = "\n".join(show(result, trials, width=200))
    for words in (f"best {name}", f"device {name}", f"study{name}", f"trial {name}"):
        assert words in text


def print_table(trials, width=200):
    """The lines of the table of trials."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_trials(trials, console)
    return console.file.getvalue().splitlines()


def test_every_trial_has_its_row(trials):
    """The table has all trials in order, with what came of each."""
    rows = print_table(trials)[1:]
    assert [row.split()[0] for row in rows] == [str(trial.number) for trial in trials]
    assert rows[-1].split()[-1] == "over_limit"


def test_a_trial_without_figures_has_dashes(make_trial):
    """A config that ran out of memory has no peak, throughput, share and step."""
    row = print_table([make_trial(outcome=Outcome.OOM, reason="presets")])[1]
    assert row.split() == ["0", "none", "presets", "-", "-", "-", "-", "-", "-", "oom"]


@pytest.mark.parametrize("name", ["[red]", "[/nothing]"])
def test_reasons_are_printed_as_they_are(make_trial, name):
    """What looks like rich's markup in the table of trials is text."""
    (_, row) = print_table([make_trial(description=f"config {name}", reason=f"because {name}")])
    assert f"config {name}" in row
    assert f"because {name}" in row


def test_an_empty_study_has_an_empty_table():
    """A study without trials prints its columns."""
    assert len(print_table([])) == 1


def test_a_wrapped_script_has_one_way_to_train(show, make_result):
    """Where the tool wrapped the model, the last screen gives the command that wraps it again and no variables."""
    lines = show(dataclasses.replace(make_result(), wrap=True), width=200)
    assert [line for line in lines if "export" in line or line.startswith("or")] == []
    assert any(line.strip().startswith("autorecompute run ") for line in lines)


def test_knobs_are_told_with_what_they_changed(show, make_result):
    """Each knob has its line: what it gained and took and whether it was kept, what failed, or why it was not tried."""
    base = {"outcome": Outcome.OK, "base_peak_bytes": 600 * MIB}
    knobs = (
        KnobFigures(name="fast", throughput_ratio=1.08, low=1.05, high=1.11, peak_bytes=610 * MIB, kept=True, **base),
        KnobFigures(name="slow", throughput_ratio=0.9, low=0.8, high=1.0, peak_bytes=590 * MIB, **base),
        KnobFigures(name="broken", outcome=Outcome.CRASH, message="signal 11"),
        KnobFigures(name="absent", why_not="it is for CUDA only"),
        KnobFigures(name="late"),
    )
    lines = show(dataclasses.replace(make_result(), knobs=knobs), width=120)
    assert row_of(lines, "fast").split() == ["fast", "1.08x", "1.05-1.11", "610", "MiB", "+10", "MiB", "kept"]
    assert row_of(lines, "slow").split()[-4:] == ["-10", "MiB", "not", "kept"]
    assert row_of(lines, "broken").endswith("crash: signal 11")
    assert row_of(lines, "absent").endswith("not tried: it is for CUDA only")
    assert row_of(lines, "late").endswith("was not tried yet")


def test_disturbed_trials_are_numbered_below_the_table(make_trial):
    """``show`` says as much of disturbed trials as the page; of none it says nothing."""
    found = [make_trial(number=number, marks=("host busy",) if number else ()) for number in range(3)]
    assert print_table(found)[-1] == "2 trials disturbed by something else on the machine: 1, 2"
    assert not any("disturbed" in line for line in print_table(found[:1]))


@pytest.mark.parametrize(("seconds", "is_told"), [(0.2, True), (0.6, False)])
def test_a_winner_far_from_its_own_trial_is_told(show, make_result, make_trial, seconds, is_told):
    """One config with 51.25 samples/s in one process and 160 in another was disturbed in one of them."""
    result = make_result()
    own = make_trial(result.best.config, step_seconds=(seconds,))
    text = " ".join(" ".join(show(result, [own])).split())
    assert ("51.2 samples/s in its own process and 160.0 samples/s in its trial" in text) is is_told


def test_lines_of_a_table_end_with_their_last_word(capsys, trials):
    """Off a terminal nobody gets blanks up to the width of the widest cell."""
    print_trials(trials)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(trials) + 1
    assert lines == [line.rstrip() for line in lines]
