"""What would make a figure of the replay benchmark wrong without anybody noticing, on a model whose truth is known."""

import itertools
import json
import math
import random
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

import tables
from autorecompute import codec
from autorecompute.backends.ortmodule.extra import OrtDetection
from autorecompute.measurement import Outcome
from autorecompute.plans import Choice, Config, Space
from autorecompute.plans.plan import plan_of_id
from autorecompute.search import Proposal
from autorecompute.units import MIB
from figures import judge_goals, quantile, times_fewer
from live import judge
from play import BUDGET, Player
from replay import Replay
from searchers import OPTUNAS, OURS, Bisection, Knapsack
from sums import fit_sums
from truth import DEVIATION, peak_noise_bytes, truths_of

COSTS = (0.10, 0.02, 0.03, 0.0, 0.05, 0.08)
SAVINGS = (40, 10, 25, 15, 30, 35)
WINDOW = 8


def make_plan(text, occurrences, saving_bytes, saving, **fields):
    found = {"occurrences": occurrences, "saving_bytes": saving_bytes, "saving": saving}
    return replace(plan_of_id(text), **found, **fields)


def build_space(savings=SAVINGS, costs=COSTS):
    """Each plan states the saving that it has, for a batch of 2, and covers as many nodes as it takes time."""
    return Space(
        plans=tuple(
            make_plan(f"Node{place}+:1", 1 + round(100 * cost), saving * MIB, f"{saving * MIB // 2}*batch")
            for place, (saving, cost) in enumerate(zip(savings, costs, strict=True))
        )
    )


class Machine:
    """What the recorder would write of a model, with noise, outliers thrice as slow, and a machine that slows down."""

    def __init__(self, *, noise=0.0, outliers=0.0, extra_seconds=None, rounds=1, pace=1.0):
        self.space = build_space()
        plans = self.space.plans
        self.configs = [Config.of(some) for size in range(7) for some in itertools.combinations(plans, size)]
        self._noise, self._outliers, self._rounds, self._pace = noise, outliers, rounds, pace
        self._extra_seconds, self._chance = extra_seconds or {}, random.Random(0)

    def seconds(self, config):
        costs = sum(cost for cost, plan in zip(COSTS, self.space.plans, strict=True) if config.has(plan))
        return 1 + costs + self._extra_seconds.get(config, 0)

    def peak_bytes(self, config):
        savings = zip(SAVINGS, self.space.plans, strict=True)
        return (500 - sum(saving for saving, plan in savings if config.has(plan))) * MIB

    def rows(self):
        """What is measured, in random order, a new reference every few configs."""
        pace = 0.1
        for number in range(self._rounds):
            for place, config in enumerate(self._chance.sample(self.configs, k=len(self.configs))):
                if place % WINDOW == 0:
                    pace *= self._pace
                    reference = self._noisy(pace)
                step = self._noisy(pace * self.seconds(config))
                accident = 3 if self._chance.random() < self._outliers else 1
                yield {
                    "config": config.hash,
                    "round": number,
                    "outcome": "ok",
                    "peak_bytes": self.peak_bytes(config),
                    "seconds": [step * accident] * 3,
                    "reference_seconds": reference,
                }

    def _noisy(self, seconds):
        return seconds * self._chance.gauss(1, self._noise)


@pytest.fixture
def write_journal(make_detection, make_step, tmp_path):
    """Writes a journal of a model; a seventh plan is known and is in one recording, and no search may choose it."""

    def write(machine, rows):
        whole = build_space((*SAVINGS, 0), (*COSTS, 0.0))
        extra = codec.to_plain(OrtDetection(layer_plans=whole.plans))
        step = codec.to_plain(make_step("flb", ("x", 0, 2, "batch")))
        profiles = [{"config": config.texts, "profile": step} for config in (Config(), whole.all_on)]
        head = {
            "study": "model",
            "arguments": ["--layers", "1"],
            "batch": 2,
            "is_sampled": False,
            "threads": 1,
            "effort": {"warmup": 1, "steps": 3},
            "peak_bytes": 500 * MIB,
            "plans": [plan.id for plan in machine.space.plans],
            "detection": codec.to_plain(make_detection(whole, dims={"batch": 1}, extra=extra)),
            "survey": {"peak_bytes": 300 * MIB, "held_bytes": 200 * MIB, "profiles": profiles},
            "configs": {config.hash: config.texts for config in [*machine.configs, whole.all_on]},
        }
        file = tmp_path / "model.journal"
        lines = [head, *rows, {**rows[0], "config": whole.all_on.hash}]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return file

    return write


