"""Processes that the kernel kills because their control group has no memory left."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.effort import Effort
from autorecompute.units import MIB

EFFORT = Effort(warmup=1, steps=2)
GROUP_BYTES = 1024 * MIB
"""More than a small training takes, and less than the script tries to get."""

STRANGER_BYTES = 32 * MIB
HIERARCHIES = {
    "cgroup2": (Path("/sys/fs/cgroup"), ["memory.max", "memory.swap.max"]),
    "cgroup": (Path("/sys/fs/cgroup/memory"), ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]),
}
"""Where each kind of control groups is mounted, and how a group is limited with and without its swap."""


def parent_group():
    """A control group that others for memory can be made in, and the files that limit one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root, limits = HIERARCHIES["cgroup" if controllers else "cgroup2"]
        for group in (root / path.strip("/"), root):
            # In the second version a group has to hand memory on, which one with processes of its own cannot.
            handed_on = group / "cgroup.subtree_control"
            if group.is_dir() and "memory" in controllers.split(","):
                return group, limits
            if not controllers and handed_on.is_file() and "memory" in handed_on.read_text().split():
                return group, limits
    pytest.skip("no control group here can limit the memory of another: there is no memory controller to be had")


@pytest.fixture
def make_group():
    """Makes control groups in which all processes together have so much memory and no more."""
    made = []

    def make_group(limit_bytes):
        parent, (memory, swap) = parent_group()
        group = parent / f"autorecompute-test-{os.getpid()}-{len(made)}"
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"{parent} takes no control group from this user: {error.strerror}")
        made.append(group)
        (group / memory).write_text(str(limit_bytes))
        if (group / swap).exists():
            (group / swap).write_text("0" if swap == "memory.swap.max" else str(limit_bytes))
        return group

    yield make_group
    for group in made:
        remove(group)


def remove(group):
    """Removes a group whose last processes may still be on their way out."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return group.rmdir()
        time.sleep(0.1)
    return group.rmdir()


@pytest.fixture
def inside(scripts):
    """The command that starts another in a control group."""
    return lambda group: [sys.executable, str(scripts / "in_group.py"), str(group)]


@pytest.fixture
def begin(make_group, inside, scripts, tmp_path):
    """Starts a script in a control group of its own, and measures it once without a fault."""
    with contextlib.ExitStack() as stack:

        def begin(fault):
            launcher = shlex.join([*inside(make_group(GROUP_BYTES)), sys.executable])
            arguments = ("--fault", fault, "--at-step", "6")
            job = Job(script=scripts / "breaking.py", arguments=arguments, launcher=launcher)
            bench = stack.enter_context(Bench(job, None, tmp_path))
            assert bench.measure(Config(), EFFORT).outcome is Outcome.OK
            return bench

        yield begin


@pytest.fixture
def kill_a_stranger(make_group, inside):
    """Has the kernel kill a process in another control group, which has nothing to do with any tuning."""

    def kill_a_stranger():
        greedy = [*inside(make_group(STRANGER_BYTES)), sys.executable, "-c", f"bytearray({8 * STRANGER_BYTES})"]
        assert subprocess.run(greedy, check=False).returncode == -signal.SIGKILL

    return kill_a_stranger


def test_a_worker_that_the_kernel_kills_is_out_of_memory(begin):
    """A script that takes more than its control group has is told as killed by the kernel, and the next one lives."""
    bench = begin("exhaust-kernel")
    killed = bench.measure(Config(), EFFORT)
    assert killed.outcome is Outcome.OOM
    assert "killed by the kernel" in killed.message
    assert bench.measure(Config(), EFFORT).outcome is Outcome.OK


def test_another_ones_death_is_not_taken_for_ones_own(begin, kill_a_stranger):
    """A worker that somebody kills while the kernel kills elsewhere is lost, not out of memory."""
    bench = begin("kill")
    kill_a_stranger()
    assert bench.measure(Config(), EFFORT).outcome is Outcome.LOST


def test_a_tuning_in_a_container_outlives_the_kernels_kills(workplace, make_group, inside):
    """Where tuner and script share a control group, the kernel takes the script, and the study says what it died of."""
    tuning = workplace.tuning("breaking.py", "--max-trials", "1", arguments=("--fault", "exhaust-kernel"))
    finished = workplace.finish(workplace.start(*inside(make_group(GROUP_BYTES))[1:], sys.executable, *tuning))
    assert finished.code == 4, finished.stderr
    (trial,) = workplace.study().trials
    assert trial["measurement"]["outcome"] == "oom"
    assert "killed by the kernel" in trial["measurement"]["message"]
