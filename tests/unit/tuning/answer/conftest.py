from dataclasses import replace

import pytest

from stand_ins.formula import instead


@pytest.fixture(scope="session")
def let_baseline_hold():
    """Lets the process without recompute hold so much more than its tensors."""

    def let_hold(bench, more_bytes):
        def measure_resident(measure, config, effort):
            measured = measure(config, effort)
            return replace(measured, resident_bytes=measured.peak_bytes + more_bytes if config.is_none else None)

        instead(bench, "measure", measure_resident)

    return let_hold
