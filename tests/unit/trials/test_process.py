import os
import shlex
import sys
import tempfile
import time
from multiprocessing.connection import wait

import pytest

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.training_job import Detection
from autorecompute.trials import process
from autorecompute.trials.process import OomKills
from autorecompute.waiting import OutOfTime, ending_at
from autorecompute.worker.protocol import Ended, Failed, Order

LONG = 600.0
ORDER = Order(config=Config(), warmup=1, steps=2)

CALLS = """
import json, os, sys, time
from multiprocessing.connection import Client

line = Client(json.loads(os.environ["AUTORECOMPUTE_WORKER"])["address"], family="AF_UNIX")
"""
SAYS = CALLS + "line.send_bytes(sys.argv[1].encode())"
HALF = CALLS + "os.write(line.fileno(), (100).to_bytes(4, 'big') + b'half'); time.sleep(600)"


@pytest.fixture
def begin(start):
    """Starts a worker that does what is said once it has an order."""

    def begin(actions):
        worker = start(f"detect order {actions}")
        assert isinstance(worker.receive(LONG), Detection)
        worker.send(ORDER)
        return worker

    return begin


@pytest.mark.parametrize(("timeout", "stall"), [(LONG, LONG), (0, 0)], ids=["in time", "late"])
def test_what_a_worker_answers_is_heard_however_late(begin, timeout, stall):
    """A tuner that was stopped beyond its patience calls nothing a hang."""
    worker = begin("answer sleep:600")
    wait(worker._ranks)
    assert worker.receive(timeout, stall).step_seconds == (0.1, 0.1)


def test_a_worker_that_leaves_with_success_and_no_word_has_ended(begin):
    ended = begin("beat beat exit:0").receive(LONG)
    assert isinstance(ended, Ended)
    assert (ended.steps, ended.exit_code) == (1, 0)
    assert "os._exit(0)" in ended.advice


def test_a_worker_that_goes_to_the_background_is_told(start, is_gone):
    """A forked process holds the line of one that is gone."""
    worker = start("daemon")
    answer = worker.receive(LONG)
    worker.close()
    assert is_gone("child")
    assert answer.outcome is Outcome.SCRIPT_ERROR
    assert "forked" in answer.message
    assert "Train in the foreground" in answer.message


def test_last_words_count_more_than_the_death(start):
    worker = start("failed:export_error:no signal:SIGKILL")
    assert worker.receive(LONG).outcome is Outcome.EXPORT_ERROR
    assert worker.receive(LONG).outcome is Outcome.LOST


@pytest.mark.parametrize(
    ("end", "counter", "outcome"),
    [
        ("signal:SIGKILL", "fs/memory.events", Outcome.OOM),
        ("exit:1", "fs/memory.events", Outcome.OOM),
        ("signal:SIGKILL", "proc/vmstat", Outcome.LOST),
        ("exit:1", "proc/vmstat", Outcome.SCRIPT_ERROR),
    ],
)
def test_a_death_is_out_of_memory_where_its_own_group_counts_a_kill(start, machine, end, counter, outcome):
    machine.mount("/ fs cgroup2 rw")
    machine.kill("fs/memory.events", 3)
    worker = start(f"detect order {end}")
    machine.put("0::/", pid=worker._process.pid)
    worker.receive(LONG)
    machine.kill(counter, 4)
    worker.send(ORDER)
    assert worker.receive(LONG).outcome is outcome