@pytest.fixture
def make_table(write_journal):
    return lambda machine, rows=None: tables.load(write_journal(machine, rows or list(machine.rows())))


@pytest.fixture
def replay(make_table):
    return Replay(make_table(Machine()))


class Listed:
    """Proposes what it is given, in this order."""

    def __init__(self, *configs):
        self._configs = configs

    def propose(self, trials):
        left = self._configs[len(trials) :]
        return Proposal(config=left[0], reason="listed") if left else None


def test_a_packed_table_says_what_the_journal_said_without_plans_that_were_left_out(make_table, tmp_path):
    machine = Machine(noise=0.1, rounds=2)
    table = make_table(machine)
    tables.save(table, tmp_path)
    again = tables.load(tmp_path / "model.json.gz")
    assert again.recordings == table.recordings
    assert {config: len(found) for config, found in again.recordings.items()} == dict.fromkeys(machine.configs, 2)
    assert (again.detection, again.memory, again.space) == (table.detection, table.memory, machine.space)
    assert again.dims == {"batch": 2}


def test_an_unfinished_recording_is_not_packed(write_journal, monkeypatch, capsys):
    """Searches would be told that configs which nobody measured do not exist."""
    file = write_journal(Machine(), list(Machine().rows())[:-3])
    monkeypatch.setattr(tables, "TABLES", file.parent)
    monkeypatch.setattr(sys, "argv", ["tables.py", "model"])
    with pytest.raises(SystemExit):
        tables.main()
    assert "model: 3 configs were not measured yet" in capsys.readouterr().err


def errors(table, machine):
    return [abs(truth.ratio / machine.seconds(config) - 1) for config, truth in truths_of(table).items()]


def test_noise_drift_and_accidents_are_seen_through(make_table):
    machine = Machine(noise=0.04, outliers=0.08, pace=1.1, rounds=2)
    rows = list(machine.rows())
    assert max(abs(row["seconds"][0] / row["reference_seconds"] - 1) for row in rows) > 1
    assert max(errors(make_table(machine, rows), machine)) < 0.05


def test_pairs_that_cost_more_together_are_seen_and_none_is_made_up(make_table):
    first, second, *_ = build_space().plans
    both = [config for config in Machine().configs if config.has(first) and config.has(second)]
    for extra_seconds in (dict.fromkeys(both, 0.15), {}):
        machine = Machine(noise=0.02, rounds=3, extra_seconds=extra_seconds)
        assert max(errors(make_table(machine), machine)) < 0.03


def test_the_median_peak_counts_and_how_far_peaks_are_off_it(make_table):
    machine = Machine(rounds=3)
    rows = list(machine.rows())
    table = make_table(machine, [{**row, "peak_bytes": row["peak_bytes"] + 10 * row["round"]} for row in rows])
    assert all(truths_of(table)[config].peak_bytes == machine.peak_bytes(config) + 10 for config in machine.configs)
    assert peak_noise_bytes(table) == pytest.approx(10 * DEVIATION)


@pytest.mark.parametrize(("noise", "accidents", "special_miss"), [(0.1, 0.03, 0.5), (0.02, 0.0, 0.05)])
def test_sums_of_counts_average_noise_and_keep_what_is_special_about_a_config(noise, accidents, special_miss):
    chance, costs, special = random.Random(0), (0.3, 0.12, 0.02), (3, 3, 3)
    mixes, shares = list(itertools.product(range(7), repeat=3)), (accidents, 1 - accidents)
    truths = [1 + sum(map(math.prod, zip(costs, mix, strict=True))) / 6 + (mix == special) / 2 for mix in mixes]
    configs = [
        Config(frozenset(Choice(site, "on", count) for site, count in zip("abc", mix, strict=True) if count))
        for mix in mixes
    ]
    recordings = {
        config: [
            tables.Recording("ok", 1, (truth * chance.gauss(1, noise) * chance.choices((3, 1), shares)[0],), 1.0, n)
            for n in range(6 * place, 6 * place + 6)
        ]
        for place, (config, truth) in enumerate(zip(configs, truths, strict=True))
    }
    unseen = mixes.index((2, 5, 1))
    del recordings[configs[unseen]]
    places = {config: place for place, config in enumerate(configs)}
    candidates = types.SimpleNamespace(shares=np.array(mixes) / 6, places=places)
    found = fit_sums(types.SimpleNamespace(recordings=recordings, candidates=candidates))
    misses = {config: abs(found.recorded[config] / truths[places[config]] - 1) for config in recordings}
    assert np.median(list(misses.values())) < 0.01
    assert misses[configs[mixes.index(special)]] < special_miss
    assert found.ratio(candidates.shares[unseen]) == pytest.approx(truths[unseen], rel=0.02)


