"""The peak of a fresh process, as the tool tells it and as it is by hand."""

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import MIB

MODULES_BYTES = 24 * MIB
"""What this tool's own modules take beside the script, at most."""


def test_what_a_process_held_before_it_trained_counts(tmp_path, scripts, workplace):
    """A limit knows no reset: the confirmed peak is what the process reaches by hand, wherever it reaches it."""
    by_hand = workplace.finish(workplace.start(str(scripts / "spiking.py"))).printed_peak_bytes
    with Bench(Job(script=scripts / "spiking.py"), None, tmp_path) as bench:
        measured = bench.watch({}, Effort(warmup=1, steps=2), None)
    assert (measured.outcome, measured.message) == (Outcome.OK, "")
    assert measured.peak_bytes == pytest.approx(by_hand, abs=MODULES_BYTES)
    assert measured.before_bytes == measured.peak_bytes


def test_what_loads_the_model_is_named_where_it_alone_breaks_the_limit(workplace):
    """No recompute helps there: the user is told where the process holds most."""
    tuned = workplace.tune("spiking.py", "--memory-limit", "500MiB", "--max-trials", "1")
    assert tuned.code == NothingFitsError.exit_code
    assert "before its first step: what loads the model, or exports it, takes more than training" in tuned.complaint
