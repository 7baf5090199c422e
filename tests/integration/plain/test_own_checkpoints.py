"""What a worker says of a script that checkpoints itself, and with what exit code a verb ends."""

import inspect
import json

import pytest

from autorecompute.backends import registry
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from stand_ins.other_checkpoint import Recomputed

SCRIPT = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


RECOMPUTED

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = CALL
        return x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(4, 8, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def bench_of(tmp_path):
    def make(call):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("RECOMPUTED", inspect.getsource(Recomputed)).replace("CALL", call))
        return Bench(Job(script=script, replaces_checkpointing=True), None, tmp_path)

    return make


def test_plans_that_were_measured_in_its_place_say_so(bench_of, tmp_path):
    with bench_of("checkpoint(block, x, use_reentrant=False)") as bench:
        detection = bench.detect()
    assert "blocks.*" in {choice.site for plan in detection.plans for choice in plan.choices}
    rendered = registry.render(Config(), (), detection.versions, tmp_path)
    ((_, text),) = rendered.files.items()
    assert json.loads(text)["replaces_checkpointing"] is True


def test_one_that_cannot_be_switched_off_ends_in_a_usage_error(bench_of):
    with bench_of("Recomputed.apply(block, x)") as bench, pytest.raises(UsageError, match="is still recomputed"):
        bench.detect()
