"""The messages between controller and workers, and how those of several ranks become one."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import sys
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Client, Connection
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from autorecompute import codec
from autorecompute.backends.registry import AUTO
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config, Lengths
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# Those that torchrun sets for each rank: see "Environment Variables" on its page in PyTorch's documentation.
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MISSED_BY_TORCH = re.compile(r"environment variable (\w+) expected, but not set")


def is_first() -> bool:
    """Tell whether this process speaks for its training: it is the first rank, or the only one."""
    group = _process_group()
    return bool(group.get_rank() == 0) if group is not None else os.environ.get("RANK", "0") == "0"


def is_alone() -> bool:
    """Tell whether no other process trains with this one, as far as its launcher or its process group says."""
    return world_size() == 1


def world_size() -> int:
    """Return how many processes train together, as far as the process group or the launcher says."""
    group = _process_group()
    return int(group.get_world_size()) if group is not None else int(os.environ.get("WORLD_SIZE", "1"))


def _process_group() -> Any:
    """Return ``torch.distributed``, once the script has made a group of processes; ``None`` before."""
    distributed = sys.modules.get("torch.distributed")
    is_made = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_made else None


def explain_missing_rank(error: BaseException) -> str:
    """Return why a script fails that looks for its rank where no launcher has set one; empty for other errors."""
    name = _missed_variable(error)
    if "RANK" in os.environ or name not in LAUNCHER_VARIABLES:
        return ""
    return (
        f"The script is one of several ranks: it looks for {name} in the environment, which a launcher sets. Name what "
        'starts it, as in --launcher "torchrun --nproc-per-node 2".'
    )


def _missed_variable(error: BaseException) -> str:
    """Return the environment variable for want of which the error was raised; empty if it is about something else."""
    if isinstance(error, KeyError):
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        is_of_environment = bool(frames) and frames[-1].f_globals is vars(os)
        return str(error.args[0]) if is_of_environment else ""
    missed = _MISSED_BY_TORCH.search(str(error)) if isinstance(error, ValueError) else None
    return missed[1] if missed is not None else ""


# Makes a rank write the stacks of all its threads to its log; scripts use the named signals for themselves.
STACK_SIGNAL = signal.SIGRTMIN + 5
SETTINGS_VARIABLE = "AUTORECOMPUTE_WORKER"
MODULE_FLAG = "-m"  # before the name of a module on a worker's command line, as on Python's


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A rank has started, one of ``world_size`` that train together."""

    rank: int
    world_size: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """So many steps have ended, of those that the script's scheduler lets expect in all: the script is alive."""

    step: int
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Train with a config, warm up, time so many steps, and profile the last of them if that is wanted.

    Without a warm-up the config is one of several that are timed in turns: what it takes of memory is what was measured
    of it before in this process, and it warms up only where that is not known.

    Attributes:
        batch: Samples that each forward must receive from now on; ``None`` for as many as until now. A DataLoader that
            may be overridden gives them, or what calls the model does.
        looks_at_loss: True if it is to be told whether the loss is one of the whole batch.
        length: Tokens that each sample is to have from now on; ``None`` for as many as until now.
        mixed: Lengths that a watched process goes through while it warms up.
    """

    config: Config
    warmup: int
    steps: int
    profiles: bool = False
    looks_at_loss: bool = False
    batch: int | None = None
    length: int | None = None
    mixed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Look at a config on the next batch, before it trains with it, and compare its gradients if that is wanted.

    What a whole step takes is told where one can be run on fake tensors.
    """

    config: Config
    compares: bool = True


