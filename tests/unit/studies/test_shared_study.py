import contextlib
import dataclasses
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
import sqlalchemy

from autorecompute.errors import SetupError, UsageError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config, Space
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.problem import Head
from autorecompute.studies.records import RaceRecord
from autorecompute.studies.shared_study import PublishedAnswer, SharedStudy
from autorecompute.studies.storage import parse_storage
from stand_ins.sharing import LIMIT, die, lose_heartbeat
from stand_ins.studies import COMMAND
from unit.conftest import build_detection, build_result, build_space, build_trial

SECRET = "s3cr3t!@/%"  # noqa: S105  (of no server)
QUOTED = "s3cr3t%21%40%2F%25"
URLS = {
    "user": f"postgresql://ada:{QUOTED}@db.example:5433/studies",
    "option": f"postgresql://ada@db.example:5433/studies?password={QUOTED}",
    "dialect": f"postgresql+psycopg://ada:{QUOTED}@db.example:5433/studies?sslmode=require",
    "short": f"postgres://ada:{QUOTED}@db.example:5433/studies",
    "mysql": f"mysql+pymysql://ada:{QUOTED}@db.example:5433/studies",
}


@pytest.mark.parametrize("text", URLS.values(), ids=URLS)
def test_a_password_is_for_the_driver_alone(text):
    url, kind = parse_storage(text), "mysql" if text.startswith("mysql") else "postgresql"
    assert url.secrets == {"password": SECRET}
    assert url.display == f"{kind}://ada@db.example:5433/studies"
    assert url.address.drivername == {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}[kind]
    assert url.address.query == ({"sslmode": "require"} if "sslmode" in text else {})
    for shown in (repr(url), url.address.render_as_string(hide_password=False), url.display):
        assert SECRET not in shown
        assert QUOTED not in shown


def test_a_file_is_found_from_anywhere_and_a_driver_that_repeats_a_password_is_corrected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_storage("sqlite:///shared/log.db").display == f"sqlite:///{tmp_path}/shared/log.db"
    url = parse_storage("postgresql://ada:s3cr3t@127.0.0.1:1/studies")
    said = url.describe(sqlalchemy.exc.OperationalError("SELECT", {}, OSError("cannot log in with s3cr3t")))
    assert "cannot log in with ***" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("studies.db", "sqlite:///PATH"),
        ("sqlite:///:memory:", "sqlite:///PATH"),
        (f"oracle://ada:{QUOTED}@host/db", "postgresql://USER@HOST/DATABASE"),
        (f"postgresql://ada:{QUOTED}@host", "with the name of a database"),
        (f"postgresql://ada:{QUOTED}@host:port/db", "cannot be read"),
        ("postgresql://ada:fir5t@s3cr3t@host/db", "as %40"),
        ("postgresql://ada:fir5t@9/db?s3cr3t@host/db", "as %40"),
        ("postgresql://ada:s3cr3t:/?#%@host:/db", "as %2F"),
        ("sqlite:///postgresql://ada:s3cr3t@host/db", "more than one URL"),
    ],
)
def test_what_is_no_address_is_not_repeated_but_told_how_to_write(text, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_storage(text)
    assert "s3cr3t" not in str(caught.value)
    assert "fir5t" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(("dialect", "module"), [("postgresql", "psycopg"), ("mysql+of_nobody", "of_nobody")])
def test_a_missing_driver_is_told_with_the_command_that_brings_it(monkeypatch, dialect, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SetupError, match=r'not installed.*pip install "autorecompute\[postgresql\]"'):
        SharedStudy(parse_storage(f"{dialect}://ada@127.0.0.1/studies"), "bert")


@pytest.fixture
def file(make_root, empty_database):
    return Path(shutil.copy(empty_database, make_root() / "shared.db"))


SPACE = build_space()
CONFIG = Config.of(SPACE.plans[:1])
SIZES = dataclasses.replace(Sizes.of(build_detection()), space=Space(plans=()))


def with_problem(**changes):
    problem = dataclasses.replace(Problem.of(build_detection(), LIMIT), **changes)
    return Head.of("bert", COMMAND, problem, SIZES)


@pytest.fixture
def open_worker(file):
    with contextlib.ExitStack() as workers:

        def open_worker(name="bert"):
            worker = SharedStudy(parse_storage(f"sqlite:///{file}"), name)
            workers.callback(worker.close)
            return worker

        yield open_worker


@pytest.fixture
def join(open_worker):
    def join(*, sizes=None, command=None, **changes):
        worker, tuned = open_worker(), with_problem(**changes)
        others = {"sizes": sizes or tuned.sizes, "command": command or tuned.command}
        worker.join(dataclasses.replace(tuned, **others), SPACE, is_limit_free=False)
        return worker

    return join


def test_another_problem_is_refused(join):
    short, long = (dataclasses.replace(SIZES, dims={"sequence": length}) for length in (128, 512))
    first = join(sizes=short)
    join(sizes=long)  # by the same command the first batch may have another length at each start
    for changes, words in (
        ({"batch": 7}, "batch 7, not "),
        ({"limit_bytes": 5}, r"limit 0 KiB \(5 bytes\), not "),
        ({"device": "cpu Another Processor"}, "device cpu Another Processor, not cpu Some Processor"),
        ({"sizes": long, "command": ("python", "train.py", "--long")}, "sequence 512, not 128"),
    ):
        with pytest.raises(UsageError, match=rf"{words}.*--study NAME"):
            join(**({"sizes": short} | changes))
    first.refresh()
    assert list(first.running) == [0]


def test_workers_that_begin_together_agree_on_the_limit_of_one(file, open_worker):
    file.unlink()

    def begin(place):
        return open_worker().join(with_problem(limit_bytes=LIMIT + place), SPACE, is_limit_free=True)

    with ThreadPoolExecutor(3) as pool:
        agreed = list(pool.map(begin, range(3)))
    assert len(set(agreed)) == 1


def test_a_study_of_somebody_else_is_left_alone(file, open_worker):
    open_worker("theirs")
    theirs = optuna.load_study(study_name="theirs", storage=f"sqlite:///{file}")
    theirs.ask()
    with pytest.raises(UsageError, match=r"'theirs'.* was not begun by autorecompute"):
        open_worker("theirs")
    assert [trial.user_attrs for trial in theirs.trials] == [{}]


def test_an_answer_is_for_all_and_its_claim_for_one(join):
    first, second = join(), join()
    assert not second.claim_answer()  # the first one measures
    first.give_up()
    assert first.claim_answer()
    second.refresh()
    assert not second.claim_answer()
    assert (first.is_confirming, second.is_confirming) == (True, False)
    answer = PublishedAnswer(result=build_result(), race=RaceRecord(ranking=None, standings=()))
    first.publish(answer)
    second.refresh()
    assert second.answer == answer
    assert second.claim_answer()


def test_no_config_is_claimed_twice(join):
    workers = [join() for _ in range(2)]
    assert [worker.claim(Config(), "why", SPACE) for worker in workers] == [0, None]
    configs = [Config.of([plan]) for plan in SPACE.plans]
    won = []

    def work(worker):
        for config in configs:
            if (number := worker.claim(config, "why", SPACE)) is not None:
                won.append((config, number))
                worker.end(build_trial(config, number=number), LIMIT)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, workers))
    assert sorted(config.hash for config, _ in won) == sorted(config.hash for config in configs)
    workers[0].refresh()
    assert {trial.number: trial.config for trial in workers[0].trials} == {number: config for config, number in won}


