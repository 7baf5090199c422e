"""The truth about configs, from recordings whose truth is known."""

import pytest

from autorecompute.backends.ortmodule.grammar import Level, config_of_level
from autorecompute.plans import Config
from autorecompute.units import MIB
from replay import Replay
from tables import SUFFIX, TABLES, load
from truth import DEVIATION, peak_noise_bytes, truths_of


def errors(table, machine):
    """How far each found step time is off the true one, as a share of it."""
    return [abs(truth.ratio / machine.seconds(config) - 1) for config, truth in truths_of(table).items()]


def test_quiet_recordings_are_the_truth(make_table, make_machine):
    """Without noise the true peak comes out, and the true step time as far as a product comes to a sum."""
    machine = make_machine()
    table = make_table(machine)
    assert max(errors(table, machine)) < 0.02
    found = truths_of(table)
    assert all(found[config].peak_bytes == machine.peak_bytes(config) for config in machine.configs)
    assert found[Config()].ratio == pytest.approx(1)


def test_noise_drift_and_accidents_are_seen_through(make_table, make_machine):
    """One recording a config tells all of them, though each may be off by more than the configs differ."""
    machine = make_machine(noise=0.04, outliers=0.08, pace=1.1, rounds=2)
    rows = list(machine.rows())
    table = make_table(machine, rows)
    raw = [abs(row["seconds"][0] / row["reference_seconds"] - 1) for row in rows]
    assert max(raw) > 1
    assert max(errors(table, machine)) < 0.05


def test_pairs_that_cost_more_together_are_seen(make_table, make_machine):
    """Two plans of which each makes the other dearer do so in the truth too; where none does, nothing is made up."""
    first, second, *_ = make_machine().space.plans
    both = [config for config in make_machine().configs if config.has(first) and config.has(second)]
    machine = make_machine(noise=0.02, rounds=3, extra_seconds=dict.fromkeys(both, 0.15))
    assert max(errors(make_table(machine, list(machine.rows())), machine)) < 0.03
    plain = make_machine(noise=0.02, rounds=3)
    assert max(errors(make_table(plain, list(plain.rows())), plain)) < 0.03


def test_a_level_costs_what_its_plans_do(make_table, make_machine):
    """One recording of a level is no more to be believed than one of any other config."""
    machine = make_machine(noise=0.03)
    table = make_table(machine, list(machine.rows()))
    level, alike = config_of_level(Level.LAYERWISE), machine.space.all_on
    table.recordings[level] = table.recordings[machine.configs[1]]
    found = truths_of(table)
    assert found[level].ratio == pytest.approx(found[alike].ratio, rel=0.02)


def test_the_median_peak_counts(make_table, make_machine):
    """Of several recorded peaks the middle one is the truth, and how far they are off it is told of all configs."""
    machine = make_machine(rounds=3)
    rows = list(machine.rows())
    table = make_table(machine, [{**row, "peak_bytes": row["peak_bytes"] + 10 * row["round"]} for row in rows])
    assert all(truths_of(table)[config].peak_bytes == machine.peak_bytes(config) + 10 for config in machine.configs)
    assert peak_noise_bytes(table) == pytest.approx(10 * DEVIATION)
    assert peak_noise_bytes(make_table()) == 0


def test_a_level_that_was_recorded_often_is_believed(make_table, make_machine):
    """Its plans say how long it takes only as long as it has no recordings of its own to speak of."""
    machine = make_machine(rounds=2)
    table = make_table(machine)
    level, fast = config_of_level(Level.LAYERWISE), machine.configs[1]
    table.recordings[level] = [recording for recording in table.recordings[fast] for _ in range(4)]
    found = truths_of(table)
    assert found[level].ratio == pytest.approx(found[fast].ratio, rel=0.02)


def test_a_mix_that_was_not_recorded_is_told_by_its_parts():
    """Its peak from what is simulated, its time from the sums: nearly what is known of it where it was recorded."""
    replay = Replay(load(TABLES / f"torch_llama{SUFFIX}"))
    mixes = [config for config in replay.truths if replay.table.space.is_mix(config) and not config.is_none]
    for config in mixes[::40]:
        known = replay.truths[config]
        del replay.truths[config]
        told = replay.truth_of(config)
        assert abs(told.peak_bytes - known.peak_bytes) < MIB
        assert told.ratio == pytest.approx(known.ratio, rel=0.03)
