"""Several workers on one study: claims, deaths, agreement, and a storage that fails for a while."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time

import optuna
import pytest
import sqlalchemy

from autorecompute.errors import SetupError, UsageError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies import Problem
from autorecompute.studies.frozen import CONSTRAINT
from autorecompute.studies.sharing import Answer, SharedStudy, parse_storage
from autorecompute.studies.sharing.claims import frozen_claim
from autorecompute.studies.sharing.messages import Phase
from autorecompute.studies.sharing.pulse import BLIND_SECONDS, DEAD_SECONDS, Pulse

LIMIT = 600 * 2**20


@pytest.fixture
def url(tmp_path):
    """A storage."""
    return parse_storage(f"journal:{tmp_path}/journal")


@pytest.fixture
def problem(make_detection):
    """What the study is about."""
    return Problem.of(make_detection(), LIMIT)


@pytest.fixture
def open_worker(url):
    """Opens the study for one more worker."""
    with contextlib.ExitStack() as workers:

        def open_worker(name="bert"):
            notes = []
            worker = SharedStudy(url, name, notes.append, contextlib.nullcontext)
            worker.notes = notes
            workers.callback(worker.leave)
            return worker

        yield open_worker


@pytest.fixture
def join(open_worker, problem, space):
    """Has one more worker join."""

    def join(**changes):
        worker = open_worker()
        worker.join(dataclasses.replace(problem, **changes), space, is_limit_free=False)
        return worker

    return join


@pytest.fixture
def space(make_space):
    """The plans."""
    return make_space()


@pytest.fixture
def short_lives(monkeypatch):
    """Workers beat often, and are taken for dead soon."""
    monkeypatch.setattr("autorecompute.studies.sharing.pulse.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("autorecompute.studies.sharing.pulse.DEAD_SECONDS", 0.4)


def claim(worker, config, space):
    """The number under which a worker may measure a config."""
    return worker.claim(worker.new_claim(config, space.describe(config), "why"), space)


def die(worker):
    """Ends a worker as a kill would: its pulse stops, and it says nothing more."""
    worker._pulse.stop()
    worker.phases.clear()
    worker._held = None


def wait_until(condition, seconds=10.0):
    """Waits for what another worker's clock has to see."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def test_the_first_claims_the_run_without_recompute(join, space):
    """Who begins a study holds its first trial, and nobody else gets it."""
    first, second = join(), join()
    assert claim(second, Config(), space) is None
    assert claim(first, Config(), space) == 0


def test_no_config_is_claimed_twice(join, space, make_trial):
    """Of workers that want the same configs at the same time each config goes to one, and each trial has one number."""
    workers = [join() for _ in range(4)]
    configs = [Config.of([plan]) for plan in space.plans]
    won, start = [], threading.Barrier(len(workers))

    def work(worker):
        start.wait()
        for config in configs:
            if (number := claim(worker, config, space)) is not None:
                won.append((config, number))
                worker.end(make_trial(config, number=number), LIMIT)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(config.hash for config, _ in won) == sorted(config.hash for config in configs)
    trials = workers[0].refresh().trials
    assert {trial.number: trial.config for trial in trials} == {number: config for config, number in won}


def test_who_comes_second_by_a_moment_gives_up(join, space, make_trial):
    """Two that looked before either had claimed are told apart by their numbers; what was given up is no trial."""
    first, second = join(), join()
    config = Config.of(space.plans[:1])
    first.refresh(), second.refresh()
    wishes = [worker.new_claim(config, "one plan", "why") for worker in (second, first)]
    number = second._claim(wishes[0], space, None)
    assert number is not None
    assert first._claim(wishes[1], space, None) is None
    second.end(make_trial(config, number=number), LIMIT)
    assert [trial.config for trial in first.refresh().trials] == [config]


def test_the_last_trial_goes_to_one(join, space):
    """Of two that claim at the same time what only one of them may still measure, the first gets it."""
    first, second = join(), join()
    claims = [
        worker.new_claim(Config.of([plan]), "one", "why")
        for worker, plan in zip((first, second), space.plans, strict=False)
    ]
    assert first._claim(claims[0], space, None, 2) is not None
    assert second._claim(claims[1], space, None, 1) is None
    assert list(first.refresh().running.values()) == claims[:1]


def test_optuna_sees_what_a_study_of_one_worker_shows(join, space, make_trial):
    """Parameters, value, constraint and words of a shared trial are those that a trial in a folder has."""
    worker = join()
    config = Config.of(space.plans[:1])
    number = claim(worker, config, space)
    worker.end(make_trial(config, number=number, peak_bytes=LIMIT + 5, outcome=Outcome.OVER_LIMIT), LIMIT)
    study = optuna.load_study(study_name="bert", storage=worker._storage)
    trial = study.trials[number]
    assert trial.constraints[CONSTRAINT] == 5.0
    assert trial.system_attrs["constraints"] == [5.0]
    assert trial.value == pytest.approx(64.0)
    assert trial.params[space.plans[0].key] == 1
    assert trial.user_attrs["outcome"] == "over_limit"
    assert study.metric_names == ["samples/s"]


