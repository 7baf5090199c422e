"""A worker as a process: started, supervised and ended."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import psutil

from autorecompute import codec
from autorecompute.files import open_private, shown
from autorecompute.measurement import Outcome
from autorecompute.trials.private import WRITABLE, explained, make_private_folder
from autorecompute.units import signal_name
from autorecompute.waiting import left_seconds, raise_if_over
from autorecompute.worker.protocol import (
    SETTINGS_VARIABLE,
    STACK_SIGNAL,
    Beat,
    Ended,
    Failed,
    Hello,
    Message,
    Settings,
    decode,
    encode,
    limited,
    merge,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping


LEAST_SHARE = 0.01  # of one processor: who waits for nothing but looks around now and then takes less


def _activity_of(pid: int, log: Path) -> tuple[float, float, int]:
    """Return the time, the processor time of a process with its descendants, and the length of what they printed."""
    try:
        first = psutil.Process(pid)
        # Those of children that have ended are counted with who waited for them.
        used = sum(sum(one.cpu_times()[:4]) for one in [first, *first.children(recursive=True)])
    except psutil.Error:  # one of them has just ended
        used = 0.0
    return time.monotonic(), used, log.stat().st_size if log.is_file() else 0


# Documented switches of the trackers; not WANDB_DISABLED and the like, which make Hugging Face's Trainer raise.
SWITCHES = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "WANDB_MODE": "disabled",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3 keeps nothing in a folder otherwise
}
FOLDER_VARIABLE = "MLFLOW_TRACKING_URI"
FORGOTTEN = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID")  # they name entries of the store that MLflow is kept from


def quieten(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment with every tracker off. One may write to the folder, which goes with the worker."""
    kept = {name: value for name, value in environment.items() if name not in FORGOTTEN}
    return {**kept, **SWITCHES, FOLDER_VARIABLE: (folder / "mlruns").as_uri()}


PROC = Path("/proc")
FIELD = "oom_kill"


class OomKills:
    """Notices kills by the kernel among a worker's processes, from the moment on at which each is first followed."""

    def __init__(self) -> None:
        self._machine = _count(PROC / "vmstat") or 0
        self._groups: dict[int, dict[Path, int]] = {}

    def follow(self, pid: int) -> None:
        """Watch the control group that a process is in now; a launcher may have put it into one of its own."""
        counts = {counter: _count(counter) for counter in _counters_of(pid)}
        self._groups[pid] = {counter: count for counter, count in counts.items() if count is not None}

    def has_risen(self) -> bool:
        """Tell whether the kernel killed one of them, as far as its counters can tell."""
        answers = [_has_risen(counters) for counters in self._groups.values()]
        if None in answers or not answers:
            answers.append((_count(PROC / "vmstat") or 0) > self._machine)
        return any(answers)


def _has_risen(counters: dict[Path, int]) -> bool | None:
    """Tell whether the first counter that is still there has risen: a group may go away with its last process."""
    for counter, before in counters.items():
        now = _count(counter)
        if now is not None:
            return now > before
    return None


def _counters_of(pid: int) -> Iterator[Path]:
    """Files that count the kills among the processes of its group, the narrowest first."""
    groups = [line.split(":", 2)[1:] for line in _lines(PROC / str(pid) / "cgroup")]
    for line in _lines(PROC / "self" / "mountinfo"):
        place, _, system = line.partition(" - ")
        kind, *_, options = system.split(" ")
        shown_group, point = place.split(" ")[3:5]
        for controllers, group in groups:
            if not PurePosixPath(group).is_relative_to(shown_group):
                continue
            folder = Path(point) / PurePosixPath(group).relative_to(shown_group)
            if kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options.split(","):
                yield folder / "memory.oom_control"
            elif kind == "cgroup2" and not controllers:
                # A group without the memory controller is counted with the one above it; each counts those below.
                above = [parent for parent in folder.parents if parent.is_relative_to(point)]
                yield from (each / "memory.events" for each in (folder, *above))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _count(counter: Path) -> int | None:
    values = [value for name, _, value in (line.partition(" ") for line in _lines(counter)) if name == FIELD]
    return int(values[0]) if values else None


