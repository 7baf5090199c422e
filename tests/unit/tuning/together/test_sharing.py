"""Several tunings of one study use each other's trials, and each of them ends."""

import dataclasses
import fcntl
import functools
import threading

import pytest

from autorecompute.errors import LeftToOthers, NothingFitsError, ScriptError, SetupError, UsageError
from autorecompute.measurement import Outcome
from autorecompute.result import SearchEnd
from autorecompute.trials.private import lock_file
from autorecompute.tuning.attempt import CONFIRMATIONS
from autorecompute.units import GIB, MIB
from autorecompute.waiting import OutOfTime
from stand_ins.emitted import choices_of
from stand_ins.formula import FormulaBench, instead, stop
from stand_ins.sharing import LIMIT, die, lose_heartbeat, measured, run_together


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


def test_a_study_in_its_folder_is_not_mixed_with_one_in_a_storage(work_in, tune_in, root):
    own = root / "own"
    own.mkdir()
    tune_in(own, FormulaBench(), max_trials=4).run()
    with pytest.raises(UsageError, match="not the one in the storage"):
        work_in("own").run()
    shared = work_in("shared", max_trials=4)
    shared.run()
    with pytest.raises(UsageError, match="give the --storage"):
        tune_in(root / "shared", FormulaBench(shared.bench.detection), max_trials=8).run()
    assert tune_in(root / "shared", FormulaBench(shared.bench.detection), max_trials=4).run().trials == 4


def test_an_interruption_gives_the_trial_back(work_in, open_shared):
    tuning = stop(work_in("mine"), interrupt_at=3)
    shared = open_shared()
    assert shared.running == {}
    assert all(trial.measurement.outcome is not Outcome.LOST for trial in shared.trials)
    assert measured(tuning) == shared.trials


def test_who_has_no_time_left_leaves_the_rest_to_others_and_is_no_failure(work_in, partner, end_wait):
    assert partner.running
    end_wait(3)
    tuning, told = work_in("mine"), "1 other worker goes on with study 'bert', and the last one confirms"
    with pytest.raises(LeftToOthers, match=told) as left:
        tuning.run()
    assert left.value.exit_code == 0
    assert tuning.folder.result() is None


def test_a_confirmation_that_fails_is_told_to_all(work_in, make_measurement):
    tunings, errors = [work_in(place, max_trials=12) for place in range(2)], []

    def run(tuning):
        with pytest.raises(NothingFitsError, match=r"No config was confirmed: .*crash") as failed:
            tuning.run()
        errors.append(str(failed.value))

    tried = []
    for tuning in tunings:
        tuning.bench.watch = lambda *_: tried.append(1) or make_measurement(Outcome.CRASH)
    run_together([functools.partial(run, tuning) for tuning in tunings])
    assert len(errors) == 2
    assert len(set(errors)) == 1
    assert len(tried) <= CONFIRMATIONS
    assert all(tuning.folder.result().search_end is SearchEnd.TIME for tuning in tunings)


@pytest.mark.parametrize("outcome", [Outcome.SCRIPT_ERROR, Outcome.CRASH, Outcome.DIVERGED])
def test_who_cannot_run_the_script_measures_nothing_for_others(work_in, make_measurement, outcome):
    first, broken = stop(work_in("first"), interrupt_at=3), work_in("broken")
    broken.bench.formula = lambda *_, **__: make_measurement(outcome)
    with pytest.raises(ScriptError, match="fails without any recompute"):
        broken.run()
    assert broken.tried == []
    assert measured(broken) == measured(first)
    assert work_in("third").run().best is not None


def test_who_confirmed_in_time_has_an_answer_for_all(work_in, begin_other):
    tuning, others = work_in("mine"), []

    def watch_once(watch, *args):
        if tuning.bench.watched:
            others.append(begin_other())
            raise OutOfTime
        return watch(*args)

    instead(tuning.bench, "watch", watch_once)
    answer = tuning.run()
    assert (answer.best.confirmed, answer.search_end) == (True, SearchEnd.TIME)
    assert tuning.folder.result() == answer
    others[0].refresh()
    assert others[0].answer.result == answer


