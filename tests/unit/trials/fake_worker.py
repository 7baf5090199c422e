"""A worker without torch: speaks the protocol through the real channel, and does what its arguments say, in order.

``FOLDER ACTION ... then ACTION ...``: the actions behind the nth ``then`` are those of its nth restart; the last ones
serve for all further restarts.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autorecompute import codec
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.training_job import Detection
from autorecompute.worker import protocol

IGNORES_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


class FakeWorker:
    """One life of a worker, or of one of its ranks."""

    def __init__(self, folder, number):
        self.folder, self.number = folder, number
        faulthandler.register(protocol.STACK_SIGNAL)
        self.settings = codec.decode(os.environ[protocol.SETTINGS_VARIABLE], protocol.Settings)
        self.rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.channel = protocol.Channel(self.settings.address)
        self.channel.send(protocol.Hello(rank=self.rank, world_size=world_size, pid=os.getpid()))
        self.ordered, self.answers = None, 0
        for name in ("pid", f"pid{number}"):
            (folder / name).write_text(str(os.getpid()))

    def detect(self):
        self.channel.send(codec.decode((self.folder / "detection.json").read_text(), Detection))

    def order(self):
        self.ordered = self.channel.receive_order()

    def measure(self):
        self.order()
        self.answer()

    def forever(self):
        while True:
            self.measure()

    def needs_recompute(self):
        """Obeys every order, and has no memory for a run without recompute."""
        while True:
            self.order()
            if isinstance(self.ordered, protocol.Order) and self.ordered.config.is_none:
                self.failed("oom", "no memory without recompute")
                return
            self.answer()

    def report(self):
        """Measures what a watched run is to measure."""
        self.ordered = self.settings.watch
        self.answer()

    def beat(self):
        self.channel.send(protocol.Beat(step=1))

    def answer(self):
        """Sends a measurement that tells what was ordered, and under what."""
        order = self.ordered
        self.answers += 1
        seen = {"start": self.number, "choices": order.config.texts, "environment": dict(os.environ)}
        if isinstance(order, protocol.Check):
            steps, step_bytes = int(order.compares), 100 * self.answers
            self.channel.send(
                GradientCheck(agrees=True, worst=0.0, steps=steps, message=json.dumps(seen), step_bytes=step_bytes)
            )
            return
        seen["batch"] = order.batch
        self.channel.send(
            Measurement(
                outcome=Outcome.OK,
                message=json.dumps({**seen, "settings": codec.to_plain(self.settings)}),
                peak_bytes=1000 + self.rank,
                warmup_seconds=float(order.warmup),
                step_seconds=(0.1 + self.rank,) * order.steps,
                others_share=0.05,
                samples=4,
                batch=4,
            )
        )

    def lacks_memory(self):
        """Runs out of memory beside the training, which goes on."""
        self.order()
        self.channel.send(Measurement(outcome=Outcome.OOM, message="no memory for it"))

    def failed(self, outcome, message):
        self.channel.send(
            protocol.Failed(outcome=Outcome(outcome), message=message, trace=("line 1 of train.py", "line 2"))
        )

    def ended(self, steps, exit_code):
        self.channel.send(protocol.Ended(steps=int(steps), exit_code=int(exit_code)))

    def refused(self, message):
        self.channel.send(protocol.Failed(outcome=Outcome.SCRIPT_ERROR, message=message, is_setup=True))

    def hang_up(self):
        """Closes the line and lives on."""
        self.channel._connection.close()
        time.sleep(600)

    def signal(self, name):
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(600)

    def exit(self, code):
        os._exit(int(code))

    def daemon(self):
        """Leaves, and a forked process lives on in a session of its own until the line is closed."""
        if child := os.fork():
            (self.folder / "child").write_text(str(child))
            os._exit(0)
        os.setsid()
        self.channel.receive_order()

    def child(self):
        """Starts a child that SIGTERM does not end."""
        child = subprocess.Popen([sys.executable, "-c", IGNORES_SIGTERM], stdout=subprocess.PIPE)
        child.stdout.readline()
        (self.folder / "child").write_text(str(child.pid))

    def sleep(self, seconds):
        time.sleep(float(seconds))

    def passes(self, seconds, look_seconds=0.01):
        """Has so much time pass on the test's clock."""
        new, passing = self.folder / "new", self.folder / "passing"
        new.write_text(seconds)
        new.rename(passing)
        while passing.exists():
            time.sleep(look_seconds)

    def hangs(self, seconds):
        """Has so much time pass again and again, nearly without a look."""
        while True:
            self.passes(seconds, look_seconds=0.2)

    def computes(self):
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    def print(self, text):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(folder, *actions):
    rank = os.environ.get("RANK", "0")
    number = len(list(folder.glob(f"start*-{rank}"))) + 1
    (folder / f"start{number}-{rank}").touch()
    lives = " ".join(actions).split(" then ")
    worker = FakeWorker(folder, number)
    for action in lives[min(number, len(lives)) - 1].split():
        name, *arguments = action.split(":")
        getattr(worker, name)(*arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
