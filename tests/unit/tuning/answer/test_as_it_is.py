import dataclasses
from unittest.mock import Mock

import pytest

from autorecompute.emit.provenance import comment_lines
from autorecompute.errors import NothingFitsError
from autorecompute.figures import Comparison, Figures
from autorecompute.measurement import Outcome
from autorecompute.reports.answer import answer_lines
from autorecompute.result import AsItIs
from autorecompute.studies.storage import read_trials
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from stand_ins.emitted import rendered

BATCH = 32


@pytest.fixture
def tune(make_tuning, make_measurement):
    """Begins to tune a script, whose processes without the wrapping end like this."""

    def tune(outcome=Outcome.OK, *, peak_bytes=500 * MIB, seconds=0.2, wrap=True, **changes):
        figures = {"peak_bytes": peak_bytes, "step_seconds": (seconds,) * 3} if outcome.is_measured else {}
        tuning = make_tuning(wrap=wrap, max_trials=8, **changes)
        tuning.bench.plain = Mock()
        tuning.bench.plain.watch.return_value = make_measurement(outcome, **figures)
        return tuning

    return tune


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "x as fast"), (4.0, "is no faster")])
def test_a_plain_script_that_fits_is_told_first_and_whether_it_is_faster(tune, seconds, words):
    tuning = tune(seconds=seconds)
    result = tuning.run()
    assert result.as_it_is.figures.outcome is Outcome.OK
    assert result.as_it_is.comparison.is_clear
    assert result.as_it_is.comparison.pairs >= 2
    assert {(repr(call.args[0]), call.args[-1]) for call in tuning.bench.plain.watch.mock_calls} == {("{}", BATCH)}
    first, rest = result.verdict_sentence.split(". With --wrap: ")
    assert first.startswith("PyTorch as it is fits with 500 MiB")
    assert words in first
    assert rest


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [(Outcome.OK, Outcome.OVER_LIMIT), (Outcome.OOM, Outcome.OOM), (Outcome.SCRIPT_ERROR, Outcome.SCRIPT_ERROR)],
)
def test_a_plain_script_that_does_not_fit_has_its_row_after_one_process(tune, ended, outcome):
    tuning = tune(ended, peak_bytes=601 * MIB)
    result = tuning.run()
    assert (tuning.bench.plain.watch.call_count, result.as_it_is.comparison) == (1, None)
    assert "PyTorch" not in result.verdict_sentence
    trials = read_trials(tuning.folder.database, tuning.folder.name_in_database)
    (line,) = [line for line in answer_lines(result, trials) if line.config == "PyTorch, as it is"]
    assert line.outcome == outcome
    # The training system of the tests wraps nothing, and has no note on how to.
    comments = comment_lines(dataclasses.replace(result, wrap=False), rendered(result, tuning.folder.path))
    assert any(line.startswith(f"# PyTorch, as it is: {outcome} at batch {BATCH}") for line in comments)


def test_where_no_config_fits_the_plain_script_may(tune):
    tuning = tune(peak_bytes=100 * MIB, limit_bytes=120 * MIB)
    with pytest.raises(NothingFitsError, match=r"^PyTorch as it is fits with 100 MiB: train the script as it is"):
        tuning.run()
    assert tuning.folder.result().as_it_is.figures.outcome is Outcome.OK


def test_a_script_that_is_not_wrapped_is_as_it_is(tune):
    tuning = tune(wrap=False)
    assert tuning.run().as_it_is is None
    tuning.bench.plain.watch.assert_not_called()


@pytest.mark.parametrize("pairs", [0, 5])
def test_what_is_faster_is_not_said_without_an_interval_that_bears_it(make_result, pairs):
    spread = {"low": 0.5, "high": 1.6} if pairs else {}
    comparison = Comparison(ratio=0.6, pairs=pairs, is_clear=False, **spread)
    figures = Figures(outcome=Outcome.OK, peak_bytes=500 * MIB, samples_per_second=99.0, batch=BATCH)
    result = make_result(as_it_is=AsItIs(figures=figures, comparison=comparison), verdict=Verdict.UNDECIDED)
    assert result.verdict_sentence.startswith("PyTorch as it is fits with 500 MiB; which is faster")
    assert "x as fast" not in result.verdict_sentence
