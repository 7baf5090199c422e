"""Memory and time of the card: a dispatch mode under which all that is on ``cuda`` is fake."""

import contextlib
import dataclasses
import functools
import math
import os
import random
import threading
import time

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from autorecompute.backends.torch.fake import tensors
from autorecompute.backends.torch.fake.live import gives_what_it_got, work_of
from autorecompute.backends.torch.fake.tensors import FakeOperators
from autorecompute.backends.torch.find.storages import Storages, tensors_in
from autorecompute.backends.torch.forecast.caching_allocator import settings_in
from autorecompute.backends.torch.forecast.cards import BFLOAT16, CAPABILITIES, CARDS, FLOAT, HALF, TF32
from autorecompute.backends.torch.forecast.records import NOTHING
from autorecompute.units import MIB, format_bytes
from virtual_card import CONTEXT_BYTES, cuda
from virtual_card.allocator import LimitedAllocator
from virtual_card.clock import Field

WORKSPACE_BYTES = 32 * MIB
"""Memory that cuBLAS takes of the allocator for each thread that multiplies, once."""

REACHED = {BFLOAT16: 0.60, HALF: 0.60, TF32: 0.55, FLOAT: 0.75}
BANDWIDTH_REACHED = 0.88
"""Shares of a card's figures that models reach; fitted to one config on an H100."""

LAUNCH, VIEW, LEAST_KERNEL, SYNCHRONIZE = 6e-6, 1.2e-6, 2.5e-6, 8e-6
"""Seconds: to launch a kernel, to make a view, of the shortest kernel, and of waiting for the card."""

MALLOC, FREE = 350e-6, 250e-6
"""Seconds of ``cudaMalloc`` and ``cudaFree``: assumed."""

PROCESS_NOISE, DRIFT_NOISE, STEP_NOISE, START_NOISE = 0.010, 0.02, 0.012, 0.03
"""Relative deviations: of a process, of the clocks within seconds, of a step, of a start."""

DRIFT_SECONDS, HICCUP_CHANCE, HICCUP_SECONDS = 8.0, 0.04, 0.01
"""Length of a drift; chance that a step waits for something on the host, and for how long on average."""

SURVEYING = 0.5
"""Seconds of the virtual host for one of this machine's processor on fake tensors."""

_ATEN = torch.ops.aten
_DEVICE_OF = torch.ops.prim.device.default
_COPY = _ATEN.copy_.default
_TO_HOST = {_ATEN._local_scalar_dense.default, _ATEN.equal.default}
_PRODUCTS = {_ATEN.mm, _ATEN.addmm, _ATEN.bmm}


def reached(model):
    """Return a card at the speeds that models reach on it."""
    card = CARDS[model]
    speeds = card.operations_per_second
    return dataclasses.replace(
        card,
        operations_per_second={kind: share * speeds.get(kind, speeds[FLOAT]) for kind, share in REACHED.items()},
        bytes_per_second=BANDWIDTH_REACHED * card.bytes_per_second,
    )


class _Event:
    """``torch.cuda.Event``."""

    def __init__(self, card):
        self._card, self._at = card, None

    def record(self, _stream=None):
        self._at = self._card.record()

    def synchronize(self):
        self._card.synchronize()

    def elapsed_time(self, later):
        return 1000 * (later._at - self._at)


