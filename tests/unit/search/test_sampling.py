import itertools
import math

import pytest

from autorecompute.cli.parsers import SAMPLERS as OFFERED
from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search import NAMES, GreedySearcher, OptunaSearcher, make_searcher, require_installed, sampling
from autorecompute.search.sampling import SAMPLERS
from autorecompute.search.searcher import steps_by_number


@pytest.fixture
def search():
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

    return search


@pytest.fixture
def propose(make_bench):
    bench = make_bench(plans=9)
    first, *others = bench.space.plans
    subsets = [subset for size in (2, 3, 4) for subset in itertools.combinations(others, size)][::3]
    fitting = [Config.of([first, *subset]) for subset in subsets]
    too_large = [Config.of(subset) for subset in subsets]

    def propose(name, configs):
        peaks = {config: bench.limit_bytes + (1 if config in too_large else -1) for config in configs}
        bench.peak_bytes = lambda config: peaks.get(config, bench.limit_bytes + 1)
        presets = list(bench.space.presets.values())
        trials = bench.tried(*dict.fromkeys([*presets, *configs]))
        searchers = [
            OptunaSearcher(bench.space, limit_bytes=bench.limit_bytes, sampler=SAMPLERS[name], seed=seed)
            for seed in range(12)
        ]
        return [searcher.propose(trials).config.has(first) for searcher in searchers]

    return propose, fitting, too_large


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("runs_out", [False, True])
def test_presets_come_first_and_nothing_twice(make_bench, search, name, runs_out):
    bench = make_bench(plans=7, has_opaque=True, compromises=3, runs_out=runs_out)
    trials = search(bench, name, 12)
    presets = list(dict.fromkeys(bench.space.presets.values()))
    configs = [trial.config for trial in trials]
    assert configs[: len(presets)] == presets
    assert len(set(configs)) == len(configs) == 12


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_search_ends_with_the_space(make_bench, search, name):
    bench = make_bench(plans=3, compromises=1)
    trials = search(bench, name, 100)
    assert sorted(trial.config.hash for trial in trials) == sorted(config.hash for config in bench.landscape)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_trials_and_the_seed_decide(make_bench, search, name):
    bench = make_bench(plans=9)
    first, again, other = (search(bench, name, 12, seed=seed) for seed in (1, 1, 2))
    assert [trial.config for trial in first] == [trial.config for trial in again]
    assert [trial.config for trial in first] != [trial.config for trial in other]


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_samplers_know_what_does_not_fit(propose, name):
    ask, fitting, too_large = propose
    is_on = ask(name, [*fitting[:15], *too_large[:15]])
    assert sum(is_on) >= 0.75 * len(is_on)


def test_crashes_teach_nothing_and_stop_nothing(make_bench, search):
    trials = search(make_bench(plans=6, crashing="Node0+"), "tpe", 30)
    outcomes = {trial.measurement.outcome for trial in trials}
    assert len(trials) == 30
    assert {Outcome.CRASH, Outcome.OVER_LIMIT} <= outcomes


def test_step_times_count_where_there_is_no_reference(make_bench):
    bench = make_bench(plans=5)
    trials = bench.tried(*list(bench.landscape)[:4])
    absolute = steps_by_number([bench.try_out(trial, trial.number, reference_seconds=None) for trial in trials])
    relative = steps_by_number(trials)
    assert absolute.keys() == relative.keys()
    assert all(math.isclose(absolute[number], relative[number]) for number in absolute)


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
