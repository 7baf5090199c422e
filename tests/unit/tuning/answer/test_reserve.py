import dataclasses

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer import answer_lines, answer_sentences, runners_up
from autorecompute.studies.storage import read_trials
from autorecompute.tuning.batches.throughput_curve import TunedBatch, draw
from autorecompute.units import MIB
from autorecompute.verdict import Verdict

LIMIT, BEYOND = 903 * MIB, 25 * MIB


@pytest.fixture(scope="module")
def told(tune_in, make_root):
    tuning = tune_in(make_root(), max_trials=30, limit_bytes=LIMIT)
    measure, tuning.bench.every_life_bytes = tuning.bench.measure, BEYOND

    def measure_resident(config, effort):
        measured = measure(config, effort)
        resident_bytes = measured.peak_bytes + BEYOND if config.is_none else None
        return dataclasses.replace(measured, resident_bytes=resident_bytes)

    tuning.bench.measure = measure_resident
    return tuning.run(), read_trials(tuning.folder.database, tuning.folder.name_in_database)


def test_no_table_calls_a_trial_over_the_limit_that_is_not(told):
    result, trials = told
    outcomes = {trial.config.hash: trial.measurement.outcome for trial in trials}
    assert result.baseline.outcome is outcomes[Config().hash] is Outcome.OK
    assert result.baseline.peak_bytes <= result.best.limit_bytes
    for figures in result.presets.values():
        if figures.outcome is not None:
            assert figures.outcome is (Outcome.OK if figures.peak_bytes <= LIMIT else Outcome.OVER_LIMIT)


def test_who_leaves_too_little_is_no_runner_up_and_told_once(told):
    result, trials = told
    short = {trial.config.hash for trial in trials if LIMIT - BEYOND < trial.measurement.peak_bytes <= LIMIT}
    assert not result.best.config.is_none
    assert result.reserve_bytes == BEYOND
    assert set(result.short_of_reserve) == short > {Config().hash}
    others = [name for name, _ in runners_up(result, trials)]
    assert others
    assert not {trial.description for trial in trials if trial.config.hash in short} & set(others)
    assert len([line for line in answer_lines(result, trials) if line.config == "none"]) == 1
    sentences = [sentence for sentence in answer_sentences(result, trials) if "beyond its tensors" in sentence]
    who = f"{len(short)} configs, no recompute among them: within the limit, with less than 25 MiB left"
    assert sentences == [f"not taken: {who} for what a process holds beyond its tensors"]


def test_no_recompute_alone_is_named(told):
    result = dataclasses.replace(told[0], short_of_reserve=(Config().hash,))
    assert any(sentence.startswith("not taken: no recompute: within") for sentence in answer_sentences(result, []))


def test_a_batch_whose_answer_recomputes_does_not_fit_without(told):
    result, _ = told
    tuned = TunedBatch(batch=32, result=result, least_peak_bytes=None, measured=1)
    assert not tuned.point.fits_without
    whole = dataclasses.replace(result.baseline, outcome=Outcome.OVER_LIMIT, peak_bytes=LIMIT + MIB, batch=32)
    assert draw([whole], [tuned])[-1].without == whole


def test_no_recompute_that_holds_the_limit_is_the_answer_though_others_look_as_fast(make_tuning, let_baseline_hold):
    tuning = make_tuning(limit_bytes=912 * MIB)
    tuning.bench.every_life_bytes = 5 * MIB
    tuning.bench.pace = lambda number: 1.04 if number == 0 else 1.0
    let_baseline_hold(tuning.bench, 60 * MIB)
    result = tuning.run()
    assert result.verdict is Verdict.NOT_NEEDED
    assert (result.best.config, result.best.peak_bytes) == (Config(), 905 * MIB)


def test_where_the_process_of_no_recompute_needs_too_much_the_others_are_raced(make_tuning):
    tuning = make_tuning(limit_bytes=903 * MIB)
    tuning.bench.every_life_bytes = 5 * MIB
    result = tuning.run()
    assert tuning.bench.watched[0] == (Config(), 32)
    assert result.rejected[Config().hash] is Outcome.OVER_LIMIT
    assert result.best.ranking is not None
    assert result.best.config.hash in result.raced