@pytest.mark.usefixtures("short_lives")
def test_what_the_dead_measured_is_given_back(join, space):
    """A worker that stops beating loses its claim, which shows as lost and may be claimed again; others keep theirs."""
    first, second = join(), join()
    config, other = Config.of(space.plans[:1]), Config.of(space.plans[1:2])
    number = claim(first, config, space)
    claim(second, other, space)
    die(first)
    assert claim(second, config, space) is None
    wait_until(lambda: second.refresh().trials)
    assert [(trial.number, trial.measurement.outcome) for trial in second.view.trials] == [(number, Outcome.LOST)]
    assert claim(second, config, space) > number
    assert any("went away" in note for note in second.notes)


@pytest.mark.usefixtures("short_lives")
def test_who_was_taken_for_dead_is_told(join, space, make_trial):
    """A worker that was away for too long cannot end what was given back, and may claim it anew."""
    first, second = join(), join()
    config = Config.of(space.plans[:1])
    number = claim(first, config, space)
    first._pulse.stop()
    wait_until(lambda: any(trial.number == number for trial in second.refresh().trials))
    assert not first.end(make_trial(config, number=number), LIMIT)
    assert claim(first, config, space) > number


def test_who_comes_while_another_looks_is_alive(join, space, make_trial, monkeypatch):
    """Who joins and claims after another has read who there is, and before it reads the trials, keeps its own."""
    first, config = join(), Config.of(space.plans[:1])
    read, late = first._study.get_trials, []

    def read_a_little_later(**options):
        if not late:
            late.append(join())
            assert claim(late[0], config, space) == 1
        return read(**options)

    monkeypatch.setattr(first._study, "get_trials", read_a_little_later)
    assert list(first.refresh().running) == [0, 1]
    assert first.others == {late[0].session: Phase.SEARCHING}
    assert first.notes == []
    assert late[0].end(make_trial(config, number=1), LIMIT)


def test_an_interruption_loses_nothing(join, space):
    """What a worker gives up is no trial of the study, and free at once."""
    first, second = join(), join()
    config = Config.of(space.plans[:1])
    assert claim(first, config, space) is not None
    first.give_up()
    assert claim(second, config, space) is not None
    assert second.view.trials == ()


