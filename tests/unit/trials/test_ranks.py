import shlex

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.training_job import Detection
from autorecompute.worker.protocol import Order

LONG = 600.0
ORDER = Order(config=Config(), warmup=1, steps=2)


@pytest.fixture
def start_ranks(start, make_job):
    """Starts one worker of several ranks, as a launcher does; it ends with the last of them."""

    def start_ranks(*actions):
        ranks = [shlex.join(make_job(rank).worker_command(None)) for rank in actions]
        lines = [f"RANK={rank} WORLD_SIZE=2 {command} &" for rank, command in enumerate(ranks)]
        return start(command=["/bin/sh", "-c", "\n".join([*lines, "wait"])])

    return start_ranks


def test_ranks_are_told_as_one(start_ranks):
    worker = start_ranks("detect forever", "detect forever")
    assert isinstance(worker.receive(LONG), Detection)
    worker.send(ORDER)
    answer = worker.receive(LONG)
    assert (answer.step_seconds, answer.peak_bytes, answer.samples) == ((1.1, 1.1), 1001, 8)


@pytest.mark.parametrize(
    "actions", [("detect order failed:oom:full", "detect forever"), ("detect forever", "detect order failed:oom:full")]
)
def test_the_first_rank_to_fail_speaks_for_all(start_ranks, actions):
    worker = start_ranks(*actions)
    worker.receive(LONG)
    worker.send(ORDER)
    assert worker.receive(LONG).message == "full"


def test_ranks_without_numbers_are_told_of_their_launcher(start, make_job):
    """They would be measured as one that answers twice."""
    command = shlex.join(make_job("detect forever").worker_command(None))
    worker = start(command=["/bin/sh", "-c", f"{command} & {command} & wait"])
    answer = worker.receive(LONG)
    if isinstance(answer, Detection):  # the first one was faster than the second one's greeting
        answer = worker.receive(LONG)
    assert answer.outcome is Outcome.SCRIPT_ERROR
    assert answer.message.startswith("The launcher sets no RANK: two of its processes are rank 0.")


def test_a_rank_that_never_comes_is_noticed(start_ranks):
    worker = start_ranks("detect")
    assert worker.receive(LONG).outcome is not Outcome.TIMEOUT


@pytest.mark.usefixtures("clock")
def test_ranks_that_never_come_are_counted(start):
    answer = start("hangs:90", WORLD_SIZE="3").receive(2000, stall=60.0)
    assert answer.outcome is Outcome.HANG
    assert answer.message.startswith("WORLD_SIZE tells of 3 ranks, and 1 came within 60 s.")
