"""One worker's life and end, with real processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.training_job import Detection
from autorecompute.trials import oom, process
from autorecompute.waiting import OutOfTime, ending_at, interruptible
from autorecompute.worker.protocol import Ended, Failed, Order

LONG = 60.0
ORDER = Order(config=Config(), warmup=1, steps=2)

CONTROLLER = """
import json, os, signal, sys
from pathlib import Path
from autorecompute.trials.private import private_folder
from autorecompute.trials.process import WorkerProcess
from autorecompute.worker.protocol import Settings

command, log = json.loads(sys.argv[1]), Path(sys.argv[2])
worker = WorkerProcess(command, dict(os.environ), log, lambda address: Settings(address=address))
worker.receive(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


SAYS = """
import json, os, sys
from multiprocessing.connection import Client

line = Client(json.loads(os.environ["AUTORECOMPUTE_WORKER"])["address"], family="AF_UNIX")
line.send_bytes(sys.argv[1].encode())
"""


HALF = """
import json, os, time
from multiprocessing.connection import Client

line = Client(json.loads(os.environ["AUTORECOMPUTE_WORKER"])["address"], family="AF_UNIX")
os.write(line.fileno(), (100).to_bytes(4, "big") + b"half")
time.sleep(600)
"""


def test_a_worker_speaks_and_obeys(start):
    """A worker's first words arrive, and so does its answer to an order."""
    worker = start("detect measure sleep:600")
    assert isinstance(worker.receive(LONG), Detection)
    worker.send(ORDER)
    assert worker.receive(LONG).step_seconds == (0.1, 0.1)


def test_what_was_said_is_heard_however_late(start):
    """A tuner that was stopped beyond its patience hears what its worker said meanwhile, and calls nothing a hang."""
    worker = start("detect measure sleep:600")
    worker.receive(LONG)
    worker.send(ORDER)
    worker.send(ORDER)
    time.sleep(1)
    assert worker.receive(0, stall=0).step_seconds == (0.1, 0.1)


@pytest.mark.parametrize("before", ["", "detect order"])
@pytest.mark.parametrize(
    ("end", "outcome", "words"),
    [
        ("signal:SIGKILL", Outcome.LOST, "from outside"),
        ("signal:SIGSEGV", Outcome.CRASH, "SIGSEGV"),
        ("signal:SIGABRT", Outcome.CRASH, "SIGABRT"),
        ("exit:7", Outcome.SCRIPT_ERROR, "exit code 7"),
    ],
)
def test_a_death_is_told_by_its_cause(start, before, end, outcome, words):
    """A worker that dies before its first word or during a trial answers with what it died of."""
    worker = start(f"{before} {end}")
    if before:
        worker.receive(LONG)
        worker.send(ORDER)
    answer = worker.receive(LONG)
    assert isinstance(answer, Failed)
    assert answer.outcome is outcome
    assert words in answer.message


def test_a_worker_that_leaves_with_success_and_no_word_has_ended(start):
    """A script that calls ``os._exit(0)`` has ended by itself, after the steps that were heard of: it is no crash."""
    worker = start("detect order beat:0 beat:0 exit:0")
    worker.receive(LONG)
    worker.send(ORDER)
    ended = worker.receive(LONG)
    assert isinstance(ended, Ended)
    assert (ended.steps, ended.exit_code) == (1, 0)
    assert "os._exit(0)" in ended.advice


def test_a_worker_that_goes_to_the_background_is_told(start, is_gone):
    """Where a forked process holds the line of one that is gone, the sentence says what is measured and what to do."""
    worker = start("daemon")
    answer = worker.receive(LONG)
    worker.close()
    assert is_gone("child")
    assert answer.outcome is Outcome.SCRIPT_ERROR
    assert "forked" in answer.message
    assert "Train in the foreground" in answer.message


def test_a_death_before_the_call_is_told(start):
    """A process that never calls the tuner is noticed when it ends."""
    answer = start(command=[sys.executable, "-c", "raise SystemExit(9)"]).receive(LONG)
    assert (answer.outcome, "9" in answer.message) == (Outcome.SCRIPT_ERROR, True)


def test_last_words_count_more_than_the_death(start):
    """What a worker said before it was killed is its answer."""
    worker = start("failed:export_error:no signal:SIGKILL")
    assert worker.receive(LONG).outcome is Outcome.EXPORT_ERROR
    assert worker.receive(LONG).outcome is Outcome.LOST


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """A folder in the place of ``/proc``: in it the kernel's counts, of the machine and of a control group."""
    monkeypatch.setattr(oom, "PROC", tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(f"2 1 0:1 / {tmp_path} rw - cgroup2 cgroup rw\n")
    for counter in ("vmstat", "memory.events"):
        (tmp_path / counter).write_text("oom_kill 3\n")
    return tmp_path


@pytest.mark.parametrize(
    ("end", "counter", "outcome"),
    [
        ("signal:SIGKILL", "memory.events", Outcome.OOM),
        ("exit:1", "memory.events", Outcome.OOM),
        ("signal:SIGKILL", "vmstat", Outcome.LOST),
        ("exit:1", "vmstat", Outcome.SCRIPT_ERROR),
    ],
)
def test_a_death_is_out_of_memory_where_its_own_group_counts_a_kill(start, counts, end, counter, outcome):
    """Where the kernel counted a kill in the worker's group, memory is what it died of; one elsewhere is no reason."""
    worker = start(f"detect order {end}")
    (counts / str(worker.pid)).mkdir()
    (counts / str(worker.pid) / "cgroup").write_text("0::/\n")
    worker.receive(LONG)
    (counts / counter).write_text("oom_kill 4\n")
    worker.send(ORDER)
    assert worker.receive(LONG).outcome is outcome


def test_orders_to_the_dead_are_noticed_at_the_answer(start, is_gone):
    """Giving an order to a worker that is gone is no error; its answer is its death."""
    worker = start("detect exit:3")
    worker.receive(LONG)
    assert is_gone()
    worker.send(ORDER)
    assert worker.receive(LONG).outcome is Outcome.SCRIPT_ERROR


def test_silence_is_a_timeout_and_its_end_takes_all_with_it(start, is_gone, monkeypatch):
    """A silent worker times out; closing it ends its group, with a child that ignores SIGTERM."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)
    worker = start("child detect order sleep:600")
    worker.receive(LONG)
    worker.send(ORDER)
    answer = worker.receive(0.6)
    assert answer.outcome is Outcome.TIMEOUT
    worker.close()
    assert is_gone()
    assert is_gone("child")


def test_a_worker_that_hangs_up_is_told(start, monkeypatch):
    """A worker that closes its line and lives on is no more waited for."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    worker = start("detect hang_up")
    worker.receive(LONG)
    answer = worker.receive(LONG)
    assert (answer.outcome, "without a word" in answer.message) == (Outcome.CRASH, True)


def test_a_step_that_never_ends_is_a_hang_and_shows_where(start, tmp_path, monkeypatch):
    """While steps end a trial goes on; when none does for long, the log gets the stack of what hangs."""
    monkeypatch.setattr(process, "STACK_SECONDS", 0.3)
    worker = start("detect order beat:0.3 beat:0.3 beat:0.3 sleep:600")
    worker.receive(LONG)
    worker.send(ORDER)
    began = time.monotonic()
    answer = worker.receive(LONG, stall=0.8)
    assert answer.outcome is Outcome.HANG
    assert time.monotonic() - began > 0.9
    assert "in sleep" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize("how", ["prints", "computes"])
def test_a_script_may_load_for_as_long_as_it_is_at_work(start, how):
    """Before its first word a worker that prints or keeps a processor busy is waited for; one that sleeps is not."""
    loading = start(f"load:{how}:4 detect sleep:600")
    assert isinstance(loading.receive(1.0, stall=1.0), Detection)
    loading.send(ORDER)
    assert loading.receive(LONG, stall=0.5).outcome is Outcome.HANG
    assert start("sleep:600").receive(LONG, stall=1.0).outcome is Outcome.HANG


@pytest.mark.parametrize("actions", ["sleep:600", "beat:0.05 " * 1000])
def test_no_answer_is_awaited_beyond_the_deadline(start, actions):
    """The time of the whole command ends the wait for a worker, be it silent or busy."""
    worker = start(f"detect order {actions}")
    worker.receive(LONG)
    worker.send(ORDER)
    began = time.monotonic()
    with ending_at(began + 0.5), pytest.raises(OutOfTime):
        worker.receive(LONG)
    assert 0.5 <= time.monotonic() - began < LONG / 2


def test_an_interruption_ends_the_wait_for_a_worker(start):
    """Whoever presses Ctrl-C does not wait for the step that never ends."""
    worker = start("detect order sleep:600")
    worker.receive(LONG)
    began, user = time.monotonic(), threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with interruptible():
        user.start()
        with pytest.raises(KeyboardInterrupt):
            worker.receive(LONG)
    assert time.monotonic() - began < LONG / 2


def test_a_worker_that_stops_within_a_message_is_given_up(start, monkeypatch):
    """Half a message keeps nobody waiting for the rest."""
    monkeypatch.setattr(process, "TRANSFER_SECONDS", 1)
    worker = start(command=[sys.executable, "-c", HALF])
    assert worker.receive(LONG).outcome is Outcome.HANG


@pytest.mark.parametrize("frame", ["hello", "{}", '{"kind":"Hello","value":1}', '{"kind":"Detection","value":{}}'])
def test_a_worker_of_another_version_does_not_break_the_tuner(start, frame):
    """A message that this version does not know is a failure of the worker, not a traceback of the tuner's."""
    command = [sys.executable, "-c", SAYS, frame]
    assert isinstance(start(command=command).receive(LONG), Failed)


def test_a_command_that_does_not_exist_is_told(start, sockets):
    """A launcher that cannot be started ends in a sentence that names it, and leaves nothing behind."""
    with pytest.raises(SetupError, match=r"'no-such-launcher' cannot be started.*--launcher"):
        start(command=["no-such-launcher", "train.py"])
    assert list(sockets.iterdir()) == []


def test_a_log_that_cannot_be_written_is_not_the_launchers_fault(start, tmp_path):
    """Where the worker's output cannot be kept, the sentence names the file."""
    (tmp_path / "workers").write_text("not a folder")
    with pytest.raises(SetupError, match=r"workers/01\.log"):
        start("detect", log=tmp_path / "workers" / "01.log")


def test_a_study_may_lie_deep(start, tmp_path):
    """A path longer than a socket's may be takes the log all the same."""
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    worker = start("print:hello detect sleep:600", log=folder / "01.log")
    assert isinstance(worker.receive(LONG), Detection)
    assert (folder / "01.log").read_text() == "hello\n"


def test_the_temporary_folder_may_lie_deep(start, sockets, monkeypatch):
    """A TMPDIR longer than a socket's path may be, as clusters give one to each job, does not keep a worker away."""
    with tempfile.TemporaryDirectory(prefix="t" * 100, dir=sockets) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        worker = start("detect sleep:600")
        assert isinstance(worker.receive(LONG), Detection)
        worker.close()


@pytest.fixture
def keyboard():
    """A standard input on which nobody ever types."""
    reading, writing = os.pipe()
    kept = os.dup(0)
    os.dup2(reading, 0)
    yield
    os.dup2(kept, 0)
    for end in (reading, writing, kept):
        os.close(end)


@pytest.mark.usefixtures("keyboard")
def test_a_script_cannot_wait_for_the_keyboard(start, tmp_path):
    """A worker that asks for input gets none, even where the tuner has a terminal; what it prints is in the log."""
    worker = start(command=[sys.executable, "-c", "input('sure? ')"])
    assert worker.receive(20.0).outcome is Outcome.SCRIPT_ERROR
    assert "EOFError" in (tmp_path / "worker.log").read_text()


def test_a_killed_tuner_leaves_no_worker(make_job, is_gone, tmp_path, sockets):
    """A worker that waits for an order when its tuner is killed notices the end of the line and goes."""
    command = json.dumps(make_job("detect forever").worker_command(None))
    killed = subprocess.run(
        [sys.executable, "-c", CONTROLLER, command, str(tmp_path / "log")],
        env={**os.environ, "TMPDIR": str(sockets.parent)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert is_gone()
    assert "the tuner is gone" in (tmp_path / "log").read_text()


def test_the_next_worker_clears_what_a_killed_tuner_left(start, make_job, tmp_path, sockets):
    """The folder of a tuner's worker that nobody could remove goes when the next worker starts."""
    command = json.dumps(make_job("detect forever").worker_command(None))
    environment = {**os.environ, "TMPDIR": str(sockets.parent)}
    subprocess.run([sys.executable, "-c", CONTROLLER, command, str(tmp_path / "log")], env=environment, check=False)
    (left,) = sockets.iterdir()
    start("detect sleep:600")
    assert not left.exists()
    assert len(list(sockets.iterdir())) == 1
