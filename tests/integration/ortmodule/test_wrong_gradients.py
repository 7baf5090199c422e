"""A config that trains something else, because its masks really get out of step, and a tuning that passes it by."""

import json
import re

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import MIB

WRONG = "Dropout+"


def test_a_config_with_wrong_gradients_is_told_and_never_emitted(workplace, scripts, tmp_path):
    """Under a limit that steps hold with the one plan alone, which saves twice as much, nothing is emitted."""
    with Bench(Job(script=scripts / "forgetful.py", arguments=()), None, tmp_path) as bench:
        peak_bytes = bench.measure(Config(), Effort(warmup=1, steps=2)).peak_bytes
    tuned = workplace.tune("forgetful.py", "--memory-limit", str(peak_bytes - 25 * MIB), "--max-trials", "2", "--json")
    told = [line for line in tuned.stderr.splitlines() if "wrong_gradient: " in line]
    assert told
    assert all(f"by {WRONG}" in line and "forgetful.py:" in line for line in told)
    assert tuned.code == 4
    assert tuned.answer["best"] is None
    assert re.search(rf"Not confirmed: .* has wrong gradients, by {re.escape(WRONG)}", tuned.complaint)
    rejected = json.loads((workplace.study().path / "rejected.json").read_text())["rejected"]
    assert {rejection["outcome"] for rejection in rejected} == {"wrong_gradient"}
