import pytest

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import VARIABLE, add_evidence
from autorecompute.units import MIB
from stand_ins.formula import instead, stop


@pytest.fixture(scope="module")
def best(tune_in, make_root):
    """Who wins where nothing is wrong."""
    return tune_in(make_root(), max_trials=12).run().best.config


def test_a_winner_with_wrong_gradients_gives_way_and_its_plan_is_named(finished, make_tuning):
    tuning = make_tuning()
    culprit = tuning.bench.detection.space.plans[1]
    assert finished[1].best.config.has(culprit)
    tuning.bench.wrong = (culprit,)
    best = tuning.run().best
    assert not best.config.has(culprit)
    assert best.peak_bytes <= 600 * MIB
    note = next(note for note in tuning.watcher.notes if note.startswith("wrong_gradient"))
    assert f"by {culprit.label}" in note
    assert not any(config.has(culprit) for config, _ in tuning.bench.watched)


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_plan_that_could_not_be_compared_is_not_called_wrong(make_tuning, make_measurement, is_measured):
    tuning = make_tuning()
    plans = tuning.bench.detection.space.plans
    alone = [Config.of([plan]) for plan in (plans if not is_measured else plans[2:])]
    out = make_measurement(Outcome.OOM, message="no memory")
    tuning.bench.wrong = plans[1:2]
    instead(tuning.bench, "check", lambda check, config: out if config in alone else check(config))
    tuning.run()
    note = next(note for note in tuning.watcher.notes if note.startswith("wrong_gradient"))
    named = note.partition("wrong gradients")[2].partition(":")[0]
    assert named == (f", by {plans[1].label}" if is_measured else "")


def test_a_whole_process_that_needed_too_much_is_not_started_again(make_tuning, best):
    first, second = make_tuning(max_trials=12), make_tuning(max_trials=12)
    first.bench.life_bytes[best] = second.bench.life_bytes[best] = 300 * MIB
    stop(first, impatient_at=1)
    assert second.run().best.confirmed
    assert best not in [config for config, _ in (*second.bench.measured, *second.bench.watched)]
    assert any(note.startswith("over_limit in an earlier session") for note in second.watcher.notes)


def test_wrong_gradients_are_not_compared_again_and_are_told_again(make_tuning):
    first, second = make_tuning(), make_tuning()
    wrong = first.bench.wrong = second.bench.wrong = first.bench.detection.space.plans[1:2]
    stop(first, impatient_at=0)
    rejected = {known.config for known in first.folder.rejections()}
    result = second.run()
    assert not result.best.config.has(wrong[0])
    assert rejected
    assert not rejected & set(second.bench.checked)
    assert any("has wrong gradients" in sentence for sentence in result.unconfirmed)


def test_an_answer_that_a_training_has_disproved_is_not_given_again(make_tuning, monkeypatch):
    first = make_tuning()
    answer = first.run().best.config
    monkeypatch.setenv(VARIABLE, str(first.folder.evidence))
    add_evidence(answer, "in a training, step 7: recompute of blocks.1 differs")
    assert make_tuning().run().best.config not in {answer, Config()}


def test_what_whole_processes_need_more_is_remembered(make_tuning):
    first, second = (make_tuning(limit_bytes=920 * MIB) for _ in range(2))
    first.bench.life_bytes[Config()] = second.bench.life_bytes[Config()] = 50 * MIB
    stop(first, interrupt_at=1)
    result = second.run()
    assert [known.config for known in first.folder.rejections()] == [Config()]
    assert not result.best.config.is_none
    assert (Config(), 32) not in second.bench.watched


def test_rejections_that_cannot_be_read_are_told_and_left_as_they_are(make_tuning, best):
    first = make_tuning(max_trials=12)
    first.bench.life_bytes[best] = 300 * MIB
    file = stop(first, impatient_at=1).folder.path / "rejected.json"
    file.write_text('{"rejected": [1]}')
    with pytest.raises(SetupError, match=r"rejected\.json cannot be read"):
        make_tuning(max_trials=12).run()
    assert file.read_text() == '{"rejected": [1]}'


def test_a_comparison_that_broke_off_is_held_against_nobody(make_tuning, make_measurement):
    tuning, asked, lost = make_tuning(), [], make_measurement(Outcome.LOST, message="the machine went away")
    instead(tuning.bench, "check", lambda check, config: asked.append(config) or (check(config) if asked[1:] else lost))
    best = tuning.run().best
    assert best.confirmed
    assert best.config != asked[0]
    assert tuning.folder.rejections() == []
    assert any("its gradients were not compared, lost: the machine went away" in note for note in tuning.watcher.notes)
