"""What the worker and the controller say to each other: one JSON object a message.

Each rank of the worker begins with :class:`Hello`, and says :class:`Beat` after every step. At session creation it
sends a :class:`~autorecompute.training_job.Detection`; each :class:`Order` is answered by a
:class:`~autorecompute.measurement.Measurement`, each :class:`Check` by a
:class:`~autorecompute.measurement.GradientCheck`. ``Ended``, ``Failed`` and ``Refused`` are last words.

A training that is tuned while it trains (``autorecompute train``) says no :class:`Hello`, and a :class:`Beat` only in
the steps of an order. The controller ends the search with :class:`Stay`.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Any

from autorecompute import codec
from autorecompute.backends.registry import AUTO
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.training_job import Detection

STACK_SIGNAL = signal.SIGRTMIN + 5
"""Makes a rank write the stacks of all its threads to its log; scripts use the named signals for themselves."""

SETTINGS_VARIABLE = "AUTORECOMPUTE_WORKER"
BATCH_VARIABLE = "AUTORECOMPUTE_BATCH_SIZE"
MODULE_FLAG = "-m"
"""Stands before the name of a module on a worker's command line, as it does on Python's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A rank has started.

    Attributes:
        rank: Its number, from 0.
        world_size: How many ranks train together.
        pid: Its process.
    """

    rank: int
    world_size: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A step has ended: the script is alive.

    Attributes:
        step: How many have ended so far.
        expected: How many the script's scheduler lets expect in all; ``None`` where nobody tells.
    """

    step: int
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Train with a config and measure it.

    Attributes:
        config: What to recompute.
        warmup: Steps before the timed ones. With 0 the config is one of several that are timed in turns: what it takes
            of memory is what was measured of it before in this process, and it warms up only where that is not known.
        steps: Timed steps.
        profiles: Whether the last step is to be profiled.
        batch: Samples that each forward must receive from now on; ``None`` for as many as until now. Only a DataLoader
            that may be overridden can change it.
    """

    config: Config
    warmup: int
    steps: int
    profiles: bool = False
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Look at a config on the next batch, before it trains with it.

    Attributes:
        config: What to recompute.
        compares: Whether its gradients are compared with those without recompute. What a whole step takes is told in
            any case, where one can be run on fake tensors.
    """

    config: Config
    compares: bool = True


def explain_end(reason: str) -> str:
    """Return what the user is told of a search that ends with what is on, and why."""
    return f"tuning has stopped, and the training goes on: {reason.rstrip('.')}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """The search is over: train on, to the end.

    Attributes:
        config: What to recompute; ``None`` for what is on.
        message: A sentence for the user.
    """

    config: Config | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What a training that starts its own search asks for: one that goes on already, or the first of several ranks.

    Attributes:
        script: The script's path, the name of a module, or, where a notebook or an interpreter has no script, what its
            studies are called after.
        is_module: Whether it is a module.
        is_typed: Whether there is no script.
        arguments: The script's arguments.
        limit_bytes: What the peak may reach; ``None`` takes what the device has to give.
        study: Name of the study; ``None`` for one that is made of the script and of what it trains.
        steps: How many steps may be spent on trials.
        launcher: What starts the script's ranks; empty where nobody has said.
    """

    script: str
    is_module: bool = False
    is_typed: bool = False
    arguments: tuple[str, ...] = ()
    limit_bytes: int | None = None
    study: str | None = None
    steps: int
    launcher: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a worker is told at its start, in the environment variable ``AUTORECOMPUTE_WORKER``.

    Attributes:
        address: The controller's socket: its path, or the number of a file descriptor that the process inherits.
        target_batch: Samples that each forward must receive; ``None`` takes what the script gives.
        override_loader: Whether the DataLoader that feeds the model may be made to give the target batch.
        loader: Where that DataLoader is made, as an earlier :class:`~autorecompute.training_job.Detection` told.
        watch: Measure these steps of the run as it is, without swapping anything; ``None`` to obey orders.
        limit_bytes: What the process may take of its device, where that can be enforced; ``None`` for all there is.
        backend: The training system, by its name; ``auto`` for the one that the script uses.
        fakes: Whether tensors are to have no data: nothing is ordered after the detection.
        card: The card that they stand for; empty for the CPU.
        ranks: As one of how many ranks the script trains on them, without the others; 0 for a script as it is.
        replaces_checkpointing: Whether the checkpoints that the script makes itself are switched off.
        tuner: The controller's process. What it and its descendants take of the processors is not others' work;
            ``None`` where that is true of this process alone.
        search: The search that the first rank starts beside itself; ``None`` where there is a controller already.
        tuning_steps: How many steps of a training trials may take, to show how far they are; 0 shows nothing.
    """

    address: str
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
    tuner: int | None = None
    search: SearchRequest | None = None
    tuning_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The script came to its end by itself.

    Attributes:
        steps: Optimizer steps it took.
        exit_code: What it gave to ``sys.exit``.
        advice: Why it may never have come to training, and what to do about it, in sentences.
        message: What it gave to ``sys.exit`` in words.
    """

    steps: int
    exit_code: int = 0
    advice: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The script cannot go on.

    Attributes:
        outcome: What the trial in progress ends with.
        message: A sentence for the user.
        trace: Last lines of the traceback; empty where there is none.
        is_usage: Whether the command asked for what this script does not allow.
    """

    outcome: Outcome
    message: str
    trace: tuple[str, ...] = ()
    is_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The installation does not allow training at all.

    Attributes:
        message: What is missing and how to repair it.
    """

    message: str


Message = Hello | Beat | Detection | Measurement | GradientCheck | Order | Check | Stay | Ended | Failed | Refused
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Hello, Beat, Detection, Measurement, GradientCheck, Order, Check, Stay, Ended, Failed, Refused)
}


def encode(message: Message) -> bytes:
    """Return the message as it travels."""
    return json.dumps({"kind": type(message).__name__, "value": codec.to_plain(message)}).encode()


def decode(frame: bytes) -> Message:
    """Return the message that travelled.

    Raises:
        ValueError: the frame is no message of ours.
    """
    try:
        envelope = json.loads(frame)
        kind, value = envelope["kind"], envelope["value"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no message: {frame[:100]!r}") from error
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown message {kind!r:.100}")
    message: Message = codec.from_plain(value, _KINDS[kind])
    return message
