"""What a later session knows of finalists that were not confirmed."""

import pytest

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.units import MIB


@pytest.fixture
def interrupt(monkeypatch):
    """Lets the user lose patience at the nth confirmation."""

    def interrupt(tuning, at):
        watch = tuning.bench.watch

        def watch_or_stop(*args):
            if len(tuning.bench.watched) == at:
                raise KeyboardInterrupt
            return watch(*args)

        monkeypatch.setattr(tuning.bench, "watch", watch_or_stop)
        with pytest.raises(KeyboardInterrupt):
            tuning.run()

    return interrupt


@pytest.fixture
def best(tune_in, make_root):
    """Who wins where nothing is wrong."""
    return tune_in(make_root(), max_trials=12).run().best.config


def test_a_whole_process_that_needed_too_much_is_not_started_again(make_tuning, interrupt, best):
    """After an interruption the next finalist is confirmed, and the one before it is neither raced nor confirmed."""
    first = make_tuning(max_trials=12)
    first.bench.life_bytes[best] = 300 * MIB
    interrupt(first, at=1)
    second = make_tuning(max_trials=12)
    second.bench.life_bytes[best] = 300 * MIB
    result = second.run()
    assert result.best.confirmed
    assert best not in [config for config, _ in (*second.bench.measured, *second.bench.watched)]
    assert any(note.startswith("over_limit in an earlier session") for note in second.watcher.notes)


def test_wrong_gradients_are_not_compared_again(make_tuning, interrupt):
    """After an interruption a config with wrong gradients is left alone, and the answer tells of it all the same."""
    first = make_tuning()
    wrong = first.bench.wrong = first.bench.detection.space.plans[1:2]
    interrupt(first, at=0)
    rejected = {known.config for known in first.folder.rejections()}
    second = make_tuning()
    second.bench.wrong = wrong
    result = second.run()
    assert not result.best.config.has(wrong[0])
    assert rejected
    assert not rejected & set(second.bench.checked)
    assert any("has wrong gradients" in sentence for sentence in result.unconfirmed)


def test_what_whole_processes_need_more_is_remembered(make_tuning):
    """Where nothing else is left to confirm, the next session searches below the limit at once."""
    first = make_tuning(limit_bytes=920 * MIB)
    first.bench.life_bytes[Config()] = 50 * MIB
    first.bench.interrupt_at = 1
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = make_tuning(limit_bytes=920 * MIB)
    second.bench.life_bytes[Config()] = 50 * MIB
    result = second.run()
    assert [known.config for known in first.folder.rejections()] == [Config()]
    assert any("searching below" in note for note in second.watcher.notes)
    assert not result.best.config.is_none
    assert (Config(), 32) not in second.bench.watched


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.LOST, Outcome.TIMEOUT])
def test_a_fresh_process_that_ended_for_another_reason_gets_another_chance(
    make_tuning, make_measurement, interrupt, best, outcome
):
    """What has nothing to do with the config is no reason to leave it alone in the next session."""
    first = make_tuning(max_trials=12)
    first.bench.broken_lives[best] = make_measurement(outcome)
    interrupt(first, at=1)
    assert first.folder.rejections() == []
    assert make_tuning(max_trials=12).run().best.config == best


def test_rejections_that_cannot_be_read_are_told(make_tuning, interrupt, best):
    """A file that somebody has broken ends in a sentence that names it, and is left as it is."""
    first = make_tuning(max_trials=12)
    first.bench.life_bytes[best] = 300 * MIB
    interrupt(first, at=1)
    file = first.folder.path / "rejected.json"
    file.write_text('{"rejected": [1]}')
    with pytest.raises(SetupError, match=r"rejected\.json cannot be read"):
        make_tuning(max_trials=12).run()
    assert file.read_text() == '{"rejected": [1]}'


def test_a_comparison_that_broke_off_is_held_against_nobody(make_tuning, make_measurement, monkeypatch):
    """A worker that dies over it says nothing of the gradients: another config is the answer, and nothing is kept."""
    tuning = make_tuning()
    check, first = tuning.bench.check, []

    def break_off_once(config):
        if not first:
            first.append(config)
            return make_measurement(Outcome.LOST, message="the machine went away")
        return check(config)

    monkeypatch.setattr(tuning.bench, "check", break_off_once)
    best = tuning.run().best
    assert best.confirmed
    assert best.config != first[0]
    assert tuning.folder.rejections() == []
    assert any("its gradients were not compared, lost: the machine went away" in note for note in tuning.watcher.notes)
