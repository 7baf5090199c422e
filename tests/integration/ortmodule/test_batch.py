from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort


def test_a_live_worker_is_told_another_batch_and_goes_back(scripts, tmp_path):
    """A window at a small batch, profiled, lies between two at the target, all on one process and with no step lost."""
    small, quick = Effort(warmup=1, steps=2, profiles=True, batch=3), Effort(warmup=1, steps=2)
    with Bench(Job(script=scripts / "evaluating.py"), 12, tmp_path) as bench:
        assert bench.can_change_batch
        measured = [bench.measure(Config(), effort) for effort in (quick, small, quick, small, quick)]
        assert bench.starts == 1
    assert [(each.outcome, each.batch, each.samples) for each in measured] == [
        (Outcome.OK, batch, batch) for batch in (12, 3, 12, 3, 12)
    ]
    assert [each.profile.dims["batch"] for each in measured if each.profile is not None] == [3, 3]