PREFIX = "worker-"
SOCKET = "worker.sock"
OWNER = "owner.lock"
LONGEST_SOCKET_PATH = 107
MAKE_ROOM = "Make room, or set TMPDIR to another folder."


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Make a folder for one worker, in the user's own temporary folder, and remove those that killed processes left.

    Its owner holds a lock in it, which is the kernel's and goes with the owner, however that ends: whoever gets the
    lock of a folder knows that nobody needs it. A folder without a lock is left alone.

    Raises:
        SetupError: there is no place for it.
    """
    folder = _make()
    draft = folder / f"{OWNER}.draft"
    with explained(f"The folder {folder} cannot be used", MAKE_ROOM):
        lock = os.fdopen(open_private(draft), "wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now does it have the name that others look for: a lock that is not held yet would be anybody's.
        draft.rename(folder / OWNER)
    _remove_abandoned(folder.parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def _make() -> Path:
    # A socket's path holds 107 characters at most: a study's folder can be deeper than that, and so can TMPDIR.
    folder = make_private_folder(PREFIX)
    if len(os.fsencode(folder / SOCKET)) <= LONGEST_SOCKET_PATH:
        return folder
    folder.rmdir()
    return make_private_folder(PREFIX, Path("/tmp"))  # noqa: S108  (a private folder in it, which is checked)


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{PREFIX}*"):
        # Others may make or lose their folders meanwhile, and none of that is ours to tell.
        with contextlib.suppress(OSError), os.fdopen(os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)  # follows no links


NO_MEMORY = "killed by the kernel, which ran out of memory"
IN_BACKGROUND = (
    "The script's process ended and left one behind that it had forked, as a daemon does, and only the script's own "
    "process is measured. Train in the foreground, and leave the background to the shell or a service manager."
)
NO_RANKS = (
    "The launcher sets no RANK: two of its processes are rank {rank}. Have it set RANK and WORLD_SIZE for each, as "
    "torchrun does."
)
ABSENT = (
    "WORLD_SIZE tells of {of} ranks, and {came} came within {seconds:.0f} s. Start them all with --launcher, as in "
    '--launcher "torchrun --nproc-per-node 2", or unset WORLD_SIZE.'
)
AT_ONCE = (
    "It called os._exit(0) or the like, which ends a process at once. Train in it first, and not in a thread that "
    "this ends."
)

GRACE_SECONDS = 3.0
POLL_SECONDS = 0.5
STACK_SECONDS = 1.0
TRANSFER_SECONDS = 30  # after which a worker that stops in the middle of a message, a few MiB, is given up
STDERR = 2


class WorkerProcess:
    """A started worker.

    It has this environment, with the switches of experiment trackers, and these settings, with the address that it has
    to call. In the foreground it keeps the terminal, for a debugger in the script, and gets no log.

    Attributes:
        answers: The last answers of all ranks, in their order.

    Raises:
        SetupError: the command cannot be started.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        log: Path,
        settings: Settings,
        *,
        in_foreground: bool = False,
    ) -> None:
        self._ranks: dict[Connection, int] = {}
        self.answers: tuple[Message, ...] = ()
        self._pids: list[int] = []
        self._steps, self._last_beat = 0, 0.0
        self._world_size = 1
        self._is_loading = True
        self._oom_kills = OomKills()
        self._log, self._in_foreground = log, in_foreground
        with contextlib.ExitStack() as ends:
            folder = ends.enter_context(socket_folder())
            address = str(folder / SOCKET)
            self._listener = ends.enter_context(socket.socket(socket.AF_UNIX))
            with explained(f"The folder {folder} cannot be used", MAKE_ROOM):
                self._listener.bind(address)
            self._listener.listen()
            environment = quieten(environment, folder)
            environment[SETTINGS_VARIABLE] = codec.encode(replace(settings, address=address)).decode()
            self._process = _start(command, environment, None if in_foreground else log)
            self._ends = ends.pop_all()
        self._oom_kills.follow(self._process.pid)
        self._activity = _activity_of(self._process.pid, log)

    def send(self, message: Message) -> None:
        """Give an order to every rank; a worker that is gone is noticed when its answer is awaited."""
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.send_bytes(encode(message))

    def receive(self, timeout: float, stall: float = math.inf) -> Message:
        """Return the worker's next message, merged from all ranks; the first rank's last words stand for all.

        A worker that dies, takes longer than ``timeout`` seconds, or ends no step for ``stall`` seconds, answers with
        ``Failed`` all the same. One that has said nothing yet has so long again as long as it is at work: how long a
        script loads nobody knows.

        Raises:
            KeyboardInterrupt: the user stopped the command.
            OutOfTime: the time of the whole command is over.
        """
        self._last_beat = time.monotonic()
        deadline = self._last_beat + timeout
        said: dict[int, Message] = {}
        while True:
            speakers = self._listen(said, min(deadline, self._last_beat + stall))
            if speakers is None:
                if not (self._is_loading and self._has_gone_on()):
                    return self._give_up(timeout, stall, is_late=time.monotonic() >= deadline)
                self._last_beat = time.monotonic()
                deadline = self._last_beat + timeout
                continue
            last_words = self._hear_all(speakers, said)
            if last_words is not None:
                return last_words
            if said and len(said) == self._world_size:
                self.answers = tuple(said[rank] for rank in sorted(said))
                return merge(said)
            if not speakers and self._process.poll() is not None and not self._listen(said, math.inf):
                return self._describe_death(is_held=bool(self._ranks))

    def _hear_all(self, speakers: list[Any], said: dict[int, Message]) -> Message | None:
        """Add what each rank says; the first one's last words, if that is what somebody says."""
        for speaker in speakers:
            if not isinstance(speaker, Connection):
                self._welcome()
                continue
            message = self._hear(speaker)
            if isinstance(message, Beat):
                self._last_beat, self._steps = time.monotonic(), message.step
            elif isinstance(message, Ended | Failed):
                return message
            elif message is not None:
                said[self._ranks[speaker]] = message
        return None

    def _has_gone_on(self) -> bool:
        """Tell whether its processes have printed, or kept a processor busy, since this was asked last."""
        (before, seconds, size), self._activity = self._activity, _activity_of(self._process.pid, self._log)
        now, used, printed = self._activity
        return printed != size or used - seconds >= LEAST_SHARE * (now - before)

    def _give_up(self, timeout: float, stall: float, *, is_late: bool) -> Failed:
        if is_late:
            outcome, said = Outcome.TIMEOUT, f"not done within {timeout:.0f} s"
        else:
            self._write_stacks()
            outcome, said = Outcome.HANG, f"no step for {stall:.0f} s; the stacks are in its log"
        came = sum(rank >= 0 for rank in self._ranks.values())
        if came < self._world_size:
            said = ABSENT.format(came=came, of=self._world_size, seconds=min(timeout, stall))
        return Failed(outcome=outcome, message=said)

    def close(self) -> None:
        """End the worker with everything it started."""
        self._signal_group(signal.SIGTERM)
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        # Its leader, the first rank or the launcher of all, may have left children that ignored the first signal.
        self._signal_group(signal.SIGKILL)
        self._ends.close()

    def _welcome(self) -> None:
        peer, _ = self._listener.accept()
        # A rank that has not said its name yet is known by a number that none has.
        self._ranks[self._ends.enter_context(limited(peer, TRANSFER_SECONDS))] = -1 - len(self._ranks)

    def _hear(self, connection: Connection) -> Message | None:
        message = self._read(connection)
        if not isinstance(message, Hello):
            self._is_loading = False
            return message
        if message.rank in self._ranks.values():
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=NO_RANKS.format(rank=message.rank))
        self._ranks[connection], self._world_size = message.rank, message.world_size
        self._pids.append(message.pid)
        self._oom_kills.follow(message.pid)
        return None

    def _listen(self, said: Container[int], until: float) -> list[Any] | None:
        """Return who has something to say, after waiting a little; ``None`` when it is late and nobody has."""
        silent = [connection for connection, rank in self._ranks.items() if rank not in said]
        # Whoever was stopped and goes on is late, and hears first what was said meanwhile.
        is_late = time.monotonic() >= until
        speakers = wait([self._listener, *silent], timeout=0 if is_late else min(POLL_SECONDS, left_seconds()))
        raise_if_over()
        return None if is_late and not speakers else speakers

    def _read(self, connection: Connection) -> Message:
        try:
            return decode(connection.recv_bytes())
        except BlockingIOError:
            return Failed(outcome=Outcome.HANG, message=f"stopped for {TRANSFER_SECONDS} s in the middle of a message")
        except (EOFError, OSError):
            return self._describe_death(self._ranks[connection])
        except ValueError as error:
            return Failed(outcome=Outcome.CRASH, message=f"the worker speaks another version's language: {error}")

    def _describe_death(self, rank: int = 0, *, is_held: bool = False) -> Failed | Ended:
        """Classify the death of a worker that said nothing of its end, and whose line of this rank has ended.

        Where a line ``is_held`` still, a process that was forked has it, too, and has outlived the worker.
        """
        try:
            code = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if not code:
            return self._describe_silence(rank, has_ended=code == 0, is_held=is_held)
        if code < 0 and code != -signal.SIGKILL:
            # Whatever the kernel killed for want of memory meanwhile, it was not this.
            return Failed(outcome=Outcome.CRASH, message=f"ended by {signal_name(-code)}")
        if self._oom_kills.has_risen():
            return Failed(outcome=Outcome.OOM, message=NO_MEMORY)
        if code == -signal.SIGKILL:
            # No fault of its own ends a process like this: somebody, or a kernel that keeps no count.
            return Failed(outcome=Outcome.LOST, message="killed from outside")
        return Failed(outcome=Outcome.SCRIPT_ERROR, message=f"the script left the process with exit code {code}")

    def _describe_silence(self, rank: int, *, has_ended: bool, is_held: bool) -> Failed | Ended:
        if self._oom_kills.has_risen():
            return Failed(outcome=Outcome.OOM, message=NO_MEMORY)
        if self._world_size > 1 or not has_ended:
            return Failed(outcome=Outcome.CRASH, message=f"rank {rank} exited unexpectedly")
        if is_held:
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=IN_BACKGROUND)
        # Nothing else ends a process with this code and without a word.
        return Ended(steps=self._steps, advice=AT_ONCE)

    def _write_stacks(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACK_SIGNAL)
        time.sleep(STACK_SECONDS)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._in_foreground:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)


def _start(command: list[str], environment: dict[str, str], log: Path | None) -> subprocess.Popen[bytes]:
    """Start the command in the foreground, with the terminal, or in a group of its own, with its output in a log."""
    starting = explained(f"{shown(command[0])} cannot be started", "Check --launcher.")
    if log is None:
        with starting:
            # Standard output is for data: what a script prints, and its debugger, is talk.
            return subprocess.Popen(command, env=environment, stdout=STDERR)
    # A script may set its own group, which nobody can who leads a session: the worker gives the terminal up instead.
    is_launched = command[0] != sys.executable
    with explained(f"{log} cannot be written", WRITABLE):
        output = log.open("ab")
    with output, starting:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=is_launched,
            process_group=None if is_launched else 0,
        )