def test_who_has_more_time_goes_on_from_an_answer(work_in):
    short, long, answers = work_in("short"), work_in("long"), []
    other, has_begun = threading.Thread(target=lambda: answers.append(long.run())), threading.Event()

    def watch_once(watch, *args):
        if not short.bench.watched:
            return watch(*args)
        other.start()
        has_begun.wait()
        raise OutOfTime

    instead(short.bench, "watch", watch_once)
    instead(long.bench, "detect", lambda detect: has_begun.set() or detect())
    first = short.run()
    other.join()
    assert (first.search_end, first.rival) == (SearchEnd.TIME, None)
    assert (answers[0].search_end, answers[0].best.config) == (SearchEnd.TRIALS, first.best.config)
    assert answers[0].rival is not None
    assert long.folder.result() == answers[0]
    assert work_in("later").run().rival == answers[0].rival


def test_who_is_out_of_time_looks_whether_others_are_there(work_in, begin_other):
    tuning, others = work_in("mine"), []

    def measure_beside_another(measure, *args):
        if len(tuning.tried) == 2 and not others:
            others.append(begin_other())
        if len(tuning.tried) == 4:
            others[0].close()
            raise OutOfTime
        return measure(*args)

    instead(tuning.bench, "measure", measure_beside_another)
    with pytest.raises(NothingFitsError, match="The time was over before a config was confirmed"):
        tuning.run()


def test_who_was_taken_for_dead_while_it_confirmed_is_told(work_in):
    late, answers = work_in("late"), []

    def watch_while_another_one_answers(watch, *args):
        if not answers:
            lose_heartbeat(late.tuner._context.shared)
            answers.append(work_in("other").run())
        return watch(*args)

    instead(late.bench, "watch", watch_while_another_one_answers)
    answer = late.run()
    assert dataclasses.replace(answer, best=None) == dataclasses.replace(answers[0], best=None)
    assert late.folder.result() == answer
    assert dataclasses.replace(work_in("third").run(), best=None) == dataclasses.replace(answer, best=None)


def test_the_answer_is_kept_where_the_storage_breaks_at_the_end(work_in, root):
    tuning = work_in("mine")

    def watch_and_break(watch, *args):
        (root / "shared.db").write_bytes(b"no database" * 4096)
        return watch(*args)

    instead(tuning.bench, "watch", watch_and_break)
    with pytest.raises(SetupError, match="cannot be used"):
        tuning.run()
    assert tuning.folder.result().best.confirmed


def test_a_confirmation_has_plans_of_its_own(work_in):
    tuning = work_in("mine")
    folder = tuning.folder
    instead(tuning.bench, "watch", lambda watch, *args: (folder.best / "plans.json").write_text("[]") and watch(*args))
    best = tuning.run().best
    assert {config for config, batch in tuning.bench.watched if batch == 32} == {best.config}
    assert choices_of(folder) == best.config.texts


def test_another_one_confirms_where_the_first_dies(work_in, partner):
    partner.give_up()
    partner.claim_answer()
    die(partner)
    assert work_in("mine").run().best.confirmed


@pytest.mark.parametrize("is_same", [True, False])
def test_who_holds_a_device_that_is_waited_for_is_told(work_in, root, monkeypatch, is_same):
    tuning, study = work_in("mine"), f"study 'bert' in sqlite:///{root}/shared.db"
    with lock_file(tuning.bench.detection.device).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"process 7 ({study if is_same else 'study /elsewhere/bert'})")
        lock.flush()
        monkeypatch.setattr("autorecompute.trials.private.pause", lambda _: fcntl.flock(lock, fcntl.LOCK_UN))
        assert tuning.run().best.confirmed
    (note,) = [note for note in tuning.watcher.notes if "waiting for the device" in note]
    assert ("for this same study: it continues" in note) == is_same


def test_the_lock_of_a_device_says_which_study_it_is_held_for(work_in, root):
    tuning, told = work_in("mine"), []
    lock = lock_file(tuning.bench.detection.device)
    instead(tuning.bench, "watch", lambda watch, *args: told.append(lock.read_text()) or watch(*args))
    tuning.run()
    assert f"(study 'bert' in sqlite:///{root}/shared.db)" in told[0]


def test_who_else_is_there_and_what_is_waited_for_is_told_once(work_in, partner, monkeypatch, end_wait):
    monkeypatch.setattr("autorecompute.tuning.ledger.QUIET_SECONDS", -1.0)
    end_wait(4)
    tuning = work_in("mine")
    with pytest.raises(LeftToOthers):
        tuning.run()
    notes = tuning.watcher.notes
    assert sum(note.startswith("waiting for trial 0 of other workers") for note in notes) == 1
    assert notes.count("shares the study with 1 other worker") == 1
    assert partner.running
