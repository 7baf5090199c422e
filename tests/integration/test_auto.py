"""A script that calls ``autorecompute.auto``, and a session typed into an interpreter, beside the same without it."""

import json
import os
import re
import textwrap

import pytest

from workplace import OWN_TRAINING, SCRIPTS

LONG = ("--steps", "50", "--dropout", "0.1", "--accumulate", "2", "--code", "7")
SHORT = ("--steps", "14")


@pytest.fixture(scope="module")
def place(make_workplace):
    """The working directory of most of these trainings."""
    return make_workplace("auto")


@pytest.fixture(scope="module")
def begin(limit):
    """Starts a training that calls the tool."""

    def begin(place, study, *arguments, steps=36):
        return place.start(OWN_TRAINING, "--auto", limit, "--study", study, "--tuning-steps", str(steps), *arguments)

    return begin


@pytest.fixture(scope="module")
def trained(place, begin):
    """A training that is longer than its search, with dropout and accumulated gradients."""
    return place.finish(begin(place, "trained", *LONG))


def said(finished):
    """What the log has, level and text."""
    prefix = "autorecompute: "
    return [line.removeprefix(prefix) for line in finished.stderr.splitlines() if line.startswith(prefix)]


def searches(place):
    """Processes that search here."""
    return [one for one in place.processes() if "training_search" in " ".join(one.cmdline())]


def test_a_training_is_the_same_bit_for_bit(trained, train_plainly):
    """Its losses, its final weights, its random numbers and its exit code are those without the tool."""
    plain = train_plainly(*LONG)
    assert plain.code == trained.code == 7, trained.stderr
    assert plain.stdout == trained.stdout


def test_its_steps_were_trials_and_the_log_says_what_is_on(trained, place, limit):
    """Two lines: that a search begins, and what stays on; the answer is in the study, and holds the limit."""
    begins, ends = said(trained)
    assert re.search(r"INFO looking for what to recompute under .*, in 36 steps", begins)
    assert re.search(r"INFO from step \d+ on: .*, peak .* of .* samples/s", ends)
    answer = json.loads((place.study("trained").path / "result.json").read_text())
    assert answer["best"]["config"]
    assert answer["best"]["peak_bytes"] <= int(limit)
    assert not searches(place)


def test_the_next_start_answers_from_the_study(trained, place, begin, train_plainly):
    """It trains under the answer from its first step on, without a trial, and trains the same."""
    trials = place.study("trained").trials
    again = place.finish(begin(place, "trained", *LONG))
    assert (again.code, again.stdout) == (trained.code, train_plainly(*LONG).stdout)
    assert re.search(r"from step 1 on: .* as study trained has it", said(again)[-1])
    assert place.study("trained").trials == trials


@pytest.mark.thorough
def test_a_killed_search_leaves_the_training_alone(workplace, begin, train_plainly):
    """It goes on with the config that is on, to its own end, and a warning says so."""
    process = begin(workplace, "killed", *SHORT, steps=1000)
    workplace.wait_for_trials(process, 1)
    (search,) = searches(workplace)
    search.kill()
    finished = workplace.finish(process)
    assert (finished.code, finished.stdout) == (0, train_plainly(*SHORT).stdout)
    assert "WARNING" in said(finished)[-1]
    assert "the search has ended without an answer" in said(finished)[-1]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (("--models", "2"), "several models"),
        (("--beside",), "an optimizer steps that autorecompute.auto was not given"),
    ],
)
def test_what_cannot_be_tuned_trains_as_without_the_tool(workplace, begin, train_plainly, fault, sentence):
    """A warning says why."""
    finished = workplace.finish(begin(workplace, "refused", "--steps", "3", *fault))
    plain = train_plainly("--steps", "3", *fault)
    assert (finished.code, finished.stdout) == (plain.code, plain.stdout)
    assert "WARNING" in said(finished)[-1]
    assert sentence in said(finished)[-1]
    workplace.wait_until(lambda: not searches(workplace))


def test_memory_that_runs_out_is_the_scripts_error_and_a_bound(workplace, begin):
    """The error is that of the script; a warning says what to do, and the study keeps what was too much."""
    finished = workplace.finish(begin(workplace, "lacking", "--steps", "3", "--lacks", "1"))
    assert finished.code == 1
    assert "out of memory at step 1" in said(finished)[-1]
    (trial,) = workplace.study().trials
    assert trial["measurement"]["outcome"] == "oom"


def test_a_script_that_ends_first_leaves_what_is_known(workplace, begin, train_plainly):
    """Its trials are in the study, and the log says that the next start goes on."""
    finished = workplace.finish(begin(workplace, "short", *SHORT, steps=400))
    assert finished.stdout == train_plainly(*SHORT).stdout
    assert "ended before the search did" in said(finished)[-1]
    assert workplace.study("short").trials


def test_a_script_that_is_tuned_from_outside_is_not_tuned_from_inside(workplace, limit, train_plainly):
    """``train`` has decided what is recomputed, and the call does nothing."""
    command = ("-m", "autorecompute", "train", OWN_TRAINING, "--memory-limit", limit, "--study", "outside")
    finished = workplace.finish(workplace.start(*command, "--", *SHORT, "--auto", limit, "--study", "inside"))
    assert (finished.code, finished.stdout) == (0, train_plainly(*SHORT).stdout)
    assert "started with what to recompute" in said(finished)[0]
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
    """Each model gets a search and a study of its own, an error in a cell ends nothing, and nothing else changes."""
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
