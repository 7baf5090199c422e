"""Searches on a table: what they are told, and how they are judged."""

import random
import statistics

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search import Proposal
from figures import GOAL_TRIALS, system_of
from play import BUDGET, Player
from replay import SHARES, Replay
from searchers import OURS, SEARCHERS, Knapsack
from tables import SUFFIX, TABLES, load, packed_names


class Listed:
    """Proposes what it is given, in this order."""

    def __init__(self, configs):
        self._configs = configs

    def propose(self, trials):
        """The next one."""
        left = self._configs[len(trials) :]
        return Proposal(config=left[0], reason="listed") if left else None


@pytest.fixture
def replay(make_table):
    """A table without noise."""
    return Replay(make_table())


@pytest.fixture
def by_speed(replay):
    """All configs, from the fastest on."""
    return sorted(replay.truths, key=lambda config: replay.truths[config].ratio)


def fitting(replay, configs, limit_bytes):
    """Those that fit."""
    return [config for config in configs if replay.truths[config].peak_bytes <= limit_bytes]


def test_limits_lie_between_the_least_peak_and_that_without_recompute(replay, make_machine):
    """0 % of the way is the least peak, 100 % that without recompute."""
    machine = make_machine()
    least, most = machine.peak_bytes(machine.space.all_on), machine.peak_bytes(Config())
    limits = [replay.limit_bytes(share) for share in (0, 0.5, 1)]
    assert limits == [least, (least + most) // 2, most]


def test_a_trial_is_a_recording_of_its_config(make_table, make_machine):
    """Peak and times come from one recording, with the limit held against them; by and by each is drawn."""
    machine = make_machine(noise=0.1, rounds=3)
    replay = Replay(make_table(machine, list(machine.rows())))
    config, chance = machine.configs[7], random.Random(0)
    limit_bytes = machine.peak_bytes(config) - 1
    trials = [replay.measure(config, chance, limit_bytes=limit_bytes) for _ in range(40)]
    drawn = {(trial.measurement.step_seconds, trial.reference_seconds) for trial in trials}
    assert drawn == {(found.seconds, found.reference_seconds) for found in replay.table.recordings[config]}
    assert {trial.measurement.outcome for trial in trials} == {Outcome.OVER_LIMIT}
    assert replay.measure(config, chance, limit_bytes=limit_bytes + 1).fits


def test_what_was_not_recorded_is_the_nearest_that_was(replay):
    """A searcher on a sampled table gets the untried config that differs in the fewest plans."""
    plans = replay.table.space.plans
    wanted = Config.of(plans[:3])
    assert replay.nearest(wanted, {wanted}) == wanted
    del replay.table.recordings[wanted]
    near = replay.nearest(wanted, set())
    assert len(near.choices ^ wanted.choices) == 1
    assert replay.nearest(wanted, {near}) not in {near, wanted}
    assert replay.nearest(wanted, set(replay.table.recordings)) is None


def test_trials_are_counted_until_one_fits_and_is_near_the_best(replay, by_speed):
    """What is fast and does not fit is not found, nor is what fits and is slow."""
    limit_bytes = replay.limit_bytes(0.5)
    best, *_, slow = fitting(replay, by_speed, limit_bytes)
    run = Player(replay, limit_bytes, 0).run(Listed([Config(), slow, by_speed[1], best, *by_speed]))
    assert run.trials == 4
    assert run.regrets == (0, 0, 0)
    ended = Player(replay, limit_bytes, 0).run(Listed([Config(), slow]))
    assert ended.trials is None
    lost = 1 - replay.truths[best].ratio / replay.truths[slow].ratio
    assert ended.regrets == pytest.approx((lost, lost, lost))
    assert ended.answer_regret == pytest.approx(lost)


def test_nothing_that_fits_is_no_answer(replay):
    """A search that has found nothing that fits has no regret to tell."""
    run = Player(replay, replay.limit_bytes(0.5), 0).run(Listed([Config()]))
    assert (run.trials, run.regrets, run.answer_regret, run.is_infeasible) == (None, (None,) * 3, None, False)


@pytest.fixture
def make_lucky(make_table, make_machine):
    """A table in which a config fits in as many recordings and is over by so much in one more; and the limit."""

    def build(excess_bytes, fitting):
        machine = make_machine(rounds=2)
        config, rows = machine.configs[-2], list(machine.rows())
        own = next(row for row in rows if row["config"] == config.hash)
        over = [{**own, "peak_bytes": own["peak_bytes"] + excess_bytes} for _ in range(fitting + 1)]
        others = [row for row in rows if row["config"] != config.hash]
        # Peaks of two recordings are 2 KiB apart.
        noisy = [{**row, "peak_bytes": row["peak_bytes"] + 1024 * (-1) ** row["round"]} for row in others]
        return Replay(make_table(machine, [*noisy, *[own] * fitting, *over])), config, own["peak_bytes"]

    return build


@pytest.mark.parametrize(("excess_bytes", "is_infeasible"), [(1500, False), (2**20, True)])
def test_an_answer_that_fits_by_luck_is_infeasible(make_lucky, excess_bytes, is_infeasible):
    """A config that typically is over the limit by more than peaks are off counts, where it came to be the answer."""
    replay, config, limit_bytes = make_lucky(excess_bytes, fitting=9)
    runs = [Player(replay, limit_bytes, seed).run(Listed([config])) for seed in range(200)]
    assert any(run.is_infeasible for run in runs) == is_infeasible
    assert all(run.answer_regret is None for run in runs), "nothing that truly fits is lost by it"


def test_the_race_drops_what_fits_by_luck(make_lucky):
    """Of a config that fits in nearly half of its recordings, hardly any trial becomes an answer."""
    replay, config, limit_bytes = make_lucky(2**20, fitting=9)
    runs = [Player(replay, limit_bytes, seed).run(Listed([config])) for seed in range(400)]
    assert 0 < sum(run.is_infeasible for run in runs) < 0.1 * len(runs)


@pytest.mark.parametrize("name", [name for name in SEARCHERS if name != "optuna gp"])
def test_every_searcher_plays(replay, name):
    """Each of them comes to an end on a table of 64 configs, and those that try everything find the best."""
    limit_bytes = replay.limit_bytes(0.25)
    run = Player(replay, limit_bytes, 0).run(SEARCHERS[name](replay.table, limit_bytes, BUDGET, 0))
    assert not run.is_infeasible
    if name.startswith("optuna"):
        assert run.trials <= 64


def test_the_knapsack_takes_the_cheapest_sets_in_turn(replay):
    """After the presets it measures what should just save enough at the least cost, and then what saves more."""
    table, limit_bytes = replay.table, replay.limit_bytes(0.5)
    knapsack, trials = Knapsack(table.space, table.dims, limit_bytes), []
    while (proposal := knapsack.propose(trials)) is not None:
        chance = random.Random(0)
        trials.append(replay.measure(proposal.config, chance, limit_bytes=limit_bytes, number=len(trials)))
    sets = [trial.config for trial in trials[2:]]
    savings = [sum(plan.saving_bytes for plan in table.space.plans_of(config)) for config in sets]
    costs = [sum(plan.occurrences for plan in table.space.plans_of(config)) for config in sets]
    assert trials[2].fits, "stated savings are true here"
    assert savings == sorted(savings)
    assert costs == sorted(costs)


def test_in_plain_pytorch_trials_of_a_config_that_was_recorded_once_differ():
    """Each is off what the config truly takes by as much as some recording is, and they are right in the middle."""
    replay = Replay(load(TABLES / f"torch_llama{SUFFIX}"))
    config = next(config for config, found in replay.table.recordings.items() if len(found) == 1)
    limit_bytes = round(replay.truths[config].peak_bytes)
    trials = [replay.measure(config, random.Random(seed), limit_bytes=limit_bytes) for seed in range(200)]
    ratios = [1 / trial.relative_throughput for trial in trials]
    assert len(set(ratios)) > 100
    assert statistics.median(ratios) == pytest.approx(replay.truths[config].ratio, rel=0.02)


@pytest.mark.thorough
def test_in_plain_pytorch_a_few_trials_find_the_best():
    """On the tables that are kept, half of the searches are within 1 % of the best after eight trials at most."""
    replays = [
        Replay(load(TABLES / f"{name}{SUFFIX}")) for name in packed_names() if system_of(name) == "plain PyTorch"
    ]
    runs = [
        Player(replay, limit, 0).run(SEARCHERS[OURS](replay.table, limit, BUDGET, 0))
        for replay in replays
        for limit in map(replay.limit_bytes, SHARES)
    ]
    assert statistics.median(run.trials or BUDGET for run in runs) <= GOAL_TRIALS["plain PyTorch"][0]
    assert not any(run.is_infeasible for run in runs)