@pytest.mark.parametrize("earlier", ["the config", "the last trial", "the answer"])
def test_who_comes_second_by_a_moment_gives_up(join, monkeypatch, earlier):
    first, second = join(), join()
    first.give_up()
    add, other = second._study.add_trial, Config.of(SPACE.plans[1:2])

    def add_late(frozen):
        if earlier == "the answer":
            assert first.claim_answer()
        else:
            assert first.claim(CONFIG if earlier == "the config" else other, "why", SPACE) is not None
        add(frozen)

    monkeypatch.setattr(second._study, "add_trial", add_late)
    assert second.claim(CONFIG, "why", SPACE, most=1 if earlier == "the last trial" else None) is None
    first.refresh()
    assert [claim.session for claim in first.running.values()] == [first.session]
    assert first.trials == []


def test_a_claim_on_the_answer_gives_way_to_a_trial_that_came_first(join, monkeypatch):
    first, second = join(), join()
    first.give_up()
    second.refresh()
    add = second._study.add_trial
    monkeypatch.setattr(second._study, "add_trial", lambda frozen: first.claim(CONFIG, "why", SPACE) and add(frozen))
    assert not second.claim_answer()
    first.refresh()
    assert [claim.session for claim in first.running.values()] == [first.session]


def test_what_a_killed_worker_measured_is_given_up_and_what_the_living_measure_is_not(join):
    first, second, third = join(), join(), join()
    number, kept = (
        worker.claim(Config.of([plan]), "why", SPACE) for worker, plan in zip((first, third), SPACE.plans, strict=False)
    )
    assert second.claim(CONFIG, "why", SPACE) is None
    die(first)
    second.refresh()
    assert [(trial.number, trial.measurement.outcome) for trial in second.trials] == [(number, Outcome.LOST)]
    assert list(second.running) == [kept]
    assert second.claim(CONFIG, "why", SPACE) > number


def test_a_heartbeat_goes_on_by_itself(join, monkeypatch):
    monkeypatch.setattr("autorecompute.studies.shared_study.HEARTBEAT_SECONDS", 0.001)
    worker, beats = join(), []
    held = worker._held[0]
    monkeypatch.setattr(worker._storage, "record_heartbeat", beats.append)
    while not beats:
        worker._is_over.wait(0.001)
    assert set(beats) == {held}


def test_who_was_taken_for_dead_is_told(join):
    first, second = join(), join()
    number = first.claim(CONFIG, "why", SPACE)
    lose_heartbeat(first)
    second.refresh()
    assert not first.end(build_trial(CONFIG, number=number), LIMIT)
    assert first.claim(CONFIG, "why", SPACE) > number


def test_a_database_that_is_lost_ends_in_one_sentence(file, join):
    worker = join()
    file.write_bytes(b"no database" * 4096)
    with pytest.raises(SetupError, match=r"cannot be used: .*\. Trials .* run the same command again") as caught:
        worker.refresh()
    assert "\n" not in str(caught.value)
    worker.close()  # what cannot be given up is no second failure
    with pytest.raises(SetupError, match=r"cannot be used: .*\. Mend it, and run the same command again\."):
        SharedStudy(parse_storage(f"sqlite:///{file}"), "bert")
