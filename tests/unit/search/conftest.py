import copy
import functools
import itertools
import random
from dataclasses import dataclass, replace

import pytest

from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.memory import StepProfiles
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.search import GreedySearcher, ModelSearcher, Proposal
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.units import MIB
from fake_backend.memory import LinearMemory
from unit import conftest as unit

LAYERS = 6
OPAQUE = ("light", "deep")
BATCH, SMALL_BATCH = 16, 2
RESTING_BYTES = 200 * MIB
HEAD_BYTES = 40
"""What the loss holds at the end of the forward pass, beyond the activations kept."""


@dataclass(frozen=True)
class Node:
    """An activation in each layer, and what recomputes it."""

    choice: Choice
    size: int  # bytes in one layer
    seconds: float  # what recomputing it adds to a step, as a share of the step without recompute
    parents: frozenset[int]  # the nodes it is computed from; -1 is the last node of the layer before
    is_used: bool  # whether the backward pass reads it, rather than only the recompute of other nodes


class Bench:
    """A stack of equal layers, each a random graph of activations from the layer's input to its output.

    Recompute reads recomputed inputs where there are any. Where a layer's output follows from its input by recompute
    alone, all layers are replayed at once at the start of the backward pass and live together: all plans on save next
    to nothing, and leaving out the right one saves most.

    Args:
        plans: How many subgraphs there are.
        seed: Draws the graph, sizes, times and noise.
        compromises: How many subgraphs have a second plan, which keeps half and recomputes for half the time.
        has_opaque: Whether there are presets that are no mix of plans; they save nothing here.
        runs_out: Whether a config above the limit fails instead of being measured.
        crashing: A subgraph whose plans end the process.
        noise: Standard deviation of a step time, as a share of it.
    """

    def __init__(
        self, *, plans=13, seed=0, compromises=0, has_opaque=False, runs_out=False, crashing=None, noise=0.004
    ):
        draw = random.Random(seed)
        self.nodes = [_draw_node(draw, index) for index in range(plans)]
        self.seed, self.runs_out, self.crashing, self.noise = seed, runs_out, crashing, noise
        # One stated saving in four is far too small, as a training system may state it.
        found = [_plan(node.choice, LAYERS * node.size * draw.choice((0, 1, 1, 1))) for node in self.nodes]
        found += [_plan(_half(node.choice), LAYERS * node.size // 2) for node in self.nodes[:compromises]]
        presets = {name: Config.parse([f"by itself:{name}"]) for name in OPAQUE} if has_opaque else {}
        self.space = Space(plans=tuple(found), own_presets=presets)
        self.limit_bytes = self.peak_bytes(Config()) - 1

    @functools.cached_property
    def landscape(self):
        by_subgraph = {}
        for plan in self.space.plans:
            by_subgraph.setdefault(plan.choices[0].site, [None]).append(plan.choices[0])
        configs = [Config(frozenset(filter(None, rows))) for rows in itertools.product(*by_subgraph.values())]
        return {config: (self.peak_bytes(config), self.step_seconds(config)) for config in configs}

    def limit_to(self, share):
        least = min(peak_bytes for peak_bytes, _ in self.landscape.values())
        self.limit_bytes = round(least + share * (self.peak_bytes(Config()) - least))
        return self

    def best_seconds(self):
        return min(seconds for peak_bytes, seconds in self.landscape.values() if peak_bytes <= self.limit_bytes)

    def found_share(self, trials):
        best = min((trial for trial in trials if trial.fits), key=lambda trial: trial.measurement.median_step_seconds)
        return self.best_seconds() / self.step_seconds(best.config)

    def step_seconds(self, config):
        whole = sum(node.seconds for node in self.nodes if node.choice in config.choices)
        return 1 + whole + sum(node.seconds / 2 for node in self.nodes if _half(node.choice) in config.choices)

    def peak_bytes(self, config):
        """The true peak: the activations kept, and the loss or what is replayed when the backward pass starts."""
        recomputed = {index for index, node in enumerate(self.nodes) if node.choice in config.choices}
        halved = {index for index, node in enumerate(self.nodes) if _half(node.choice) in config.choices}
        needed = self._closure({index for index, node in enumerate(self.nodes) if node.is_used}, recomputed)
        kept = sum(self.nodes[index].size / (1 + (index in halved)) for index in needed - recomputed)
        replayed = sum(self.nodes[index].size for layer in self._replay(needed, recomputed) for index in layer)
        return round(LAYERS * kept + max(HEAD_BYTES, replayed))

    def _closure(self, nodes, recomputed):
        """The nodes, and those their recompute reads in turn, in this layer or the one before."""
        found = set()
        while nodes - found:
            new, found = nodes - found, found | nodes
            nodes = {parent % len(self.nodes) for index in new & recomputed for parent in self.nodes[index].parents}
        return found

    def _replay(self, needed, recomputed):
        """What is recomputed for the last layer's backward pass, layer by layer from the last."""
        layer = needed & recomputed
        for _ in range(LAYERS):
            yield layer
            reads_below = any(-1 in self.nodes[index].parents for index in layer)
            layer = self._ancestors(len(self.nodes) - 1, recomputed) if reads_below else set()

    def _ancestors(self, index, recomputed):
        if index not in recomputed:
            return set()
        parents = [parent for parent in self.nodes[index].parents if parent >= 0]
        return {index}.union(*(self._ancestors(parent, recomputed) for parent in parents))

    def measure(self, config):
        if any(on.site == self.crashing for on in config.choices):
            return Measurement(outcome=Outcome.CRASH, message="the process died")
        peak_bytes = self.peak_bytes(config)
        if peak_bytes > self.limit_bytes and self.runs_out:
            return Measurement(outcome=Outcome.OOM, message="out of memory")
        outcome = Outcome.OVER_LIMIT if peak_bytes > self.limit_bytes else Outcome.OK
        seconds = self.step_seconds(config) * random.Random(f"{self.seed} {config.hash}").gauss(1, self.noise)
        return Measurement(outcome=outcome, peak_bytes=peak_bytes, step_seconds=(seconds,), samples=32)

    def try_out(self, proposal, number, *, reference_seconds=1.0):
        measurement = self.measure(proposal.config)
        slowed = tuple(seconds * (reference_seconds or 1) for seconds in measurement.step_seconds)
        return Trial(
            number=number,
            config=proposal.config,
            description=self.space.describe(proposal.config),
            reason=proposal.reason,
            measurement=replace(measurement, step_seconds=slowed),
            reference_seconds=reference_seconds,
            prediction=proposal.prediction,
        )

    def tried(self, *configs):
        return [self.try_out(Proposal(config=config, reason="test"), number) for number, config in enumerate(configs)]

    def searcher(self, budget=40, **fields):
        return GreedySearcher(self.space, budget=budget, limit_bytes=self.limit_bytes, **fields)

    def run(self, trials=(), *, budget=40, reference_seconds=lambda _number: 1.0, **fields):
        """The trials of a whole search, which goes on behind those that are given."""
        searcher, trials = self.searcher(budget, **fields), list(trials)
        while len(trials) < budget and (proposal := searcher.propose(trials)):
            trials.append(self.try_out(proposal, len(trials), reference_seconds=reference_seconds(len(trials))))
        return trials


class ProfiledBench(Bench):
    """A bench whose graph is written out, so that two steps of it can be profiled.

    Peaks are those of the graph and somewhat off, as an allocator's are: by much for all configs, by little for each.
    An opaque preset measures what no recompute does.
    """

    def __init__(self, *, plans=7, seed=0, runs_out=False, crashing=None, noise=0.004, surprise=0.003):
        self.seed, self.runs_out, self.crashing, self.noise, self.surprise = seed, runs_out, crashing, noise, surprise
        self.graph = _draw_layers(random.Random(seed), plans)
        self.space = self.graph.space
        self._whole = sum(node.seconds for node in (*self.graph.forward, *self.graph.backward))
        self._seconds = {node.key: node.seconds for node in self.graph.forward}
        self.limit_bytes = self.peak_bytes(Config()) - 1

    @property
    def memory(self):
        """Two small steps, as they are profiled before the first trial."""
        configs = (Config(), self.space.all_on)
        profiles = {config: self.graph.run(config, batch=SMALL_BATCH) for config in configs}
        held = RESTING_BYTES + SMALL_BATCH * self.graph.count_live(Config())[0]
        return OrtMemoryModel(self.space, StepProfiles(peak_bytes=held, held_bytes=held, profiles=profiles))

    def measure(self, config):
        return super().measure(config if self.space.is_mix(config) else Config())

    def peak_bytes(self, config):
        live = BATCH * self.graph.count_live(config)[0]
        own = random.Random(f"{self.seed} peak {config.hash}").gauss(1, self.surprise)
        return round(RESTING_BYTES + 1.06 * live * own)

    def step_seconds(self, config):
        own = {plan.id: random.Random(f"{self.seed} {plan.id}").gauss(0, 0.003) for plan in self.space.plans}
        share = sum(self._seconds[key] for key in self.graph.again(config)) / self._whole
        return 1 + 1.1 * share + sum(own[plan.id] for plan in self.space.plans_of(config))

    def searcher(self, _budget=None, **fields):
        known = {"limit_bytes": self.limit_bytes, "memory": self.memory, "dims": {"batch": BATCH}}
        return ModelSearcher(self.space, **known, **fields)


def _draw_layers(draw, plans):
    """Layers of activations, each made from one of those before it in its layer; projections stand between layers."""
    kinds = [
        (f"Node{number}", draw.randrange(64, 640) * 1024, draw.uniform(0.3, 2), draw.randrange(number + 1))
        for number in range(plans)
    ]
    forward, backward = [], []
    for layer in range(LAYERS):
        made = [f"input{layer}"]
        for name, size, seconds, source in kinds:
            made.append(f"{name}_{layer}")
            forward.append(unit.Node(name, (made[source],), {made[-1]: size}, again=True, seconds=seconds))
        forward.append(unit.Node("MatMul", (made[-1],), {f"input{layer + 1}": 128 * 1024}, seconds=8))
        backward = [
            *(unit.Node("Grad", (value, f"d{layer}"), {f"d{value}": 64 * 1024}, seconds=3) for value in made[:0:-1]),
            unit.Node("MatMulGrad", (f"d{made[1]}",), {f"d{layer - 1}": 128 * 1024}, seconds=16),
            *backward,
        ]
    last = f"input{LAYERS}"
    backward.insert(0, unit.Node("LossGrad", (f"d{last}",), {f"d{LAYERS - 1}": 256 * 1024}))
    return unit.Graph(forward, [last], backward)


def _draw_node(draw, index):
    parents = draw.sample(range(index), k=min(index, draw.choice((1, 1, 2)))) if index else [-1]
    if index and draw.random() < 0.75:
        parents[0] = index - 1
    return Node(
        choice=Choice(f"Node{index}+", "1"),
        size=round(draw.lognormvariate(3, 0.8)),
        seconds=draw.uniform(0.002, 0.05),
        parents=frozenset(parents),
        is_used=draw.random() < 0.75,
    )


def _half(choice):
    return replace(choice, option="2")


def _plan(choice, saving_bytes):
    label = choice.site if choice.option == "1" else f"half {choice.site}"
    return Plan(choices=(choice,), label=label, occurrences=LAYERS, saving_bytes=saving_bytes, saving="")


@pytest.fixture(scope="session")
def make_profiled():
    """Gives copies of benches whose brute force is done once."""

    @functools.cache
    def draw(**fields):
        bench = ProfiledBench(**fields)
        return bench, bench.landscape

    return lambda **fields: copy.copy(draw(**fields)[0])


@pytest.fixture(scope="session")
def make_bench():
    return Bench


@pytest.fixture
def make_linear(make_step):
    def make(space):
        step = make_step("fl", ("x", 0, 1, "batch", "8"))
        again = make_step("frlb", ("x", 0, 1, "batch", "2"))
        small = StepProfiles(peak_bytes=100, held_bytes=50, profiles={Config(): step, space.all_on: again})
        return LinearMemory(space, small)

    return make


@pytest.fixture
def count_candidates(make_linear):
    return lambda space: Candidates(space, make_linear(space).simulator({"batch": 2}, choices_of(space)))
