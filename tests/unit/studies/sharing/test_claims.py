import threading
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies.frozen import CONSTRAINT
from autorecompute.studies.sharing.messages import Stage
from stand_ins.sharing import LIMIT, claim, die


def test_the_first_claims_the_run_without_recompute(join, space):
    first, second = join(), join()
    assert claim(second, Config(), space) is None
    assert claim(first, Config(), space) == 0


def test_no_config_is_claimed_twice(join, space, make_trial):
    workers = [join() for _ in range(4)]
    configs = [Config.of([plan]) for plan in space.plans]
    won, start = [], threading.Barrier(len(workers))

    def work(worker):
        start.wait()
        for config in configs:
            if (number := claim(worker, config, space)) is not None:
                won.append((config, number))
                worker.end(make_trial(config, number=number), LIMIT)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, workers))
    assert sorted(config.hash for config, _ in won) == sorted(config.hash for config in configs)
    trials = workers[0].refresh().trials
    assert {trial.number: trial.config for trial in trials} == {number: config for config, number in won}


def test_who_comes_second_by_a_moment_gives_up(join, space, config, make_trial):
    first, second = join(), join()
    first.refresh(), second.refresh()
    wishes = [worker.new_claim(config, "one plan", "why") for worker in (second, first)]
    number = second._claim(wishes[0], space, None)
    assert number is not None
    assert first._claim(wishes[1], space, None) is None
    second.end(make_trial(config, number=number), LIMIT)
    assert [trial.config for trial in first.refresh().trials] == [config]


def test_the_last_trial_goes_to_one(join, space):
    first, second = join(), join()
    claims = [
        worker.new_claim(Config.of([plan]), "one", "why")
        for worker, plan in zip((first, second), space.plans, strict=False)
    ]
    assert first._claim(claims[0], space, None, 2) is not None
    assert second._claim(claims[1], space, None, 1) is None
    assert list(first.refresh().running.values()) == claims[:1]


def test_optuna_sees_what_a_study_of_one_worker_shows(join, space, config, make_trial):
    worker = join()
    number = claim(worker, config, space)
    worker.end(make_trial(config, number=number, peak_bytes=LIMIT + 5, outcome=Outcome.OVER_LIMIT), LIMIT)
    study = optuna.load_study(study_name="bert", storage=worker._storage)
    trial = study.trials[number]
    assert trial.constraints[CONSTRAINT] == 5.0
    assert trial.system_attrs["constraints"] == [5.0]
    assert trial.value == pytest.approx(64.0)
    assert trial.params[space.plans[0].id] == 1
    assert trial.user_attrs["outcome"] == "over_limit"
    assert study.metric_names == ["samples/s"]


def test_what_the_dead_measured_is_given_back(join, space, config, outlive):
    first, second, third = join(), join(), join()
    number, kept = claim(first, config, space), claim(third, Config.of(space.plans[1:2]), space)
    die(first)
    assert claim(second, config, space) is None
    outlive(second, third)
    assert [(trial.number, trial.measurement.outcome) for trial in second.view.trials] == [(number, Outcome.LOST)]
    assert list(second.view.running) == [kept]
    assert any("went away" in note for note in second.notes)
    assert claim(second, config, space) > number


def test_who_goes_as_soon_as_it_has_said_what_it_is_at_is_not_waited_for(join, open_worker, tuned, space, outlive):
    stayed, gone = join(), open_worker()
    said = gone._study.set_user_attr

    def say_the_last_word(*words):
        said(*words)
        raise KeyboardInterrupt

    gone._study.set_user_attr = say_the_last_word
    with pytest.raises(KeyboardInterrupt):
        gone.join(tuned, space, is_limit_free=False)
    die(gone)
    assert stayed.refresh()
    assert stayed.others
    outlive(stayed)
    assert not stayed.others


def test_who_was_taken_for_dead_is_told(join, space, config, make_trial, outlive):
    first, second = join(), join()
    number = claim(first, config, space)
    first._pulse.stop()
    outlive(second)
    assert number in [trial.number for trial in second.view.trials]
    assert not first.end(make_trial(config, number=number), LIMIT)
    assert claim(first, config, space) > number


def test_who_comes_while_another_looks_is_alive(join, space, config, make_trial, monkeypatch):
    first = join()
    read, late = first._study.get_trials, []

    def read_a_little_later(**options):
        if not late:
            late.append(join())
            assert claim(late[0], config, space) == 1
        return read(**options)

    monkeypatch.setattr(first._study, "get_trials", read_a_little_later)
    assert list(first.refresh().running) == [0, 1]
    assert first.others == {late[0].session: Stage.SEARCHING}
    assert first.notes == []
    assert late[0].end(make_trial(config, number=1), LIMIT)


def test_an_interruption_loses_nothing(join, space, config):
    first, second = join(), join()
    assert claim(first, config, space) is not None
    first.give_up()
    assert claim(second, config, space) is not None
    assert second.view.trials == ()


def test_who_leaves_gives_back(join, space):
    first, second = join(), join()
    second.refresh()
    assert second.others == {first.session: Stage.SEARCHING}
    first.leave()
    assert second.refresh().running == {}
    assert second.others == {}
    assert claim(second, Config(), space) is not None
