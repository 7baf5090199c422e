"""A training script with all that the agent meets there, under a test's hand."""

from autorecompute.measurement import GradientCheck
from autorecompute.memory import Operation, Phase, StepProfile
from autorecompute.meters import Reading
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
    """The DataLoader that feeds the model, and the override of it.

    It has drawn a batch ahead, as one with workers has: another size holds after that.
    """

    origin = ""

    def __init__(self, batch):
        self.wanted, self._size, self._ahead = batch, batch, batch

    def change(self, batch):
        """The override: another batch from the next time on that it is applied."""
        self.wanted = batch

    def apply(self):
        """The override: sets the size of the next batch that is drawn."""
        self._size = self.wanted
        return True

    def draw(self):
        """The loader: the batch drawn ahead."""
        batch, self._ahead = self._ahead, self._size
        return batch


class Training:
    """A script, its training system, its memory and its controller, all under the test's hand."""

    def __init__(self, detection, target, orders):
        self.detection, self.orders = detection, list(orders)
        self.sent, self.happened = [], []
        self.held, self.warnings = 700, ()
        self.compile_seconds = 0.0
        self.optimizers = [Optimizer() for _ in range(3)]
        self.has_open_forward = False
        self.agent = Agent(self, self, Settings(address="", target_batch=target))
        self.loader = None

    def begin(self):
        """The first forward, in which the session is created."""
        self.agent.on_forward(TARGET, self.check)
        return self.agent.on_session(lambda: self.detection)

    def step(self, *batches, loss=1.0, optimizers=1, skips=False):
        """Forwards, a backward and the steps of so many optimizers, or one GradScaler's refusal of each."""
        for batch in batches:
            self.agent.on_forward(batch, self.check)
        self.agent.on_loss(loss)
        for optimizer in self.optimizers[:optimizers]:
            (self.agent.on_skip if skips else self.agent.on_step)(optimizer)

    def steps(self, count, batch=TARGET, **options):
        """Steps of one forward each."""
        for _ in range(count):
            self.step(batch, **options)

    def give_loader(self, monkeypatch):
        """A DataLoader that may be overridden, and gives what it was told from the next batch on."""
        self.loader = Loader(TARGET)
        monkeypatch.setattr(agent, "override_loader", lambda _settings: self.loader)
        self.agent = Agent(self, self, Settings(address="", target_batch=TARGET, override_loader=True))

    def train(self, count):
        """Steps on whatever the DataLoader gives."""
        for _ in range(count):
            self.step(self.loader.draw())

    def send(self, message):
        """The channel: what the controller hears, its heartbeat aside."""
        if not isinstance(message, Beat):
            self.sent.append(message)

    def check(self, config, *, compares=True):
        """The backend: gradients compared, or a whole step looked at."""
        self.happened.append(("checked" if compares else "looked at", config))
        return GradientCheck(agrees=True, worst=0.0, steps=3 * compares)

    def why_nothing_trained(self, *, wrap):
        """The backend: what to do where nothing is trained."""
        assert not wrap
        return ADVICE

    def live_meter(self):
        """The backend: nobody counts live tensors."""

    def take_compile_seconds(self):
        """The backend: the compilations since the last step."""
        seconds, self.compile_seconds = self.compile_seconds, 0.0
        return seconds

    def end_step(self):
        """The backend: what there is to warn of."""
        return self.warnings

    def receive_order(self):
        """The channel: what it orders next; a controller without orders is gone."""
        if not self.orders:
            raise SystemExit("the tuner is gone")
        return self.orders.pop(0)

    def switch(self, config, *, profiles=False):
        """The backend: another config from now on."""
        self.happened.append(config)
        self.profiles = profiles

    def take_profile(self):
        """The backend: what the last step was seen to do, if it was to be looked at."""
        assert self.profiles, "a session that was made without a profile has none"
        return PROFILE

    def release(self):
        """The meter: gives back what is free."""
        self.happened.append("release")
        self.held = 500

    def reset(self):
        """The meter: forgets the peak."""
        self.happened.append("reset")

    def held_bytes(self):
        """The meter: what is held."""
        return self.held

    def read(self):
        """The meter: the peak."""
        return Reading(peak_bytes=900)

    def observe(self):
        """The meter: notes that it was asked to look."""
        self.happened.append("observe")

    def outside_bytes(self):
        """The meter: what others hold on the device."""
        return 300

    def synchronize(self):
        """The meter: nothing to wait for."""
