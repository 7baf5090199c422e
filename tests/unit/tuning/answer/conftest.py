from dataclasses import replace

import pytest


@pytest.fixture
def let_baseline_hold():
    def let_hold(bench, more_bytes):
        measure = bench.measure

        def measure_resident(config, effort):
            measured = measure(config, effort)
            return replace(measured, resident_bytes=measured.peak_bytes + more_bytes if config.is_none else None)

        bench.measure = measure_resident

    return let_hold


@pytest.fixture
def make_slow(make_tuning, make_timed_bench):
    return lambda **settings: make_tuning(make_timed_bench(start_seconds=5.0, step_seconds=0.4), **settings)
