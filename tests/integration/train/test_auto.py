import json
import os
import re
import textwrap

import pytest

from workplace import LONG_TRAINING, OWN_TRAINING, SCRIPTS, SHORT_TRAINING


@pytest.fixture(scope="module")
def begin(limit):
    def begin(place, study, *arguments, steps=36):
        return place.start(OWN_TRAINING, "--auto", limit, "--study", study, "--tuning-steps", str(steps), *arguments)

    return begin


def searches(place):
    return [one for one in place.processes() if "training_search" in " ".join(one.cmdline())]


def test_a_training_is_the_same_bit_for_bit_its_steps_were_trials_and_the_log_says_what_is_on(
    workplace, train_alike, limit
):
    finished = train_alike("trained", *LONG_TRAINING)
    assert finished.code == 7
    begins, ends = finished.said
    assert re.search(r"INFO looking for what to recompute under .*, in 36 steps", begins)
    assert re.search(r"INFO from step \d+ on: .*, peak .* of .* samples/s", ends)
    answer = json.loads((workplace.study("trained").path / "result.json").read_text())
    assert answer["best"]["config"]
    assert answer["best"]["peak_bytes"] <= int(limit)
    assert not searches(workplace)


def test_what_cannot_be_tuned_trains_as_without_the_tool(workplace, train_alike):
    finished = train_alike("refused", "--steps", "3", "--beside")
    assert "WARNING" in finished.said[-1]
    assert "an optimizer steps that autorecompute.auto was not given" in finished.said[-1]
    workplace.wait_until(lambda: not searches(workplace))


def test_a_script_that_is_tuned_from_outside_is_not_tuned_from_inside(workplace, limit, train_plainly):
    command = ("-m", "autorecompute", "train", OWN_TRAINING, "--memory-limit", limit, "--study", "outside")
    finished = workplace.finish(workplace.start(*command, "--", *SHORT_TRAINING, "--auto", limit, "--study", "inside"))
    assert (finished.code, finished.stdout) == (0, train_plainly(*SHORT_TRAINING).stdout)
    assert "started with what to recompute" in finished.said[0]
    assert workplace.study().path.name == "outside"


CELLS = """
import logging, os, sys
import torch
from torch import nn
import autorecompute
from own_cells import Encoder, train

logging.basicConfig(level=logging.INFO, format="autorecompute: %(levelname)s %(message)s")
_ = torch.manual_seed(0)
model = Encoder(dropout=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
autorecompute.auto(model, optimizer, memory_limit=LIMIT, tuning_steps=8)
try:
    os.wait()
except ChildProcessError:
    print("no child")

train(model, optimizer, 12)
model = Encoder(layers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
autorecompute.auto(model, [optimizer], memory_limit=LIMIT, tuning_steps=8)
train(model, optimizer, 4)
1 / 0
train(model, optimizer, 8)
sys.executable = "/missing/python"
autorecompute.auto(model, optimizer, memory_limit=LIMIT)
train(model, optimizer, 2)
"""

OWN_CELLS = """
import hashlib

import torch
from torch.nn.functional import cross_entropy

from models import CLASSES, LENGTH, WIDTH, Encoder


def train(model, optimizer, steps):
    for _ in range(steps):
        inputs, labels = torch.randn(96, LENGTH, WIDTH), torch.randint(CLASSES, (96,))
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
    print("loss", loss.item(), "weights", digest.hexdigest())
"""


def test_a_session_that_is_typed_is_tuned_cell_by_cell(workplace, limit):
    (workplace.path / "own_cells.py").write_text(OWN_CELLS)
    cells = textwrap.dedent(CELLS).replace("LIMIT", limit)
    texts = {"tuned": cells, "plain": re.sub(r"^autorecompute\.auto.*\n", "", cells, flags=re.MULTILINE)}
    done, path = {}, os.pathsep.join([str(SCRIPTS), os.environ["PYTHONPATH"]])
    for name, text in texts.items():
        typed = workplace.path / f"{name}.txt"
        typed.write_text(text)
        with typed.open() as stdin:
            done[name] = workplace.finish(workplace.start("-i", "-q", stdin=stdin, PYTHONPATH=path))
    tuned, plain = done["tuned"], done["plain"]
    assert tuned.stdout == plain.stdout
    assert tuned.stdout.count("weights") == 4, tuned.stderr
    lines = [line.partition("autorecompute: ")[2] for line in tuned.stderr.splitlines() if "autorecompute: " in line]
    assert sum("looking for" in line for line in lines) == 2
    assert "cannot be started" in lines[-1]
    studies = sorted((workplace.path / "studies").iterdir())
    assert len(studies) == 2
    heads = [json.loads((study / "study.json").read_text()) for study in studies]
    assert [head["command"] for head in heads] == [["python"], ["python"]]
