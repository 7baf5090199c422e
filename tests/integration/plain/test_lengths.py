"""Batches of other lengths than the script's, in real processes."""

import pytest

from autorecompute.backends import registry
from autorecompute.errors import ScriptError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.plans.savings import SEQUENCE
from autorecompute.studies.problem import Problem
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

SCRIPT = """
import itertools

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


torch.manual_seed(0)
texts = [torch.randint(50, (5 + 7 * number % 40,)) for number in range(400)]
loader = DataLoader(texts, batch_size=4, collate_fn=lambda drawn: pad_sequence(drawn, batch_first=True))
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for batch in BATCHES:
    model(batch, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def bench_of(tmp_path):
    def make(batches, longest):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("BATCHES", batches))
        return Bench(Job(script=script, longest=longest), 4, tmp_path)

    return make


def test_every_order_has_the_length_that_it_asks_for(bench_of):
    with bench_of("itertools.chain.from_iterable(loader for _ in range(9))", 128) as bench:
        detection = bench.detect()
        shorter = registry.backend_of(detection.versions).memory_by_length(detection)
        at_first = bench.measure(Config(), Effort())
        found = {length: bench.measure(Config(), Effort(length=length)) for length in (*sorted(shorter), 128)}
        check = bench.check(detection.space.presets["blocks"])
    assert (detection.dims[SEQUENCE], Problem.of(detection, 1).parts["longest"]) == (128, "128")
    assert list(shorter) == [16, 32, 64, 96]
    assert {measured.outcome for measured in found.values()} == {Outcome.OK}
    allocated = [measured.allocated_bytes for measured in found.values()]
    assert allocated == sorted(set(allocated))
    assert allocated[-1] == at_first.allocated_bytes
    # A step begins while the gradients of the last one are there.
    models = {**shorter, 128: registry.backend_of(detection.versions).memory_of(detection)}
    forecasts = {length: model.forecast(Config(), detection.dims).live_bytes for length, model in models.items()}
    assert len({forecasts[length] - found[length].allocated_bytes for length in found}) == 1
    assert check.agrees


def test_batches_that_no_loader_serves_have_no_length_of_ours(bench_of):
    with (
        bench_of("(torch.randint(50, (4, 9)) for _ in itertools.count())", 128) as bench,
        pytest.raises(ScriptError, match="needs batches from a DataLoader, and the script makes its own"),
    ):
        bench.detect()
