"""The memory limit on its way from the user to a worker."""

import shlex
import sys

import pytest

from autorecompute.errors import SetupError
from autorecompute.trials import Bench, Job
from autorecompute.trials.effort import Effort
from autorecompute.units import GIB

TELLING_WORKER = """
import os
from autorecompute import codec
from autorecompute.worker.channel import Channel
from autorecompute.worker.protocol import SETTINGS_VARIABLE, Hello, Refused, Settings

settings = codec.decode(os.environ[SETTINGS_VARIABLE], Settings)
channel = Channel(settings.address)
channel.send(Hello(rank=0, world_size=1, pid=os.getpid()))
channel.send(Refused(message=f"limit {settings.limit_bytes}"))
"""


@pytest.fixture
def begin_bench(tmp_path):
    """Makes a bench whose worker says what its limit is, and trains nothing."""
    worker, script = tmp_path / "worker.py", tmp_path / "train.py"
    worker.write_text(TELLING_WORKER)
    script.write_text("")
    job = Job(script=script, launcher=shlex.join([sys.executable, str(worker)]))
    return lambda **options: Bench(job, 8, tmp_path, **options)


@pytest.mark.parametrize("limit_bytes", [None, 8 * GIB])
def test_every_worker_is_told_the_limit(begin_bench, limit_bytes):
    """Those that obey orders and those that are watched: what is confirmed must fit as what is searched."""
    with begin_bench(limit_bytes=limit_bytes) as bench:
        with pytest.raises(SetupError, match=f"^limit {limit_bytes}$"):
            bench.detect()
        with pytest.raises(SetupError, match=f"^limit {limit_bytes}$"):
            bench.watch({}, Effort(), 4)


def test_without_a_word_there_is_no_limit(begin_bench):
    """A bench that was given none enforces none."""
    with begin_bench() as bench, pytest.raises(SetupError, match=r"^limit None$"):
        bench.detect()
