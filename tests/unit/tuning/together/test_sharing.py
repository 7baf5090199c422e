import dataclasses
import time

import pytest

from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.units import GIB, MIB
from stand_ins.emitted import choices_of
from stand_ins.sharing import LIMIT, measured, run_all


@pytest.mark.parametrize("sampler", ["greedy", "tpe"])
def test_no_config_is_measured_twice(work_in, monkeypatch, sampler):
    monkeypatch.setattr("autorecompute.tuning.shared_ledger.POLL_SECONDS", 0.01)
    tunings = [work_in(place, sampler=sampler, max_trials=15) for place in range(3)]
    for tuning in tunings:
        tuning.bench.pace = lambda _: time.sleep(0.1) or 1.0
    answers = run_all(tunings)
    folders = [tuning.folder.path.glob("trials/*/result.json") for tuning in tunings]
    trials = measured(tunings[0])
    assert len({trial.config for trial in trials}) == len(trials) <= 15
    assert sorted(int(path.parent.name) for paths in folders for path in paths) == [trial.number for trial in trials]
    assert all(tuning.tried for tuning in tunings)
    assert [dataclasses.replace(answer, best=None) for answer in answers[1:]] == [
        dataclasses.replace(answers[0], best=None)
    ] * 2
    assert len({answer.best.config for answer in answers}) == 1


def test_each_folder_has_the_whole_study(work_in):
    tunings = [work_in(place) for place in range(2)]
    answers = run_all(tunings)
    assert measured(tunings[0]) == measured(tunings[1])
    assert sum(len(tuning.bench.watched) > 0 for tuning in tunings) == 1
    for tuning, answer in zip(tunings, answers, strict=True):
        assert choices_of(tuning.folder) == answer.best.config.texts
        assert tuning.folder.result() == answer
        numbers = {int(path.parent.name) for path in tuning.folder.path.glob("trials/*/result.json")}
        assert numbers <= {trial.number for trial in measured(tuning)}


def test_who_comes_later_is_answered_at_once(work_in):
    answer = work_in("first").run()
    later = work_in("later")
    assert later.run().best.config == answer.best.config
    assert later.bench.measured == []
    assert choices_of(later.folder) == answer.best.config.texts


def test_a_study_goes_on_with_more_trials(work_in):
    work_in("first", max_trials=4).run()
    later = work_in("later", max_trials=8)
    later.run()
    assert 1 <= len({trial.config for trial in measured(later)}) <= 8
    assert len(measured(later)) > 4


def test_another_device_is_refused(work_in):
    work_in("first").run()
    other = work_in("other", name="Another Processor")
    with pytest.raises(UsageError, match="device cpu Another Processor, not cpu Some Processor"):
        other.run()
    assert other.bench.measured == []


@pytest.mark.parametrize("less", [300, 100, -1])
def test_a_device_with_much_less_to_give_is_refused(work_in, less):
    used = 16 * GIB - 512 * MIB - LIMIT
    first = work_in("first", limit_bytes=None, outside_bytes=used)
    first.bench.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = work_in("second", limit_bytes=None, outside_bytes=used + less * MIB)
    if less == 300:
        with pytest.raises(UsageError, match="device has 300 MiB to give, and the limit of study 'bert' is 600 MiB"):
            second.run()
        assert second.bench.measured == []
    else:
        assert second.run().best.limit_bytes == LIMIT
    assert second.watcher.notes.count("the limit is that of the other workers: 600 MiB") == 1


def test_nothing_fits_for_anybody(work_in):
    for place in range(2):
        with pytest.raises(NothingFitsError):
            work_in(place, limit_bytes=150 * MIB).run()


def test_a_folder_of_one_is_not_shared_later(work_in, tune_in, root, make_bench):
    own = root / "own"
    own.mkdir()
    tune_in(own, make_bench(), max_trials=4).run()
    with pytest.raises(UsageError, match="not the one in the storage"):
        work_in("own").run()
    shared = work_in("shared", max_trials=4)
    shared.run()
    with pytest.raises(UsageError, match="give the --storage"):
        tune_in(root / "shared", make_bench(shared.bench.detection), max_trials=8).run()
    assert tune_in(root / "shared", make_bench(shared.bench.detection), max_trials=4).run().trials == 4