def explain_end(reason: str) -> str:
    """Return a sentence on a search that ends, and why."""
    return f"tuning has stopped, and the training goes on: {reason.rstrip('.')}."


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepConfig:
    """The search is over: train on, to the end, with this config, or with what is on where it is ``None``.

    With ``lengths`` shorter batches get configs of their own.
    """

    config: Config | None
    message: str
    lengths: Lengths | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Request of a training that starts its own search: one that runs already, or the first of several ranks.

    Attributes:
        script: The script's path, the name of a module, or, where a notebook or an interpreter has no script
            (``is_typed``), what its studies are called after.
        limit_bytes: The largest peak; ``None`` takes what the device has to give.
        study: Name of the study; ``None`` for one that is made of the script and of what it trains.
        steps: The most steps that may be spent on trials.
        replaces_checkpointing: True if the checkpoints that the script makes itself are switched off.
        is_exact: True if nothing is offered that changes the order of a sum.
        longest: Tokens of the longest sample that the training will see; ``None`` where its batches are all alike.
    """

    script: str
    is_module: bool = False
    is_typed: bool = False
    arguments: tuple[str, ...] = ()
    limit_bytes: int | None = None
    study: str | None = None
    steps: int
    launcher: str = ""
    replaces_checkpointing: bool = False
    is_exact: bool = False
    longest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a worker at its start, in the environment variable ``AUTORECOMPUTE_WORKER``.

    Attributes:
        address: The controller's socket: its path, or the number of a file descriptor that the process inherits.
        target_batch: Samples that each forward must receive; ``None`` takes what the script gives.
        override_loader: True if the DataLoader that feeds the model may be made to give the target batch.
        loader: Origin of that DataLoader, as an earlier detection told it.
        watch: Measure these steps of the run as it is, without swapping anything; ``None`` to obey orders.
        limit_bytes: The most that the process may take of its device, where that can be enforced; ``None`` for all.
        fakes: True if tensors are to have no data: nothing is ordered after the detection.
        card: The card that such tensors stand for; empty for the CPU.
        ranks: Number of ranks of which the script trains on them as one, without the others; 0 for a script as it is.
        is_surveyed: True if an earlier process of the script has told what its steps take; this one runs none for it.
        step_samples: Samples of a whole step, over all its passes and ranks; ``None`` for as many as the script makes.
        longest: Tokens that each sample of a trial is to have; ``None`` for as many as the script gives.
        tuner: The controller's process, whose descendants are not others; ``None`` for this process alone.
        search: The search that the first rank starts beside itself; ``None`` where there is a controller already.
        tuning_steps: The most steps that trials may take, for a progress bar; 0 shows none.
    """

    address: str = ""
    target_batch: int | None = None
    override_loader: bool = False
    loader: str = ""
    watch: Order | None = None
    limit_bytes: int | None = None
    backend: str = AUTO
    fakes: bool = False
    card: str = ""
    ranks: int = 0
    replaces_checkpointing: bool = False
    is_surveyed: bool = False
    is_exact: bool = False
    step_samples: int | None = None
    longest: int | None = None
    tuner: int | None = None
    search: SearchRequest | None = None
    tuning_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The script came to its end by itself after so many optimizer steps.

    Attributes:
        advice: Sentences on why it may never have come to training, and what to do about it.
        message: Words that it gave to ``sys.exit``.
    """

    steps: int
    exit_code: int = 0
    advice: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The script cannot go on.

    Attributes:
        outcome: Outcome of the trial in progress.
        trace: Last lines of the traceback; empty where there is none.
        is_usage: True if the command asked for what this script does not allow.
        is_setup: True if the installation does not allow training at all.
    """

    outcome: Outcome
    message: str
    trace: tuple[str, ...] = ()
    is_usage: bool = False
    is_setup: bool = False


Message = Hello | Beat | Detection | Measurement | GradientCheck | Order | Check | KeepConfig | Ended | Failed
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """Return the message as it travels."""
    return codec.encode({"kind": type(message).__name__, "value": message})


