"""A training without torch, which measures by a formula: ``--launcher "python trainer.py"`` has it stand for a worker.

The script's flags are ``--bs`` and ``--steps``, after which it ends. ``FAKE_FAULT`` has faults and their places, with
spaces between them: a start (``hang@start``) or the order after so many trials of a study (``SIGKILL@2``). What hangs
goes on once there is a file ``go``.
``FAKE_WRONG`` has a site whose gradients are wrong, ``FAKE_GONE`` one that the model does not have.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from autorecompute import codec  # noqa: E402
from autorecompute.measurement import GradientCheck, Measurement, Outcome  # noqa: E402
from autorecompute.memory import Operation, Phase, StepProfile, Tensor  # noqa: E402
from autorecompute.plans import Config  # noqa: E402
from autorecompute.training_job import Detection, Device  # noqa: E402
from autorecompute.units import GIB, MIB  # noqa: E402
from autorecompute.worker import protocol  # noqa: E402
from fake_backend.clock import clock_in_use  # noqa: E402
from fake_backend.space import SPACE, read_config  # noqa: E402

RESTING, SAMPLE = 100 * MIB, 25 * MIB
SAVINGS = {plan: plan.saving_bytes // 32 for plan in SPACE.plans}  # of a sample's memory
COSTS = dict(zip(SPACE.plans, (0.3, 0.2, 0.08, 0.03, 0.01), strict=True))  # shares of a step
STEP_SECONDS, SAMPLE_SECONDS = 1.0, 0.1
START_SECONDS, SWAP_SECONDS = 15.0, 0.3
DIES_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG``: a worker outlives no tuner."""

FAULTY = {
    "oom": protocol.Failed(outcome=Outcome.OOM, message="out of memory"),
    "raise": protocol.Failed(
        outcome=Outcome.SCRIPT_ERROR,
        message="UnreadableSampleError: sample 17 cannot be read",
        trace=("train.py:7", 'raise UnreadableSampleError("sample 17 cannot be read")'),
    ),
    "diverge": protocol.Failed(outcome=Outcome.DIVERGED, message="the loss is nan"),
    "leave": protocol.Ended(steps=2, exit_code=1, message="the data lies nowhere: set DATA"),
}


def launcher():
    """Make what ``--launcher`` is given, with the interpreter of the moment."""
    return shlex.join([sys.executable, __file__])


class Trainer:
    def __init__(self, channel, settings, batch, steps):
        self.channel, self.settings, self.clock = channel, settings, clock_in_use()
        self.batch, self.steps, self.most_steps = settings.target_batch or batch, 0, steps
        self.detection = Detection(
            plans=tuple(plan for plan in SPACE.plans if os.environ.get("FAKE_GONE") not in plan.sites),
            own_presets={} if "FAKE_GONE" in os.environ else SPACE.own_presets,
            covers=SPACE.covers,
            dims={"batch": batch},
            graph="12 blocks",
            device=Device(kind="cpu", name="Some Processor", total_bytes=16 * GIB),
            versions={"python": "3.11.9", "torch": "2.13.0", "fake": "3.1", "backend": "fake"},
            plan_versions=("fake",),
            batch=self.batch,
            resting_bytes=RESTING,
        )

    def run(self):
        self.spend(START_SECONDS)
        self.break_at("start")
        if self.settings.watch is not None:
            self.channel.send(self.measure(replace(self.settings.watch, config=read_config(os.environ))))
            signal.pause()
        self.channel.send(self.detection)
        while True:
            order = self.channel.receive_order()
            self.break_at(str(len(list(Path.cwd().glob("studies/*/trials/*/result.json")))))
            self.spend(SWAP_SECONDS)
            self.channel.send(check(order.config) if isinstance(order, protocol.Check) else self.measure(order))

    def measure(self, order: protocol.Order):
        self.batch = order.batch or self.batch
        count = order.warmup + order.steps
        if self.most_steps is not None and self.steps + count > self.most_steps:
            self.end(protocol.Ended(steps=self.most_steps))
        self.steps += count
        seconds = self.seconds(order.config) / (1.25 if "FAKE_FUSED" in os.environ else 1)
        self.spend(count * seconds)
        return Measurement(
            outcome=Outcome.OK,
            peak_bytes=RESTING + self.batch * sample_bytes(order.config),
            held_bytes=RESTING,
            step_seconds=(seconds,) * order.steps,
            losses=(7.5,) * order.steps,
            samples=self.batch,
            batch=self.batch,
            profile=self.profile(order.config) if order.profiles else None,
        )

    def seconds(self, config):
        return (STEP_SECONDS + self.batch * SAMPLE_SECONDS) * (1 + add_up(COSTS, config))

    def profile(self, config):
        """A step whose one tensor is all that the formula counts."""
        seconds = {Phase.FORWARD: self.seconds(Config()), Phase.LOSS: 0.0, Phase.BACKWARD: 0.0}
        if not config.is_none:
            seconds[Phase.RECOMPUTE] = self.seconds(config) - self.seconds(Config())
        return StepProfile(
            operations=tuple(
                Operation(name=each, operator=each, phase=each, seconds=seconds[each]) for each in seconds
            ),
            tensors=(Tensor(name="x", shape=("batch",), element_bytes=sample_bytes(config), first=0, last=2),),
            backward=1,
            dims={"batch": self.batch},
        )

    def spend(self, seconds):
        if self.clock is not None:
            self.clock.advance(seconds)

    def break_at(self, place):
        faults = dict(reversed(each.split("@")) for each in os.environ.get("FAKE_FAULT", "").split())
        if (fault := faults.get(place)) is None:
            return
        sys.stdout.write(f"{fault} at {place}\n")
        sys.stdout.flush()
        if fault in FAULTY:
            self.end(FAULTY[fault])
        elif fault == "exit":
            os._exit(3)
        elif fault == "exhaust":
            # No more than a host can bear that did not put this process under a limit.
            hoard = [b"\1" * 2**26 for _ in range(32)]
            sys.stdout.write(f"has {len(hoard)} pieces and lives\n")
        elif fault == "fill":
            with contextlib.suppress(OSError), Path("filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
        elif fault == "stand":
            signal.pause()
        elif fault == "hang":
            while not Path("go").exists():
                self.spend(10.0)
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), signal.Signals[fault])

    def end(self, last_words):
        self.channel.send(last_words)
        sys.exit(0)


def add_up(figures, config):
    return sum(figure * SPACE.share(config, plan) for plan, figure in figures.items())


def sample_bytes(config):
    return SAMPLE - round(add_up(SAVINGS, config))


def check(config):
    is_wrong = any(choice.site == os.environ.get("FAKE_WRONG") for choice in config.choices)
    return GradientCheck(agrees=not is_wrong, worst=0.5 * is_wrong, parameter="w" * is_wrong, steps=3)


def main():
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    faulthandler.register(protocol.STACK_SIGNAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--steps", type=int)
    args, _ = parser.parse_known_args()
    settings = codec.decode(os.environ.pop(protocol.SETTINGS_VARIABLE), protocol.Settings)
    channel = protocol.Channel(settings.address)
    channel.send(protocol.Hello(rank=0, world_size=1, pid=os.getpid()))
    Trainer(channel, settings, args.bs, args.steps).run()


if __name__ == "__main__":
    main()
