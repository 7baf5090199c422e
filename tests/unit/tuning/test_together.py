"""Tunings that share a study, each in a thread or a session of its own, over one journal."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
import time
from pathlib import Path

import pytest

from autorecompute.errors import LeftToOthers, NothingFitsError, ScriptError, SetupError, UsageError
from autorecompute.measurement import Device, Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies import Problem
from autorecompute.studies.sharing import SharedStudy, parse_storage
from autorecompute.studies.sharing.messages import Phase
from autorecompute.studies.storage import read_trials
from autorecompute.trials.signals import OutOfTime
from autorecompute.tuning.answer.judgement import CONFIRMATIONS
from autorecompute.units import GIB, MIB

LIMIT = 600 * MIB


@pytest.fixture
def root(make_root):
    """Where the journal is, and a folder for each worker."""
    return make_root()


@pytest.fixture
def open_shared(root):
    """Opens the study for one more worker."""

    def open_shared():
        return SharedStudy(parse_storage(f"journal:{root}/journal"), "bert", lambda _: None, contextlib.nullcontext)

    return open_shared


@pytest.fixture
def work_in(root, open_shared, tune_in, make_bench, make_detection):
    """Begins a session of one worker, on a device and in a folder of its own."""

    def work_in(place, bench=None, *, name="Some Processor", outside_bytes=None, **settings):
        device = Device(kind="cpu", name=name, uuid=f"device-{place}", total_bytes=16 * GIB)
        detection = make_detection(device=device, resting_bytes=100 * MIB, outside_bytes=outside_bytes)
        folder = root / str(place)
        folder.mkdir(exist_ok=True)
        bench = bench or make_bench(detection)
        bench.detection = detection
        return tune_in(folder, bench, shared=open_shared(), **settings)

    return work_in


@pytest.fixture
def begin_other(open_shared, make_detection, make_space):
    """Lets one more worker join, whenever the test says."""
    with contextlib.ExitStack() as workers:

        def begin_other():
            worker = open_shared()
            workers.callback(worker.leave)
            worker.join(Problem.of(make_detection(resting_bytes=100 * MIB), LIMIT), make_space(), is_limit_free=False)
            return worker

        yield begin_other


@pytest.fixture
def partner(begin_other):
    """Another worker that has joined, and does what the test says."""
    return begin_other()


@pytest.fixture
def short_lives(monkeypatch):
    """Workers beat often, and are taken for dead soon."""
    monkeypatch.setattr("autorecompute.studies.sharing.pulse.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("autorecompute.studies.sharing.pulse.DEAD_SECONDS", 0.5)


def run_all(tunings):
    """The answers of tunings that run at the same time."""
    answers = {}

    def run(place, tuning):
        answers[place] = tuning.run()

    run_together([functools.partial(run, *item) for item in enumerate(tunings)])
    return [answers[place] for place in range(len(tunings))]


def run_together(works):
    """Does several things at the same time."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(tuning):
    """What the folder of a worker knows of the whole study."""
    return read_trials(tuning.folder.database, tuning.folder.name_in_database)


@pytest.mark.parametrize("sampler", ["greedy", "tpe"])
def test_no_config_is_measured_twice(work_in, monkeypatch, sampler):
    """Three workers measure each config once between them, no more than are allowed, and come to one answer."""
    monkeypatch.setattr("autorecompute.tuning.together.POLL_SECONDS", 0.01)
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
    """Whoever confirmed, every folder holds all trials, the answer, and a file of plans that its variables name."""
    tunings = [work_in(place) for place in range(2)]
    answers = run_all(tunings)
    assert measured(tunings[0]) == measured(tunings[1])
    assert sum(len(tuning.bench.watched) > 0 for tuning in tunings) == 1
    for tuning, answer in zip(tunings, answers, strict=True):
        named = Path(answer.best.environment["ORTMODULE_MEMORY_OPT_CONFIG"])
        assert named.is_relative_to(tuning.folder.path)
        assert Config.from_rows(json.loads(named.read_text())) == answer.best.config
        assert tuning.folder.result() == answer
        numbers = {int(path.parent.name) for path in tuning.folder.path.glob("trials/*/result.json")}
        assert numbers <= {trial.number for trial in measured(tuning)}