def decode(frame: bytes) -> Message:
    """Return the message that travelled.

    Raises:
        ValueError: the frame is no message of ours.
    """
    envelope = codec.parse(frame)
    kind = envelope.get("kind") if isinstance(envelope, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown message {kind!r:.100}")
    message: Message = codec.from_plain(envelope.get("value"), _KINDS[kind])
    return message


def limited(line: socket.socket, seconds: int) -> Connection:
    """Return a connection over the socket; one who stops in the middle of a message for so long is given up."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
    return Connection(line.detach())


class Line:
    """An agent's end of a line; of this very class one with nobody at its other end."""

    def send(self, message: Message) -> None:
        """Say something."""

    def receive_order(self) -> Order | Check:
        """Wait for the next order."""
        raise ConnectionError("nobody gives orders")

    def poll(self, seconds: float) -> Order | Check | None:
        """Return the next order, if it comes within so many seconds."""

    def wait_for_end(self) -> None:
        """Wait a little for the controller to end."""

    def close(self) -> None:
        """Hang up."""


class Channel(Line):
    """Messages in both directions, as JSON: nothing is ever unpickled. A controller that is gone ends this process."""

    def __init__(self, address: str) -> None:
        connection = Client(address, family="AF_UNIX")
        assert isinstance(connection, Connection)
        self._connection = connection

    def send(self, message: Message) -> None:
        """Say something."""
        try:
            self._connection.send_bytes(encode(message))
        except OSError as error:
            raise SystemExit("autorecompute: the tuner is gone") from error

    def receive_order(self) -> Order | Check:
        """Wait for the next order."""
        try:
            message = decode(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise SystemExit("autorecompute: the tuner is gone") from error
        assert isinstance(message, Order | Check), "a controller gives orders and nothing else"
        return message


T = TypeVar("T", int, float)


def merge(messages: Mapping[int, Message]) -> Message:
    """Merge the messages of all ranks, by their numbers, into one.

    The peak is the worst rank's, a step takes as long as on its slowest rank, and samples add up. Ranks that disagree
    on what they train, or on whether they could measure, fail together.
    """
    if len(messages) == 1:
        return next(iter(messages.values()))
    said: list[Any] = [messages[rank] for rank in sorted(messages)]
    kinds = {type(message) for message in said}
    if kinds == {Detection}:
        return _merge_detections(said)
    if kinds == {Measurement}:
        return _merge_measurements(said)
    if kinds == {GradientCheck}:
        worst: GradientCheck = min(said, key=lambda check: (check.agrees, -check.worst))
        step_bytes, fragmented_bytes = (
            _worst(getattr(check, name) for check in said) for name in ("step_bytes", "fragmented_bytes")
        )
        return replace(worst, step_bytes=step_bytes, fragmented_bytes=fragmented_bytes)
    places = ", ".join(f"rank {rank}: {type(messages[rank]).__name__}" for rank in sorted(messages))
    return Failed(outcome=Outcome.SCRIPT_ERROR, message=f"the ranks are not at the same point ({places})")


def _merge_detections(detections: Sequence[Detection]) -> Message:
    first = detections[0]
    if len({detection.graph for detection in detections}) > 1:
        return Failed(outcome=Outcome.SCRIPT_ERROR, message=_explain_difference(detections))
    return replace(
        first,
        resting_bytes=max(detection.resting_bytes for detection in detections),
        outside_bytes=_worst(detection.outside_bytes for detection in detections),
    )


def _explain_difference(detections: Sequence[Detection]) -> str:
    if any(detection.dims != detections[0].dims for detection in detections):
        sizes = "; ".join(
            f"rank {rank}: {', '.join(f'{name} {size}' for name, size in detection.dims.items())}"
            for rank, detection in enumerate(detections)
        )
        return f"the ranks begin with batches of different sizes ({sizes}); pad all texts to one length while tuning"
    return "the ranks train different graphs; tune one of them alone"


_OF_THE_WORST = (
    "peak_bytes",
    "held_bytes",
    "allocated_bytes",
    "resident_bytes",
    "device_bytes",
    "others_share",
    "warmup_seconds",
    "compile_seconds",
    "retries",
)


def _merge_measurements(measurements: Sequence[Measurement]) -> Measurement:
    for rank, measurement in enumerate(measurements):
        if measurement.outcome is not Outcome.OK:
            return replace(measurement, message=f"rank {rank}: {measurement.message}")

    def of_all(name: str) -> list[Any]:
        return [getattr(measurement, name) for measurement in measurements]

    merged: dict[str, Any] = {name: _worst(of_all(name)) for name in _OF_THE_WORST}
    for name in ("step_seconds", "cpu_seconds"):
        merged[name] = tuple(map(max, zip(*of_all(name), strict=False)))
    for name in ("marks", "warnings"):
        merged[name] = tuple(dict.fromkeys(chain.from_iterable(of_all(name))))
    return replace(measurements[0], samples=sum(samples or 0 for samples in of_all("samples")), **merged)


def _worst(figures: Iterable[T | None]) -> T | None:
    return max((figure for figure in figures if figure is not None), default=None)
