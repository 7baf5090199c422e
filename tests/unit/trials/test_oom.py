import pytest

from autorecompute.trials import process
from autorecompute.trials.process import OomKills

PID = 7


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A host whose ``/proc`` and control groups lie in a folder; no process has been killed on it yet."""
    machine = Machine(tmp_path)
    monkeypatch.setattr(process, "PROC", machine.proc)
    return machine


class Machine:
    def __init__(self, folder):
        self.folder, self.proc = folder, folder / "proc"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / str(PID)).mkdir()
        self.kill("proc/vmstat", 0)

    def mount(self, *lines):
        """Mounts hierarchies: ``WHICH_GROUP WHERE TYPE OPTIONS``."""
        mounts = (line.split(" ") for line in lines)
        lines = (f"3 2 0:1 {shown} {self.folder}/{at} rw - {kind} cgroup {rest}" for shown, at, kind, rest in mounts)
        (self.proc / "self" / "mountinfo").write_text(
            "".join(f"{line}\n" for line in ("1 0 8:1 / / rw - ext4 /dev/vda rw", *lines))
        )

    def put(self, *groups):
        (self.proc / str(PID) / "cgroup").write_text("".join(f"{group}\n" for group in groups))

    @staticmethod
    def follow():
        kills = OomKills()
        kills.follow(PID)
        return kills

    def kill(self, counter, count):
        file = self.folder / counter
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"low 0\noom_group_kill 0\noom_kill {count}\n")


LAYOUTS = {
    "v1": (
        ["/ memory cgroup rw,memory", "/ cpu cgroup rw,cpu"],
        ["3:cpu:/", "4:memory:/step"],
        "memory/step/memory.oom_control",
    ),
    "v1 in a container": (["/box memory cgroup rw,memory"], ["4:memory:/box"], "memory/memory.oom_control"),
    "v1 beside v2": (
        ["/ memory cgroup rw,memory", "/ unified cgroup2 rw"],
        ["4:memory:/step", "0::/"],
        "memory/step/memory.oom_control",
    ),
    "v2": (["/ fs cgroup2 rw,nsdelegate"], ["0::/job/step"], "fs/job/step/memory.events"),
    "v2 in a container": (["/ fs cgroup2 rw"], ["0::/"], "fs/memory.events"),
    "v2, counted above": (["/ fs cgroup2 rw"], ["0::/job/step"], "fs/job/memory.events"),
}


@pytest.mark.parametrize(("mounts", "groups", "counter"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_groups_own_count_decides(machine, mounts, groups, counter):
    machine.mount(*mounts)
    machine.put(*groups)
    machine.kill(counter, 3)
    kills = machine.follow()
    machine.kill("proc/vmstat", 1)
    assert not kills.has_risen()
    machine.kill(counter, 4)
    assert kills.has_risen()


def test_a_group_that_a_launcher_made_is_the_workers(machine):
    """The group that counts is the one the worker is in when it calls."""
    machine.mount("/ fs cgroup2 rw")
    machine.put("0::/shell")
    machine.kill("fs/shell/memory.events", 0)
    kills = machine.follow()
    machine.put("0::/scope")
    machine.kill("fs/scope/memory.events", 5)
    kills.follow(PID)
    machine.kill("fs/shell/memory.events", 1)
    assert not kills.has_risen()
    machine.kill("fs/scope/memory.events", 6)
    assert kills.has_risen()


def test_a_group_that_went_away_is_counted_with_the_one_above(machine):
    """A scope that ends with its last process leaves its count to the groups above it."""
    machine.mount("/ fs cgroup2 rw")
    machine.put("0::/user/scope")
    for group in ("user", "user/scope"):
        machine.kill(f"fs/{group}/memory.events", 0)
    kills = machine.follow()
    machine.kill("fs/user/memory.events", 1)
    assert not kills.has_risen()
    (machine.folder / "fs/user/scope/memory.events").unlink()
    assert kills.has_risen()


@pytest.mark.parametrize("groups", [[], ["0::/"], ["4:memory:/elsewhere"]], ids=["none", "root", "not to be seen"])
def test_without_a_group_the_machine_is_asked(machine, groups):
    machine.mount("/ fs cgroup2 rw", "/box memory cgroup rw,memory")
    machine.put(*groups)
    kills = machine.follow()
    assert not kills.has_risen()
    machine.kill("proc/vmstat", 1)
    assert kills.has_risen()


def test_a_host_that_counts_nothing_says_no(machine):
    (machine.proc / "vmstat").unlink()
    kills = machine.follow()
    assert not kills.has_risen()