def test_silence_is_a_timeout_and_its_end_takes_all_with_it(start, is_gone, monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    worker = start("child detect sleep:600")
    worker.receive(LONG)
    assert worker.receive(0.1).outcome is Outcome.TIMEOUT
    worker.close()
    assert is_gone()
    assert is_gone("child")


def test_a_worker_that_hangs_up_is_told_and_one_that_stops_within_a_message_given_up(start, monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    worker = start("detect hang_up")
    worker.receive(LONG)
    answer = worker.receive(LONG)
    assert (answer.outcome, "exited unexpectedly" in answer.message) == (Outcome.CRASH, True)
    monkeypatch.setattr(process, "TRANSFER_SECONDS", 1)
    worker = start(command=[sys.executable, "-c", HALF])
    assert worker.receive(LONG).outcome is Outcome.HANG


@pytest.mark.parametrize("works", ["print:loading", "computes"])
def test_a_script_may_load_for_as_long_as_it_is_at_work(start, clock, works):
    loading = start(f"{f'{works} passes:0.4 ' * 10} detect hangs:200")
    assert isinstance(loading.receive(1.0, stall=1.0), Detection)
    assert clock.now == pytest.approx(4.0)
    loading.send(ORDER)
    assert loading.receive(2000, stall=300).outcome is Outcome.HANG
    assert start("hangs:200").receive(2000, stall=300).outcome is Outcome.HANG


@pytest.mark.parametrize("actions", ["sleep:600", "beat sleep:0.05 " * 1000], ids=["silent", "busy"])
def test_no_answer_is_awaited_beyond_the_deadline_of_the_command(begin, actions):
    worker = begin(actions)
    with ending_at(time.monotonic() + 0.2), pytest.raises(OutOfTime):
        worker.receive(LONG)


@pytest.mark.parametrize(
    "frame",
    [
        *("hello", "{", "[]", "[" * 100_000, "{}", '{"kind": "Beat"}', '{"kind": ["Beat"], "value": {}}'),
        *('{"kind":"Hello","value":1}', '{"kind":"Detection","value":{}}', '{"kind":"Config"}'),
    ],
    ids=lambda frame: frame[:20],
)
def test_a_worker_of_another_version_does_not_break_the_tuner(start, frame):
    command = [sys.executable, "-c", SAYS, frame]
    assert isinstance(start(command=command).receive(LONG), Failed)


def test_a_command_that_does_not_exist_is_told_and_a_log_that_cannot_be_written_is_not_its_fault(
    start, sockets, tmp_path
):
    with pytest.raises(SetupError, match=r"'no-such-launcher' cannot be started.*--launcher"):
        start(command=["no-such-launcher", "train.py"])
    assert list(sockets.iterdir()) == []
    (tmp_path / "workers").write_text("not a folder")
    with pytest.raises(SetupError, match=r"workers/01\.log"):
        start("detect", log=tmp_path / "workers" / "01.log")


def test_the_study_and_the_temporary_folder_may_lie_deep(start, sockets, tmp_path, monkeypatch):
    """Clusters give one to each job, whose path is longer than a socket's may be."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="t" * 100, dir=sockets) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        worker = start("print:hello detect sleep:600", log=deep / "01.log")
        assert isinstance(worker.receive(LONG), Detection)
        worker.close()
    assert (deep / "01.log").read_text() == "hello\n"


def test_a_script_cannot_wait_for_the_keyboard(start, tmp_path):
    """On a standard input on which nobody ever types."""
    (reading, writing), kept = os.pipe(), os.dup(0)
    os.dup2(reading, 0)
    worker = start(command=[sys.executable, "-c", "input('sure? ')"])
    os.dup2(kept, 0)
    outcome = worker.receive(LONG).outcome
    for end in (reading, writing, kept):
        os.close(end)
    assert outcome is Outcome.SCRIPT_ERROR
    assert "EOFError" in (tmp_path / "worker.log").read_text()


@pytest.fixture
def start_ranks(start, make_job):
    """Starts one worker of several ranks, as a launcher does; it ends with the last of them."""

    def start_ranks(*actions):
        ranks = [shlex.join(make_job(rank).worker_command(None)) for rank in actions]
        lines = [f"RANK={rank} WORLD_SIZE=2 {command} &" for rank, command in enumerate(ranks)]
        return start(command=["/bin/sh", "-c", "\n".join([*lines, "wait"])])

    return start_ranks


def test_ranks_are_told_as_one_and_one_that_never_comes_is_noticed(start_ranks):
    worker = start_ranks("detect forever", "detect forever")
    assert isinstance(worker.receive(LONG), Detection)
    worker.send(ORDER)
    answer = worker.receive(LONG)
    assert (answer.step_seconds, answer.peak_bytes, answer.samples) == ((1.1, 1.1), 1001, 8)
    worker = start_ranks("detect")
    assert worker.receive(LONG).outcome is not Outcome.TIMEOUT


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


@pytest.mark.usefixtures("clock")
def test_ranks_that_never_come_are_counted(start):
    answer = start("hangs:90", WORLD_SIZE="3").receive(2000, stall=60.0)
    assert answer.outcome is Outcome.HANG
    assert answer.message.startswith("WORLD_SIZE tells of 3 ranks, and 1 came within 60 s.")


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
        self.kill("proc/vmstat", 0)

    def mount(self, *lines):
        """Mounts hierarchies: ``WHICH_GROUP WHERE TYPE OPTIONS``."""
        mounts = (line.split(" ") for line in lines)
        lines = (f"3 2 0:1 {shown} {self.folder}/{at} rw - {kind} cgroup {rest}" for shown, at, kind, rest in mounts)
        (self.proc / "self" / "mountinfo").write_text(
            "".join(f"{line}\n" for line in ("1 0 8:1 / / rw - ext4 /dev/vda rw", *lines))
        )

    def put(self, *groups, pid=PID):
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text("".join(f"{group}\n" for group in groups))

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
def test_without_a_group_the_machine_is_asked_which_may_count_nothing(machine, groups):
    machine.mount("/ fs cgroup2 rw", "/box memory cgroup rw,memory")
    machine.put(*groups)
    kills = machine.follow()
    assert not kills.has_risen()
    machine.kill("proc/vmstat", 1)
    assert kills.has_risen()
    (machine.proc / "vmstat").unlink()
    assert not machine.follow().has_risen()