def test_a_mix_that_was_not_recorded_is_told_by_its_parts():
    replay = Replay(tables.load(tables.TABLES / f"torch_llama{tables.SUFFIX}"))
    mixes = [config for config in replay.truths if replay.table.space.is_mix(config) and not config.is_none]
    for config in mixes[::40]:
        known = replay.truths.pop(config)
        told = replay.truth_of(config)
        assert abs(told.peak_bytes - known.peak_bytes) < MIB
        assert told.ratio == pytest.approx(known.ratio, rel=0.03)


def test_a_trial_is_a_recording_of_its_config_held_against_the_limit(make_table):
    machine = Machine(noise=0.1, rounds=3)
    replay, config, chance = Replay(make_table(machine)), machine.configs[7], random.Random(0)
    limit_bytes = machine.peak_bytes(config) - 1
    trials = [replay.measure(config, chance, limit_bytes=limit_bytes) for _ in range(40)]
    drawn = {(trial.measurement.step_seconds, trial.reference_seconds) for trial in trials}
    assert drawn == {(found.seconds, found.reference_seconds) for found in replay.table.recordings[config]}
    assert {trial.measurement.outcome for trial in trials} == {Outcome.OVER_LIMIT}
    assert replay.measure(config, chance, limit_bytes=limit_bytes + 1).fits


def test_trials_are_counted_until_one_fits_and_is_near_the_best(replay):
    least, most = Machine().peak_bytes(Machine().space.all_on), Machine().peak_bytes(Config())
    limit_bytes = replay.limit_bytes(0.5)
    assert limit_bytes == (least + most) // 2
    by_speed = sorted(replay.truths, key=lambda config: replay.truths[config].ratio)
    best, *_, slow = (config for config in by_speed if replay.truths[config].peak_bytes <= limit_bytes)
    run = Player(replay, limit_bytes, 0).run(Listed(Config(), slow, by_speed[1], best, *by_speed))
    assert (run.trials, run.regrets) == (4, (0, 0, 0))
    ended = Player(replay, limit_bytes, 0).run(Listed(Config(), slow))
    lost = 1 - replay.truths[best].ratio / replay.truths[slow].ratio
    assert (ended.trials, ended.regrets, ended.answer_regret) == (None, pytest.approx((lost,) * 3), pytest.approx(lost))
    nothing = Player(replay, limit_bytes, 0).run(Listed(Config()))
    assert (nothing.trials, nothing.answer_regret, nothing.is_infeasible) == (None, None, False)


@pytest.mark.parametrize(("excess_bytes", "is_infeasible"), [(1500, False), (2**20, True)])
def test_an_answer_that_fits_by_luck_is_infeasible_and_rare(make_table, excess_bytes, is_infeasible):
    """A config that typically is over the limit by more than peaks are off counts, where it came to be the answer."""
    machine = Machine(rounds=2)
    config, rows = machine.configs[-2], list(machine.rows())
    own = next(row for row in rows if row["config"] == config.hash)
    # Peaks of two recordings are 2 KiB apart.
    noisy = [{**row, "peak_bytes": row["peak_bytes"] + 1024 * (-1) ** row["round"]} for row in rows]
    lucky = [*[own] * 9, *[{**own, "peak_bytes": own["peak_bytes"] + excess_bytes}] * 10]
    replay = Replay(make_table(machine, [*(row for row in noisy if row["config"] != config.hash), *lucky]))
    runs = [Player(replay, own["peak_bytes"], seed).run(Listed(config)) for seed in range(200)]
    assert all(run.answer_regret is None for run in runs), "nothing that truly fits is lost by it"
    assert any(run.is_infeasible for run in runs) == is_infeasible
    assert sum(run.is_infeasible for run in runs) < 0.1 * len(runs)


