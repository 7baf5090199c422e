import itertools
import threading

import optuna
import pytest

from autorecompute.cli.parsers import SAMPLERS as OFFERED
from autorecompute.errors import SetupError, UsageError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search import (
    NAMES,
    GreedySearcher,
    OptunaSearcher,
    RecomputeSampler,
    make_searcher,
    require_installed,
    sampling,
)
from autorecompute.search.sampling import SAMPLERS
from autorecompute.studies.frozen import CONSTRAINT
from autorecompute.studies.storage import TrialStore


def search(bench, name, budget, *, seed=0):
    trials = []
    while len(trials) < budget:
        # A new one for every proposal: what it knows are the trials.
        searcher = OptunaSearcher(bench.space, limit_bytes=bench.limit_bytes, sampler=SAMPLERS[name], seed=seed)
        proposal = searcher.propose(trials)
        if proposal is None:
            break
        trials.append(bench.try_out(proposal, len(trials)))
    return trials


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("runs_out", [False, True])
def test_presets_come_first_and_nothing_twice(make_bench, name, runs_out):
    bench = make_bench(plans=7, has_opaque=True, compromises=3, runs_out=runs_out)
    trials = search(bench, name, 12)
    presets = list(dict.fromkeys(bench.space.presets.values()))
    configs = [trial.config for trial in trials]
    assert configs[: len(presets)] == presets
    assert len(set(configs)) == len(configs) == 12


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_search_ends_with_the_space(make_bench, name):
    bench = make_bench(plans=3, compromises=1)
    trials = search(bench, name, 100)
    assert sorted(trial.config.hash for trial in trials) == sorted(config.hash for config in bench.landscape)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_trials_and_the_seed_decide(make_bench, name):
    bench = make_bench(plans=9)
    first, again, other = (search(bench, name, 12, seed=seed) for seed in (1, 1, 2))
    assert [trial.config for trial in first] == [trial.config for trial in again]
    assert [trial.config for trial in first] != [trial.config for trial in other]


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_samplers_know_what_does_not_fit(make_bench, name):
    """Nothing that was tried fits without the first plan."""
    bench = make_bench(plans=9)
    first, *others = bench.space.plans
    subsets = [subset for size in (2, 3, 4) for subset in itertools.combinations(others, size)][:45:3]
    fitting = [Config.of([first, *subset]) for subset in subsets]
    bench.peak_bytes = lambda config: bench.limit_bytes + (-1 if config in fitting else 1)
    trials = bench.tried(*dict.fromkeys([*bench.space.presets.values(), *fitting, *map(Config.of, subsets)]))
    limit = {"limit_bytes": bench.limit_bytes, "sampler": SAMPLERS[name]}
    searchers = [OptunaSearcher(bench.space, seed=seed, **limit) for seed in range(12)]
    is_on = [searcher.propose(trials).config.has(first) for searcher in searchers]
    assert sum(is_on) >= 0.75 * len(is_on)


def test_crashes_teach_nothing_and_what_somebody_left_running_is_measured_all_the_same(make_bench):
    """A process that went away leaves its trial running for ever, which the search may not get on without."""
    trials = search(make_bench(plans=6, crashing="Node0+"), "tpe", 30)
    outcomes = {trial.measurement.outcome for trial in trials}
    assert len(trials) == 30
    assert {Outcome.CRASH, Outcome.OVER_LIMIT} <= outcomes
    bench = make_bench(plans=0)
    study, sampler = make_study(bench)
    assert [sampler.suggest(study.ask()).is_none for _ in range(2)] == [True, True]


def test_what_a_sampler_lacks_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sampling.NEEDED, "gp", ("optuna", "no_such_module"))
    with pytest.raises(SetupError, match=r"needs no_such_module where .* pip install no_such_module$"):
        require_installed("gp")
    require_installed("tpe")


def test_the_command_line_knows_every_sampler(make_bench):
    space = make_bench(plans=2).space
    assert OFFERED == NAMES
    made = [type(make_searcher(name, space, budget=1, limit_bytes=1)) for name in NAMES]
    # Without a profiled step there is nothing to make a model of.
    assert made == [GreedySearcher] * 2 + [OptunaSearcher] * len(SAMPLERS)


BUDGET = 40


@pytest.fixture
def bench(make_bench):
    return make_bench(plans=7).limit_to(0.5)


def make_study(bench, *, direction="maximize", **storage):
    sampler = RecomputeSampler(bench.searcher(BUDGET), bench.space, limit_bytes=bench.limit_bytes, seed=0)
    if storage:
        return optuna.load_study(sampler=sampler, **storage), sampler
    return optuna.create_study(direction=direction, sampler=sampler), sampler


def objective(bench, sampler, configs, *, tells_peak=True, is_time=False):
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


@pytest.mark.parametrize(
    ("direction", "fields"),
    [
        ("maximize", {}),
        ("minimize", {"has_opaque": True}),
        ("maximize", {"runs_out": True}),
        ("minimize", {"compromises": 2}),
    ],
)
def test_optuna_runs_the_search_that_we_run(make_bench, direction, fields):
    bench = make_bench(**{"plans": 7, **fields}).limit_to(0.5)
    (study, sampler), configs = make_study(bench, direction=direction), []
    study.optimize(objective(bench, sampler, configs, is_time=direction == "minimize"), n_trials=200)
    expected = [trial.config for trial in bench.run(budget=BUDGET)]
    assert configs[: len(expected)] == expected
    assert len(configs) < 200
    assert bench.step_seconds(sampler.suggest(study.best_trial)) >= bench.best_seconds()


def test_asking_goes_on_by_chance(make_bench):
    bench = make_bench(plans=3).limit_to(1.0)
    (study, sampler), configs = make_study(bench), []
    for _ in range(6):
        trial = study.ask()
        study.tell(trial, objective(bench, sampler, configs)(trial))
    assert configs[0].is_none
    assert len(set(configs)) > 1


def test_threads_measure_different_configs(bench):
    (study, sampler), configs = make_study(bench), []
    start = threading.Barrier(3)
    measure = objective(bench, sampler, configs)

    def measure_together(trial):
        sampler.suggest(trial)
        start.wait(600)
        return measure(trial)

    study.optimize(measure_together, n_trials=3, n_jobs=3)
    assert len(set(configs)) == 3


def test_a_trial_that_failed_before_it_had_a_config_says_nothing(bench):
    (study, sampler), configs = make_study(bench), []
    measure, failures = objective(bench, sampler, configs), [OSError("not there yet")]

    def measure_at_last(trial):
        if failures:
            raise failures.pop()
        return measure(trial)

    study.optimize(measure_at_last, n_trials=4, catch=OSError)
    assert configs == [trial.config for trial in bench.run(budget=BUDGET)][:3]


def test_a_study_of_ours_goes_on_in_optuna(bench, tmp_path):
    expected, database = bench.run(budget=BUDGET), tmp_path / "study.db"
    store = TrialStore(database, "mine", bench.space, bench.limit_bytes)
    for trial in expected[:10]:
        store.add(trial)
    (study, sampler), configs = make_study(bench, study_name="mine", storage=f"sqlite:///{database}"), []
    study.optimize(objective(bench, sampler, configs), n_trials=3)
    assert configs == [trial.config for trial in expected[10:13]]


def test_a_trial_must_say_whether_it_fits(make_bench):
    bench = make_bench(plans=3)
    study, sampler = make_study(bench)
    with pytest.raises(UsageError, match=r"Trial 0 does not say .* trial\.set_constraint\('bytes over the limit', "):
        study.optimize(objective(bench, sampler, [], tells_peak=False), n_trials=2)