def test_who_comes_later_is_answered_at_once(work_in):
    """A study that was solved by others answers a new worker without a measurement, and for its own folder."""
    answer = work_in("first").run()
    later = work_in("later")
    assert later.run().best.config == answer.best.config
    assert later.bench.measured == []
    assert later.folder.plans_file.is_file()


def test_a_study_goes_on_with_more_trials(work_in):
    """Whoever allows more trials than the study had goes on with it, from what all have measured."""
    work_in("first", max_trials=4).run()
    later = work_in("later", max_trials=8)
    later.run()
    assert 1 <= len({trial.config for trial in measured(later)}) <= 8
    assert len(measured(later)) > 4


def test_another_device_is_refused(work_in):
    """A worker on another device is told so before it measures anything."""
    work_in("first").run()
    other = work_in("other", name="Another Processor")
    with pytest.raises(UsageError, match="device cpu Another Processor, not cpu Some Processor"):
        other.run()
    assert other.bench.measured == []


@pytest.mark.parametrize("less", [300, 100, -1])
def test_a_device_with_much_less_to_give_is_refused(work_in, less):
    """Who gives no limit takes the others', which is said, unless its own device cannot give as much."""
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
    """That nothing fits is an answer that all are given, and that ends each of them the same way."""
    for place in range(2):
        with pytest.raises(NothingFitsError):
            work_in(place, limit_bytes=150 * MIB).run()


def test_an_interruption_gives_the_trial_back(work_in, open_shared):
    """What a worker measured when its user stopped it is free, and none of the study's trials."""
    tuning = work_in("mine")
    tuning.bench.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    view = open_shared().refresh()
    assert view.running == {}
    assert all(trial.measurement.outcome is not Outcome.LOST for trial in view.trials)
    assert measured(tuning) == list(view.trials)


def test_who_has_no_time_left_leaves_the_rest_to_others(work_in, partner):
    """A worker that waits for others ends at its own time, says that they go on, and is no failure."""
    assert partner.view.running
    tuning = work_in("mine", timeout_seconds=1.0)
    with pytest.raises(
        LeftToOthers, match="1 other worker goes on with study 'bert', and the last one confirms"
    ) as left:
        tuning.run()
    assert left.value.exit_code == 0
    assert tuning.folder.result() is None


def test_a_confirmation_that_fails_is_told_to_all(work_in, make_measurement):
    """Where fresh processes crash and nobody's time is over, one tries them, and all end with the same error."""
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
    """A worker whose host fails at the first step, where the others' do not, leaves before it claims a config."""
    first = work_in("first")
    first.bench.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        first.run()
    broken = work_in("broken")
    broken.bench.formula = lambda *_, **__: make_measurement(outcome)
    with pytest.raises(ScriptError, match="fails without any recompute"):
        broken.run()
    assert broken.tried == []
    assert measured(broken) == measured(first)
    assert work_in("third").run().best is not None


def test_who_confirmed_in_time_has_an_answer_for_all(work_in, begin_other):
    """The time of one that only compares its confirmed answer is over: all are given the answer."""
    tuning, others = work_in("mine"), []
    watch = tuning.bench.watch

    def watch_once(*args):
        if tuning.bench.watched:
            others.append(begin_other())
            raise OutOfTime
        return watch(*args)

    tuning.bench.watch = watch_once
    answer = tuning.run()
    assert (answer.best.confirmed, answer.search_end) == (True, SearchEnd.TIME)
    assert tuning.folder.result() == answer
    others[0].refresh()
    assert others[0].answer.result == answer


def test_who_has_more_time_goes_on_from_an_answer(work_in):
    """The time of the one who confirms binds nobody else: another one makes the whole answer of it."""
    short, long, answers = work_in("short"), work_in("long"), []
    watch, shared = short.bench.watch, short.tuner._place.shared
    other = threading.Thread(target=lambda: answers.append(long.run()))

    def watch_once(*args):
        if not short.bench.watched:
            return watch(*args)
        other.start()
        while not shared.others:
            time.sleep(0.02)
            shared.refresh()
        raise OutOfTime

    short.bench.watch = watch_once
    first = short.run()
    other.join()
    assert (first.search_end, first.rival) == (SearchEnd.TIME, None)
    assert (answers[0].search_end, answers[0].best.config) == (SearchEnd.NOTHING_LEFT, first.best.config)
    assert answers[0].rival is not None
    assert long.folder.result() == answers[0]
    assert work_in("later").run().rival == answers[0].rival


