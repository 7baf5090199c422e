import dataclasses

import pytest

from autorecompute.emit.provenance import comment_lines
from autorecompute.errors import NothingFitsError
from autorecompute.figures import Comparison, Figures
from autorecompute.measurement import Measurement, Outcome
from autorecompute.reports.answer import answer_lines
from autorecompute.result import AsItIs
from autorecompute.studies.storage import read_trials
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from stand_ins.emitted import rendered

BATCH, LIMIT = 32, 600 * MIB


class Plain:
    def __init__(self, peak_bytes=500 * MIB, seconds=0.2, outcome=Outcome.OK):
        self._peak_bytes, self._seconds, self._outcome = peak_bytes, seconds, outcome
        self.watched = []

    def watch(self, environment, effort, batch):
        self.watched.append((environment, batch))
        if not self._outcome.is_measured:
            return Measurement(outcome=self._outcome, message="it went wrong")
        steps = (self._seconds,) * effort.steps
        return Measurement(
            outcome=self._outcome, peak_bytes=self._peak_bytes, step_seconds=steps, samples=batch, batch=batch
        )


@pytest.fixture
def tune(make_tuning, make_bench):
    def tune(plain, **changes):
        bench = make_bench()
        bench.plain = plain
        return make_tuning(bench, wrap=True, max_trials=8, **changes)

    return tune


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "x as fast"), (4.0, "is no faster")])
def test_a_plain_script_that_fits_is_told_first(tune, seconds, words):
    plain = Plain(seconds=seconds)
    result = tune(plain).run()
    assert result.as_it_is.figures.outcome is Outcome.OK
    assert result.as_it_is.comparison.is_clear
    assert result.as_it_is.comparison.pairs >= 2
    assert set(map(repr, plain.watched)) == {repr(({}, BATCH))}
    first, rest = result.verdict_sentence.split(". With --wrap: ")
    assert first.startswith("PyTorch as it is fits with 500 MiB")
    assert words in first
    assert rest


@pytest.mark.parametrize(
    ("plain", "outcome"),
    [
        (Plain(peak_bytes=LIMIT + MIB), Outcome.OVER_LIMIT),
        (Plain(outcome=Outcome.OOM), Outcome.OOM),
        (Plain(outcome=Outcome.SCRIPT_ERROR), Outcome.SCRIPT_ERROR),
    ],
)
def test_a_plain_script_that_does_not_fit_has_its_row(tune, plain, outcome):
    tuning = tune(plain)
    result = tuning.run()
    assert (len(plain.watched), result.as_it_is.comparison) == (1, None)
    assert "PyTorch" not in result.verdict_sentence
    trials = read_trials(tuning.folder.database, tuning.folder.name_in_database)
    (line,) = [line for line in answer_lines(result, trials) if line.config == "PyTorch, as it is"]
    assert line.outcome == outcome
    # The training system of the tests wraps nothing, and has no note on how to.
    comments = comment_lines(dataclasses.replace(result, wrap=False), rendered(result, tuning.folder.path))
    assert any(line.startswith(f"# PyTorch, as it is: {outcome} at batch {BATCH}") for line in comments)


def test_where_no_config_fits_the_plain_script_may(tune):
    tuning = tune(Plain(peak_bytes=100 * MIB), limit_bytes=120 * MIB)
    with pytest.raises(NothingFitsError, match=r"^PyTorch as it is fits with 100 MiB: train the script as it is"):
        tuning.run()
    assert tuning.folder.result().as_it_is.figures.outcome is Outcome.OK


def test_a_script_that_is_not_wrapped_is_as_it_is(make_tuning, make_bench):
    bench = make_bench()
    bench.plain = Plain()
    assert make_tuning(bench, max_trials=8).run().as_it_is is None
    assert bench.plain.watched == []


@pytest.mark.parametrize("pairs", [0, 5])
def test_what_is_faster_is_not_said_without_an_interval_that_bears_it(make_result, pairs):
    spread = {"low": 0.5, "high": 1.6} if pairs else {}
    comparison = Comparison(ratio=0.6, pairs=pairs, is_clear=False, **spread)
    figures = Figures(outcome=Outcome.OK, peak_bytes=500 * MIB, samples_per_second=99.0, batch=BATCH)
    result = make_result(as_it_is=AsItIs(figures=figures, comparison=comparison), verdict=Verdict.UNDECIDED)
    assert result.verdict_sentence.startswith("PyTorch as it is fits with 500 MiB; which is faster")
    assert "x as fast" not in result.verdict_sentence