def test_the_knapsack_takes_the_cheapest_sets_in_turn(replay):
    table, limit_bytes, trials = replay.table, replay.limit_bytes(0.5), []
    knapsack = Knapsack(table.space, table.dims, limit_bytes)
    while (proposal := knapsack.propose(trials)) is not None:
        trials.append(replay.measure(proposal.config, random.Random(0), limit_bytes=limit_bytes, number=len(trials)))
    sets = [table.space.plans_of(trial.config) for trial in trials[2:]]
    savings = [sum(plan.saving_bytes for plan in plans) for plans in sets]
    costs = [sum(plan.occurrences for plan in plans) for plans in sets]
    assert trials[2].fits, "stated savings are true here"
    assert (savings, costs) == (sorted(savings), sorted(costs))


@pytest.mark.parametrize("fewest", range(1, 9))
def test_bisection_finds_the_fewest_blocks_that_fit(make_trial, fewest):
    plan = make_plan("h.*:checkpoint", 8, 80 * MIB, str(80 * MIB), counts=True)
    space = Space(plans=(plan,), own_presets={"blocks": Config.of([plan])})
    searcher, trials = Bisection(space, (100 - 10 * fewest) * MIB), []
    while (proposal := searcher.propose(trials)) is not None:
        peak_bytes = (100 - 10 * proposal.config.count_of(plan)) * MIB
        trials.append(make_trial(proposal.config, number=len(trials), peak_bytes=peak_bytes))
    assert {fewest, fewest - 1} <= {trial.config.count_of(plan) for trial in trials}
    assert len(trials) <= 5


@pytest.mark.parametrize(("left_bytes", "verdict"), [(0, "met"), (1024 * MIB, "missed")])
def test_an_answer_of_a_whole_tuning_is_held_against_what_would_fit_where_it_does(replay, left_bytes, verdict):
    least = min(replay.truths, key=lambda config: replay.truths[config].peak_bytes)
    process_bytes = round(replay.truths[least].peak_bytes) + 30 * MIB
    best = {"config": least.texts, "description": "these", "peak_bytes": process_bytes}
    answer = {"best": best, "trials": 9, "wall_seconds": 60.0}
    *_, lost, told = judge(replay, process_bytes + left_bytes, answer, 42.0)
    assert (told, lost == "0.0%") == (verdict, verdict == "met")


@pytest.mark.parametrize(
    ("trials", "share", "expected"),
    [([3, 1, 2], 0.5, 2), ([1, None, 9], 0.5, 9), ([1, None, None], 0.5, math.inf), (list(range(1, 11)), 0.9, 9)],
)
def test_runs_that_never_got_there_count_as_the_longest(trials, share, expected):
    assert quantile(trials, share) == expected


def columns(trials, **changes):
    regrets = {f"regret_{count}": [0.0] * len(trials) for count in (10, 20, 40)}
    kept = {"seeds": 1, "trials": trials, **regrets, "answer_regret": [0.0] * len(trials)}
    speed = {"is_infeasible": [False] * len(trials), "proposal_ms": 1.0, "longest_proposal_ms": 9.0}
    return {**kept, **speed, **changes}


def test_ours_is_compared_with_the_best_of_optunas():
    best, worst, *_ = OPTUNAS
    assert times_fewer({OURS: columns([5]), best: columns([30]), worst: columns([None])}) == (6, best)
    assert times_fewer({OURS: columns([5]), worst: columns([None])}) == (BUDGET / 5, worst)
    assert times_fewer({OURS: columns([None]), worst: columns([90])}) is None


@pytest.mark.parametrize(
    ("trials", "changes", "missed"),
    [
        ([10, 10], {}, []),
        ([13, 13], {}, ["median", "3x"]),
        ([2, 26], {}, ["90 %"]),
        ([10, 10], {"is_infeasible": [False, True]}, ["no infeasible"]),
        ([10, 10], {"longest_proposal_ms": 50.0}, ["proposals"]),
    ],
)
def test_a_goal_that_is_missed_is_called_so(trials, changes, missed):
    goals = judge_goals({"bert": {OURS: columns(trials, **changes), next(iter(OPTUNAS)): columns([36, 36])}})
    found = [goal for goal in goals if goal.startswith("missed")]
    assert (len(goals), len(found)) == (5, len(missed))
    assert all(word in goal for word, goal in zip(missed, found, strict=True))