def test_who_is_out_of_time_looks_whether_others_are_there(work_in, begin_other):
    """Nobody is told that others go on where the last of them has just gone."""
    tuning, others = work_in("mine"), []
    measure = tuning.bench.measure

    def measure_beside_another(*args):
        if len(tuning.tried) == 2 and not others:
            others.append(begin_other())
        if len(tuning.tried) == 4:
            others[0].leave()
            raise OutOfTime
        return measure(*args)

    tuning.bench.measure = measure_beside_another
    with pytest.raises(NothingFitsError, match="The time was over before a config was confirmed"):
        tuning.run()


@pytest.mark.usefixtures("short_lives")
def test_who_was_taken_for_dead_while_it_confirmed_is_told(work_in):
    """A worker that comes back when another one has confirmed takes that answer, and there is one."""
    late, answers = work_in("late"), []
    watch = late.bench.watch

    def watch_while_another_one_answers(*args):
        if not answers:
            late.tuner._place.shared._pulse.stop()
            answers.append(work_in("other").run())
        return watch(*args)

    late.bench.watch = watch_while_another_one_answers
    answer = late.run()
    assert dataclasses.replace(answer, best=None) == dataclasses.replace(answers[0], best=None)
    assert late.folder.result() == answer
    assert dataclasses.replace(work_in("third").run(), best=None) == dataclasses.replace(answer, best=None)


def test_the_answer_is_kept_where_the_storage_breaks_at_the_end(work_in, root):
    """What was confirmed is in the folder though it can be told to nobody."""
    tuning = work_in("mine")
    watch = tuning.bench.watch

    def watch_and_break(*args):
        with (root / "journal").open("a") as journal:
            journal.write("not a log\n" * 2)
        return watch(*args)

    tuning.bench.watch = watch_and_break
    with pytest.raises(SetupError, match="cannot be used"):
        tuning.run()
    assert tuning.folder.result().best.confirmed


def test_a_confirmation_has_plans_of_its_own(work_in):
    """Who writes its answer into the same folder meanwhile changes nothing in what is confirmed."""
    tuning = work_in("mine")
    folder, watch = tuning.folder, tuning.bench.watch

    def watch_beside_another(*args):
        folder.plans_file.write_text("[]")
        return watch(*args)

    tuning.bench.watch = watch_beside_another
    best = tuning.run().best
    assert {config for config, batch in tuning.bench.watched if batch == 32} == {best.config}
    named = Path(best.environment["ORTMODULE_MEMORY_OPT_CONFIG"])
    assert named == folder.plans_file
    assert Config.from_rows(json.loads(named.read_text())) == best.config
    assert [known.environment for known in folder.confirmed()] == [best.environment]


@pytest.mark.usefixtures("short_lives")
def test_what_the_dead_were_measuring_is_measured_by_another(work_in, partner):
    """A worker that dies with the run without recompute does not keep the others waiting for it."""
    partner._pulse.stop()
    tuning = work_in("mine")
    assert tuning.run().best is not None
    assert [trial.measurement.outcome for trial in measured(tuning) if trial.config.is_none] == [
        Outcome.LOST,
        Outcome.OVER_LIMIT,
    ]


@pytest.mark.usefixtures("short_lives")
def test_another_one_confirms_where_the_first_dies(work_in, partner):
    """Who waits for a confirmation makes the answer itself once the other one is gone."""
    partner.give_up()
    partner.enter(Phase.CONFIRMING)
    partner._pulse.stop()
    assert work_in("mine").run().best.confirmed


def test_a_folder_of_one_is_not_shared_later(work_in, tune_in, root, make_bench):
    """A study that was begun in its folder is not mixed with one in a storage, nor the other way round."""
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