class VirtualCard(TorchDispatchMode):
    """Args: paper: Which card; clock: that of the tuning; number: of this process among those of the tuning."""

    supports_higher_order_operators = True

    def __init__(self, paper, clock, number):
        super().__init__()
        self.paper, self.total_bytes = paper, paper.bytes
        self.capability = CAPABILITIES[paper.model]
        self.random_state = [0, 0]
        self.is_suspended = False
        self.allocator = LimitedAllocator(self.total_bytes - CONTEXT_BYTES, **settings_in(os.environ))
        self._storages = Storages(self.allocator.free)
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self._operators = FakeOperators(self._fakes, functools.partial(work_of, machine=reached(paper.model)))
        self._clock, self._busy_until, self._pid, self._has_begun = clock, clock.get(), os.getpid(), False
        self._chance = random.Random(f"{paper.seed} {number}")
        self._of_process = math.exp(self._gauss(PROCESS_NOISE))
        self._drift, self._drifted, self._slowness = 0.0, clock.get(), self._of_process
        self._multiplied = set()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def _gauss(self, deviation):
        return self._chance.gauss(0.0, deviation * self.paper.noise)

    # Time.

    def host(self, seconds):
        """Let the host work for so long."""
        self._clock.add(seconds)

    def synchronize(self):
        """Let the host wait for the card."""
        if not self.is_suspended:
            self._clock.put(max(self._clock.add(SYNCHRONIZE), self._busy_until))

    def event(self):
        """Return a ``torch.cuda.Event`` of this card."""
        return _Event(self)

    def record(self):
        """Return when the card will have done what it was given so far; the next call has noise of its own."""
        at = max(self._clock.get(), self._busy_until)
        self.begin_step()
        return at

    def begin_step(self):
        """Draw the noise of what comes until the next call."""
        now = self._clock.get()
        kept = math.exp(-(now - self._drifted) / DRIFT_SECONDS)
        self._drift, self._drifted = kept * self._drift + math.sqrt(1 - kept**2) * self._gauss(DRIFT_NOISE), now
        if self._chance.random() < HICCUP_CHANCE:
            self.host(self.paper.noise * self._chance.expovariate(1 / HICCUP_SECONDS))
        self._slowness = self._of_process * math.exp(self._drift + self._gauss(STEP_NOISE))

    def _run_kernel(self, seconds):
        begin = max(self._busy_until, self._clock.add(LAUNCH))
        self._busy_until = begin + max(seconds, LEAST_KERNEL) * self._slowness

    # Memory.

    def empty_cache(self):
        if self.is_suspended:
            return
        self.synchronize()
        before = self.allocator.now.reserved
        self.allocator.empty_cache()
        self.host(FREE * (1 + (before - self.allocator.now.reserved) / (64 * MIB)))

    def _allocate(self, storage, size):
        reserved, retries = self.allocator.now.reserved, self.allocator.retries
        try:
            self.allocator.allocate(storage, size)
        except MemoryError:
            self._clock.add(1, Field.OUT_OF_MEMORY)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {format_bytes(size)}. GPU 0 has a total capacity of "
                f"{format_bytes(self.total_bytes)}."
            ) from None
        finally:
            if self.allocator.retries != retries:
                self._clock.add(self.allocator.retries - retries, Field.RETRIES)
                self.synchronize()
                self.host(20 * FREE)
        if self.allocator.now.reserved != reserved:
            self.host(MALLOC)

    def _see(self, tensor):
        if not self._has_begun:
            self._has_begun = True
            self.host(self.paper.cuda_seconds * math.exp(self._gauss(START_NOISE)))
        storage, size = self._storages.see(tensor)
        if size:
            self._allocate(storage, size)

    def _take_workspace(self, function):
        thread = threading.get_ident()
        if function.overloadpacket in _PRODUCTS and thread not in self._multiplied:
            self._multiplied.add(thread)
            self._allocate(-len(self._multiplied), WORKSPACE_BYTES)

    # Operators.

    @contextlib.contextmanager
    def everything(self):
        """Run the package's own fakes: they take the host's time, and no card."""
        self.is_suspended, began = True, time.process_time()
        try:
            with self._fakes:
                yield self._fakes
        finally:
            self.is_suspended = False
            self.host(SURVEYING * (time.process_time() - began))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is _DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        given = [*tensors_in(args), *tensors_in(kwargs)]
        device = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else ""
        is_here = any(isinstance(one, FakeTensor) for one in given) or device == "cuda"
        # A process that the script forks, as a DataLoader's, has no card.
        if self.is_suspended or os.getpid() != self._pid or not is_here:
            return function(*args, **kwargs)
        if isinstance(function, torch._ops.HigherOrderOperator):
            return function(*args, **kwargs)
        if device == "cpu" or function in _TO_HOST or (function is _COPY and not isinstance(args[0], FakeTensor)):
            return self._to_host(function, args, kwargs)
        return self._on_card(function, args, kwargs)

    def _to_host(self, function, args, kwargs):
        """Wait for the card, and bring values that nobody knows."""
        self.synchronize()
        if function is _ATEN.equal.default:
            return True
        if function is _COPY:
            return args[0]
        ones = torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return ones.tolist() if function in _TO_HOST else ones

    def _on_card(self, function, args, kwargs):
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.random_state[1] += 1
        args, kwargs = tree_map_only(Tensor, self._fake, (args, kwargs))
        with self._fakes:
            try:
                result, work = self._operators.run(function, args, kwargs)
            except DataDependentOutputException:
                self.synchronize()
                return True
        if work is NOTHING or not work.cost:
            self.host(VIEW)
        else:
            self._take_workspace(function)
            self._run_kernel(work.cost)
        if not gives_what_it_got(function):
            for one in tensors_in(result):
                if isinstance(one, FakeTensor) and one.fake_device.type == "cuda":
                    self._see(one)
        return result

    def _fake(self, tensor):
        return tensor if isinstance(tensor, FakeTensor) or not tensor.dim() else self._fakes.from_tensor(tensor)


def install(paper, clock):
    """Give this process a card; return it."""
    number = int(clock.add(1, Field.STARTS))
    start = random.Random(f"{paper.seed} {number} start").gauss(0.0, START_NOISE * paper.noise)
    clock.add(paper.import_seconds * math.exp(start))
    fake_tensor.init_gpu_context = lambda *_: None
    FakeTensorMode.avoid_device_init = property(lambda _: True)
    torch._C._set_only_lift_cpu_tensors(True)
    card = VirtualCard(paper, clock, number)
    cuda.install(card)
    tensors.use(card.everything)
    card.__enter__()
    return card
