"""Processes that the kernel kills because their control group has no memory left."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.units import MIB
from fake_backend.trainer import launcher
from workplace import QUICK, Workplace

pytestmark = pytest.mark.usefixtures("cold_python")

IN_GROUP = str(Path(__file__).with_name("in_group.py"))
PYTHON = sys.executable
STRANGER_BYTES, GROUP_BYTES, TORCH_BYTES = 32 * MIB, 256 * MIB, 1024 * MIB
"""What a group may take: more than what is started in it takes by itself, and less than it tries to get."""

HIERARCHIES = {
    "cgroup2": (Path("/sys/fs/cgroup"), ["memory.max", "memory.swap.max"]),
    "cgroup": (Path("/sys/fs/cgroup/memory"), ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]),
}
"""Where each kind of control groups is mounted, and how a group is limited with and without its swap."""

HOARDS = """
import itertools
import torch

block = lambda: torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
model = torch.nn.Sequential(block(), block())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in itertools.count():
    if step == 2:
        hoard = [b"1" * 2**26 for _ in range(32)]
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


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
def start_in():
    """What starts a command in a control group in which all processes together have so much memory and no more."""
    made = []

    def start_in(limit_bytes):
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
        return [IN_GROUP, str(group)]

    yield start_in

    def is_gone(group):
        # Its last processes may still be on their way out.
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    Workplace.wait_until(lambda: all(map(is_gone, made)))


@pytest.fixture
def search(start_in):
    """What follows ``tune`` for a search whose script has a control group of its own."""
    grouped = shlex.join([PYTHON, *start_in(GROUP_BYTES), *shlex.split(launcher())])
    return ("--launcher", grouped, "--memory-limit", "750MiB", "--sampler", "random", "--max-trials", "3")


def test_a_worker_that_the_kernel_kills_is_out_of_memory_and_the_next_one_lives(desk, search):
    tuned = desk.tune(*search, FAKE_FAULT="exhaust@1")
    assert tuned.code == 0, tuned.stderr
    _, killed, after = (trial["measurement"] for trial in desk.study().trials)
    assert killed["outcome"] == "oom"
    assert "killed by the kernel" in killed["message"]
    assert after["outcome"] in {"ok", "over_limit"}


def test_a_worker_that_somebody_kills_while_the_kernel_kills_elsewhere_is_lost(desk, search, start_in):
    process = desk.start_tuning(*search, FAKE_FAULT="stand@1")
    desk.wait_until(lambda: desk.has_printed("stand at 1"))
    greedy = [PYTHON, *start_in(STRANGER_BYTES), PYTHON, "-c", f"bytearray({8 * STRANGER_BYTES})"]
    assert subprocess.run(greedy, check=False).returncode == -signal.SIGKILL
    for worker in desk.processes():
        if worker.pid != process.pid:
            worker.kill()
    assert desk.finish(process).code == 0
    assert [trial["measurement"]["outcome"] for trial in desk.study().trials][1] == "lost"


def test_a_real_tuning_in_a_container_outlives_the_kernels_kills(desk, start_in):
    """Where tuner and script share a control group, the kernel takes the script, and the study says what it died of."""
    (desk.path / "hoards.py").write_text(HOARDS)
    tuning = ("-m", "autorecompute", "tune", "hoards.py", "--backend", "torch", *QUICK, "--max-trials", "1")
    finished = desk.finish(desk.start(*start_in(TORCH_BYTES), PYTHON, *tuning))
    assert finished.code == 4, finished.stderr
    (trial,) = desk.study().trials
    assert trial["measurement"]["outcome"] == "oom"
    assert "killed by the kernel" in trial["measurement"]["message"]
