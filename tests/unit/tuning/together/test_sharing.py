"""What several tunings of one study have from each other."""

import dataclasses
import functools
import threading

import pytest

from autorecompute.errors import NothingFitsError, UsageError
from autorecompute.units import GIB, MIB
from stand_ins.emitted import choices_of
from stand_ins.formula import stop
from stand_ins.sharing import LIMIT, measured, run_all

HANGING_SECONDS = 600


def share_trials(tunings):
    """Has each worker wait with its second trial until all have begun one."""
    begun = [threading.Event() for _ in tunings]

    def measure(tuning, event, measure, *arguments):
        assert not tuning.tried or all(other.wait(HANGING_SECONDS) for other in begun)
        event.set()
        return measure(*arguments)

    for tuning, event in zip(tunings, begun, strict=True):
        tuning.bench.measure = functools.partial(measure, tuning, event, tuning.bench.measure)


@pytest.fixture
def answers_of(monkeypatch):
    """Runs workers that share the work; gives their answers."""
    monkeypatch.setattr("autorecompute.tuning.ledger.POLL_SECONDS", 0.01)

    def answers_of(tunings):
        share_trials(tunings)
        return run_all(tunings)

    return answers_of


@pytest.mark.parametrize("sampler", ["greedy", "tpe"])
def test_no_config_is_measured_twice_and_all_come_to_one_answer_that_one_confirmed(work_in, answers_of, sampler):
    tunings = [work_in(place, sampler=sampler) for place in range(2)]
    answers = answers_of(tunings)
    trials = measured(tunings[0])
    assert len({trial.config for trial in trials}) == len(trials) <= 10
    files = [path for tuning in tunings for path in tuning.folder.path.glob("trials/*/result.json")]
    assert sorted(int(file.parent.name) for file in files) == [trial.number for trial in trials]
    assert all(tuning.tried for tuning in tunings)
    first, *others = (dataclasses.replace(answer, best=None) for answer in answers)
    assert others == [first]
    assert len({answer.best.config for answer in answers}) == 1
    assert sum(len(tuning.bench.watched) > 0 for tuning in tunings) == 1
    for tuning, answer in zip(tunings, answers, strict=True):
        assert measured(tuning) == trials
        assert choices_of(tuning.folder) == answer.best.config.texts
        assert tuning.folder.result() == answer


def test_who_comes_later_is_answered_at_once_for_its_own_folder(work_in):
    answer, later = work_in("first").run(), work_in("later")
    assert later.run().best.config == answer.best.config
    assert later.bench.measured == []
    assert choices_of(later.folder) == answer.best.config.texts


def test_a_study_goes_on_with_more_trials(work_in):
    work_in("first", max_trials=4).run()
    later = work_in("later", max_trials=8)
    later.run()
    assert 1 <= len({trial.config for trial in measured(later)}) <= 8
    assert len(measured(later)) > 4


def test_another_device_is_refused_before_it_measures(work_in):
    work_in("first").run()
    other = work_in("other", name="Another Processor")
    with pytest.raises(UsageError, match="device cpu Another Processor, not cpu Some Processor"):
        other.run()
    assert other.bench.measured == []


@pytest.fixture
def begin_with_less(work_in):
    """Begins a second worker, which gives no limit, on a device that has so many MiB less to give than the first."""

    def begin(less):
        used = 16 * GIB - 512 * MIB - LIMIT
        stop(work_in("first", limit_bytes=None, outside_bytes=used), interrupt_at=3)
        return work_in("second", limit_bytes=None, outside_bytes=used + less * MIB)

    return begin


@pytest.mark.parametrize("less", [100, -1])
def test_who_gives_no_limit_takes_that_of_the_others_and_says_so(begin_with_less, less):
    second = begin_with_less(less)
    assert second.run().best.limit_bytes == LIMIT
    assert second.watcher.notes.count("the limit is that of the other workers: 600 MiB") == 1


def test_a_device_with_much_less_to_give_is_refused(begin_with_less):
    second = begin_with_less(300)
    with pytest.raises(UsageError, match="device has 300 MiB to give, and the limit of study 'bert' is 600 MiB"):
        second.run()
    assert second.bench.measured == []


def test_that_nothing_fits_ends_each_worker_the_same_way(work_in):
    for place in range(2):
        with pytest.raises(NothingFitsError):
            work_in(place, limit_bytes=150 * MIB).run()


def test_a_study_in_its_folder_is_not_mixed_with_one_in_a_storage(work_in, tune_in, root, make_bench):
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
