import threading

import optuna
import pytest

from autorecompute.errors import UsageError
from autorecompute.search import RecomputeSampler
from autorecompute.studies.frozen import CONSTRAINT
from autorecompute.studies.storage import TrialStore

BUDGET = 40


@pytest.fixture
def bench(make_bench):
    return make_bench(plans=7).limit_to(0.5)


@pytest.fixture
def make_study():
    def build(bench, *, direction="maximize", **storage):
        sampler = RecomputeSampler(bench.searcher(BUDGET), bench.space, limit_bytes=bench.limit_bytes, seed=0)
        if storage:
            return optuna.load_study(sampler=sampler, **storage), sampler
        return optuna.create_study(direction=direction, sampler=sampler), sampler

    return build


@pytest.fixture
def objective():
    def build(bench, sampler, configs, *, tells_peak=True, is_time=False):
        def objective(trial):
            config = sampler.suggest(trial)
            configs.append(config)
            measurement = bench.measure(config)
            if not measurement.outcome.is_measured:
                raise optuna.TrialPruned
            if tells_peak:
                trial.set_constraint(CONSTRAINT, measurement.peak_bytes - bench.limit_bytes)
            seconds = measurement.median_step_seconds
            return seconds if is_time else 1 / seconds

        return objective

    return build


@pytest.mark.parametrize(
    ("direction", "fields"),
    [
        ("maximize", {}),
        ("minimize", {"has_opaque": True}),
        ("maximize", {"runs_out": True}),
        ("minimize", {"compromises": 2}),
    ],
)
def test_optuna_runs_the_search_that_we_run(make_bench, make_study, objective, direction, fields):
    bench = make_bench(**{"plans": 7, **fields}).limit_to(0.5)
    (study, sampler), configs = make_study(bench, direction=direction), []
    study.optimize(objective(bench, sampler, configs, is_time=direction == "minimize"), n_trials=200)
    expected = [trial.config for trial in bench.run(budget=BUDGET)]
    assert configs[: len(expected)] == expected
    assert len(configs) < 200
    assert bench.step_seconds(sampler.suggest(study.best_trial)) >= bench.best_seconds()


def test_asking_goes_on_by_chance(make_bench, make_study, objective):
    bench = make_bench(plans=3).limit_to(1.0)
    (study, sampler), configs = make_study(bench), []
    for _ in range(6):
        trial = study.ask()
        study.tell(trial, objective(bench, sampler, configs)(trial))
    assert configs[0].is_none
    assert len(set(configs)) > 1


def test_threads_measure_different_configs(bench, make_study, objective):
    (study, sampler), configs = make_study(bench), []
    start = threading.Barrier(3)
    measure = objective(bench, sampler, configs)

    def measure_together(trial):
        sampler.suggest(trial)
        start.wait(600)
        return measure(trial)

    study.optimize(measure_together, n_trials=3, n_jobs=3)
    assert len(set(configs)) == 3


def test_what_somebody_left_running_is_measured_all_the_same(make_bench, make_study):
    """A process that went away leaves its trial running for ever, which the search may not get on without."""
    bench = make_bench(plans=0)
    study, sampler = make_study(bench)
    assert [sampler.suggest(study.ask()).is_none for _ in range(2)] == [True, True]


def test_a_trial_that_failed_before_it_had_a_config_says_nothing(bench, make_study, objective):
    (study, sampler), configs = make_study(bench), []
    measure, failures = objective(bench, sampler, configs), [OSError("not there yet")]

    def measure_at_last(trial):
        if failures:
            raise failures.pop()
        return measure(trial)

    study.optimize(measure_at_last, n_trials=4, catch=OSError)
    assert configs == [trial.config for trial in bench.run(budget=BUDGET)][:3]


def test_a_study_of_ours_goes_on_in_optuna(bench, make_study, objective, tmp_path):
    expected, database = bench.run(budget=BUDGET), tmp_path / "study.db"
    store = TrialStore(database, "mine", bench.space, bench.limit_bytes)
    for trial in expected[:10]:
        store.add(trial)
    (study, sampler), configs = make_study(bench, study_name="mine", storage=f"sqlite:///{database}"), []
    study.optimize(objective(bench, sampler, configs), n_trials=3)
    assert configs == [trial.config for trial in expected[10:13]]


def test_a_trial_must_say_whether_it_fits(make_bench, make_study, objective):
    bench = make_bench(plans=3)
    study, sampler = make_study(bench)
    with pytest.raises(UsageError, match=r"Trial 0 does not say .* trial\.set_constraint\('bytes over the limit', "):
        study.optimize(objective(bench, sampler, [], tells_peak=False), n_trials=2)