def test_who_leaves_gives_back(join, space):
    """A worker that ends holds nothing and is none of the others any more."""
    first, second = join(), join()
    second.refresh()
    assert second.others == {first.session: Phase.SEARCHING}
    first.leave()
    assert second.refresh().running == {}
    assert second.others == {}
    assert claim(second, Config(), space) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda B"}, "device cuda B, not "),
        ({"batch": 7}, "batch 7, not "),
        ({"limit_bytes": 5}, r"limit 0 KiB \(5 bytes\), not "),
        ({"torch": "1.0"}, "torch 1.0, not "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_problem_is_refused(join, changes, words):
    """A worker with another problem is told which part of it differs, and holds nothing."""
    first = join()
    with pytest.raises(UsageError, match=rf"{words}.*--study NAME"):
        join(**changes)
    assert list(first.refresh().running) == [0]


def test_a_limit_that_nobody_asked_for_is_that_of_the_first(join, open_worker, problem, space):
    """What is free differs from card to card: who gave no limit takes that of the study."""
    join()
    mine = dataclasses.replace(problem, limit_bytes=LIMIT - 5)
    assert open_worker().join(mine, space, is_limit_free=True) == problem


def test_workers_that_begin_together_agree(url, problem, space):
    """Of several that begin a study at once with different limits one decides, and all know."""
    start, agreed = threading.Barrier(4), []

    def begin(place):
        worker = SharedStudy(url, "bert", lambda _: None, contextlib.nullcontext)
        start.wait()
        mine = dataclasses.replace(problem, limit_bytes=LIMIT + place)
        agreed.append(worker.join(mine, space, is_limit_free=True))
        start.wait()
        worker.leave()

    threads = [threading.Thread(target=begin, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(agreed) == 4
    assert len(set(agreed)) == 1


def test_a_study_of_somebody_else_is_left_alone(open_worker, problem):
    """A study of this name that another program began is refused."""
    worker = open_worker("theirs")
    optuna.load_study(study_name="theirs", storage=worker._storage).ask()
    with pytest.raises(UsageError, match=r"'theirs'.* was not begun by autorecompute"):
        open_worker("theirs").check(problem, is_limit_free=True)


def test_an_answer_is_for_all(join, make_result):
    """What one publishes, another reads as it was."""
    first, second = join(), join()
    answer = Answer(result=make_result(), race={"rounds": []})
    first.publish(answer)
    second.refresh()
    assert second.answer == answer


class Unsteady:
    """A storage whose connection breaks in a call, once what was asked for is done."""

    def __init__(self, storage, call):
        self._storage, self._call, self.breaks = storage, call, 1

    def __getattr__(self, name):
        method = getattr(self._storage, name)

        def broken(*arguments, **options):
            answer = method(*arguments, **options)
            if self.breaks:
                self.breaks -= 1
                raise sqlalchemy.exc.OperationalError("SELECT 1", {}, OSError("the server closed the connection"))
            return answer

        return broken if name == self._call else method


@pytest.mark.parametrize(
    "call", ["create_new_trial", "set_trial_state_values", "get_trial_id_from_study_id_trial_number"]
)
def test_what_was_written_when_a_connection_broke_is_written_once(join, space, make_trial, monkeypatch, call):
    """A worker that cannot know whether it was heard asks again, and there is one trial, measured."""
    monkeypatch.setattr("autorecompute.studies.sharing.opening.PAUSE_SECONDS", 0.01)
    worker = join()
    worker.give_up()
    config = Config.of(space.plans[:1])
    worker._storage = Unsteady(worker._storage, call)
    number = claim(worker, config, space)
    trial = make_trial(config, number=number)
    assert worker.end(trial, LIMIT)
    assert worker._storage.breaks == 0
    assert worker.refresh().trials == (trial,)
    assert worker.view.running == {}
    assert sum("Trying again" in note for note in worker.notes) == 1


def test_a_claim_that_was_given_back_at_once_is_made_again(join, space, monkeypatch):
    """Who is taken for dead between making a claim and finding it claims anew."""
    worker, config = join(), Config.of(space.plans[:1])
    worker.give_up()
    create, lost = worker._storage.create_new_trial, []

    def create_and_lose(*arguments):
        made = create(*arguments)
        if not lost:
            lost.append(made)
            worker._storage.set_trial_state_values(made, optuna.trial.TrialState.FAIL)
        return made

    monkeypatch.setattr(worker._storage, "create_new_trial", create_and_lose)
    assert claim(worker, config, space) == 2
    assert [trial.measurement.outcome for trial in worker.view.trials] == [Outcome.LOST]


def test_a_claim_that_nobody_knows_of_is_given_back(join, space):
    """Where a claim was made twice by a connection that broke, the second does not keep its config for ever."""
    worker = join()
    config = Config.of(space.plans[:1])
    number = claim(worker, config, space)
    worker._storage.create_new_trial(worker._study_id, frozen_claim(worker.view.running[number], space, None))
    assert list(worker.refresh().running) == [number]
    assert worker.view.trials == ()


def test_a_storage_that_stays_away_ends_the_tuning(join, monkeypatch):
    """After a minute a worker gives up, with a sentence that says how to go on."""
    monkeypatch.setattr("autorecompute.studies.sharing.opening.PAUSE_SECONDS", 0.01)
    worker = join()

    def away():
        raise sqlalchemy.exc.OperationalError("SELECT 1", {}, None) from OSError(111, "Connection refused")

    with pytest.raises(SetupError, match=r"Connection refused.*run the same command again"):
        worker._patiently(away, patience_seconds=0.1)
    assert len(worker.notes) == 1


def test_what_is_broken_is_not_asked_again(join):
    """An error that time does not mend is told at once."""
    worker, asked = join(), []

    def broken():
        asked.append(1)
        raise sqlalchemy.exc.DataError("INSERT", {}, ValueError("too long"))

    with pytest.raises(SetupError, match="cannot be used"):
        worker._patiently(broken)
    assert len(asked) == 1


class TestPulse:
    """Who is alive, by the clock of the one who looks."""

    @pytest.fixture
    def watch(self):
        """Looks at beats at given times."""
        now = [0.0]
        pulse = Pulse("me", lambda *_: None, dict, clock=lambda: now[0])

        def watch(*looks):
            for seconds, count in looks:
                now[0] = seconds
                pulse.observe({"beat:other": count})
            return pulse.is_dead("other")

        return watch

    def test_who_beats_lives(self, watch):
        """A beat that changes is a life, whatever it counts."""
        assert not watch(*((5.0 * place, place) for place in range(30)))

    def test_who_stops_is_dead(self, watch):
        """A beat that stays the same for too long is none."""
        looks = [(5.0 * place, 1) for place in range(int(DEAD_SECONDS / 5) + 2)]
        assert not watch(*looks[:-2])
        assert watch(*looks)

    def test_who_could_not_look_counts_anew(self, watch):
        """After a storage was away for everybody, nobody is dead for not having beaten."""
        gone = DEAD_SECONDS + BLIND_SECONDS
        assert not watch((0.0, 1), (5.0, 1), (gone, 1))
        assert not watch((gone + 5, 1))
        assert not watch((gone + 10, 2))

    def test_who_was_never_seen_has_just_begun(self, watch):
        """A worker is not dead before its first beat."""
        assert not watch()
