import time

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.memory import Operation, Phase, StepProfile
from autorecompute.plans import Config
from autorecompute.worker import agent
from autorecompute.worker.agent import Agent
from autorecompute.worker.protocol import Beat, Order, Settings

CONFIG = Config.parse(["blocks.*/gelu:drop"])
FIRST, SECOND = Order(config=CONFIG, warmup=1, steps=2), Order(config=Config(), warmup=1, steps=3)
TARGET = 8
ADVICE = "Call the model in training mode."
PROFILE = StepProfile(
    operations=(Operation(name="step", operator="Step", phase=Phase.FORWARD, seconds=0.0),),
    tensors=(),
    backward=0,
    dims={},
)
PROFILING = Order(config=CONFIG, warmup=1, steps=1, profiles=True)


class Optimizer:
    """An optimizer, known by its identity alone."""


class Loader:
    """Has drawn a batch ahead, as a DataLoader with workers has: another size holds after that."""

    origin = ""

    def __init__(self, batch):
        self._size, self._ahead = batch, batch

    @property
    def batch(self):
        return self._size

    def apply(self, batch):
        self._size = batch
        return True

    def draw(self):
        batch, self._ahead = self._ahead, self._size
        return batch


class Detached:
    """A tensor that is its own copy."""

    def detach(self):
        return self

    clone = detach


class Loss(Detached, float):
    """A tensor with one number."""


class Training:
    """A script, its training system, its memory and its controller, all under the test's hand."""

    def __init__(self, detection, target, orders):
        self.detection, self.orders = detection, list(orders)
        self.sent, self.happened = [], []
        self.held, self.peak, self.warnings, self.wrong = 700, 900, (), ""
        self.compile_seconds, self.lacks = 0.0, {}
        self.optimizers = [Optimizer() for _ in range(3)]
        self.has_open_forward = False
        self.agent = Agent(self, self, Settings(target_batch=target))
        self.loader = None

    def begin(self, batch=TARGET):
        self.agent.on_forward(batch, self.check)
        return self.agent.on_session(lambda: self.detection)

    def step(self, *batches, loss=1.0, optimizers=1, skips=False):
        for batch in batches:
            self.agent.on_forward(batch, self.check)
        value = Loss(loss) if isinstance(loss, float) else loss
        self.agent.on_loss(value, value)
        for optimizer in self.optimizers[:optimizers]:
            (self.agent.on_skip if skips else self.agent.on_step)(optimizer)

    def steps(self, count, batch=TARGET, **options):
        for _ in range(count):
            self.step(batch, **options)

    def give_loader(self, monkeypatch):
        self.loader = Loader(TARGET)
        monkeypatch.setattr(agent, "LoaderOverride", lambda *_: self.loader)
        self.agent = Agent(self, self, Settings(target_batch=TARGET, override_loader=True))

    def train(self, count):
        for _ in range(count):
            self.step(self.loader.draw())

    def send(self, message):
        if not isinstance(message, Beat):
            self.sent.append(message)

    def check(self, config, *, compares=True):
        self.happened.append(("checked" if compares else "looked at", config))
        return GradientCheck(agrees=True, worst=0.0, steps=3 * compares)

    def give_batch(self, _batch):
        """The backend: the script would notice."""
        return False

    def lacking_memory(self, config):
        """The backend: a step beside the training."""
        return self.lacks.get(config)

    def why_nothing_trained(self):
        return ADVICE

    def live_meter(self):
        """The backend: nobody counts live tensors."""

    def take_compile_seconds(self):
        seconds, self.compile_seconds = self.compile_seconds, 0.0
        return seconds

    def end_step(self):
        return self.warnings

    def wrong_recompute(self):
        return self.wrong

    def receive_order(self):
        if not self.orders:
            raise SystemExit("the tuner is gone")
        return self.orders.pop(0)

    def switch(self, config, *, profiles=False):
        self.happened.append(config)
        self.profiles = profiles

    def take_profile(self):
        assert self.profiles, "a session that was made without a profile has none"
        return PROFILE

    def release(self):
        self.happened.append("release")
        self.held = 500

    def reset(self):
        self.happened.append("reset")

    def held_bytes(self):
        return self.held

    def read(self):
        return Measurement(outcome=Outcome.LOST, peak_bytes=self.peak)

    def observe(self):
        self.happened.append("observe")

    def outside_bytes(self):
        return 300

    def mark(self):
        return time.perf_counter()

    def seconds_between(self, first, last):
        return last - first

    def synchronize(self):
        """The meter: nothing to wait for."""
