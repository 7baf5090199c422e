"""Scripts that cannot be tuned, each for a reason of its own."""

from pathlib import Path

import pytest


def output_of(workplace):
    """Path of the output that a complaint points to."""
    (log,) = (workplace.study().path / "workers").iterdir()
    return str(log)


def test_a_script_that_is_not_there(workplace):
    """A script that does not exist is refused with its name."""
    refused = workplace.tune("absent.py")
    assert refused.code == 2
    assert "absent.py" in refused.complaint
    assert not (workplace.path / "studies").exists()


def test_a_script_that_fails_before_it_trains(workplace):
    """A script that fails at an import is shown the end of its own traceback, from its own file on."""
    failed = workplace.tune("misspelt.py")
    assert failed.code == 5
    assert "misspelt.py" in failed.complaint
    assert "from models import Clasifier" in failed.complaint
    assert "ImportError" in failed.complaint
    assert "autorecompute/worker" not in failed.complaint
    assert output_of(workplace) in failed.complaint


@pytest.mark.parametrize("step", [1, 3])
def test_a_script_that_fails_in_a_step(workplace, step):
    """A script that raises while it trains is shown its own traceback, and where its output lies."""
    failed = workplace.tune("breaking.py", arguments=("--fault", "raise", "--at-step", str(step)))
    assert failed.code == 5
    assert "UnreadableSampleError: sample 17 cannot be read" in failed.complaint
    assert output_of(workplace) in failed.complaint
    assert "breaking.py" in failed.complaint
    assert 'raise UnreadableSampleError("sample 17 cannot be read")' in failed.complaint


@pytest.mark.parametrize(
    ("fault", "words", "outcome"),
    [
        ("exit", "exit code 3", "script_error"),
        ("segfault", "SIGSEGV", "crash"),
        ("diverge", "nan", "diverged"),
    ],
)
def test_a_script_that_breaks_in_a_step(workplace, fault, words, outcome):
    """A script that leaves its process, crashes or diverges without recompute ends the tuning, which says how."""
    failed = workplace.tune("breaking.py", arguments=("--fault", fault))
    assert failed.code == 5
    assert words in failed.complaint
    assert f"Outcome: {outcome}." in failed.complaint
    assert output_of(workplace) in failed.complaint


LEAVES = """
import sys
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    if step == int(sys.argv[1]):
        sys.exit("the data lies nowhere: set DATA")
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("step", ["0", "2"])
def test_a_script_that_leaves_with_words_is_quoted(workplace, step):
    """What is given to ``sys.exit`` in words is on stderr without the tool, and in the complaint with it."""
    (workplace.path / "leaves.py").write_text(LEAVES)
    tuning = ("-m", "autorecompute", "tune", "leaves.py", "--steps", "2", "--warmup", "1", "--", step)
    failed = workplace.finish(workplace.start(*tuning))
    assert failed.code == 5
    assert "exit code 1" in failed.complaint
    assert "the data lies nowhere: set DATA" in failed.complaint
    assert Path(output_of(workplace)).read_text() == "the data lies nowhere: set DATA\n"


@pytest.mark.parametrize("steps", ["2", "100000"])
def test_a_script_that_never_wraps_its_model(workplace, steps):
    """A script without an ORTModule, tuned as one with it, is told how to wrap its model, at its end or before."""
    failed = workplace.tune("unwrapped.py", "--backend", "ortmodule", arguments=("--steps", steps))
    assert failed.code == 5
    assert "ORTModule(model)" in failed.complaint
    assert "--wrap" in failed.complaint
    assert "It printed nothing." in failed.complaint
    assert not Path(output_of(workplace)).read_text()


def test_a_script_that_ends_too_early(workplace):
    """A script that ends before one trial is measured is told how many steps there were and how many it takes."""
    failed = workplace.tune("classifier.py", arguments=("--steps", "3"))
    assert failed.code == 5
    assert "after 3 steps" in failed.complaint
    assert "needs at least 4" in failed.complaint
    assert "--steps" in failed.complaint


def test_a_script_with_just_enough_steps_for_one_trial(workplace):
    """A script that takes as many steps as a trial needs, and not one more, is tuned; at its own batch, if need be."""
    tuned = workplace.tune("classifier.py", "--json", arguments=("--steps", "4", "--bs", "9"))
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["best"]["batch"] == 9


@pytest.mark.parametrize(
    ("operator", "name"), [("lgamma", "lgamma"), ("det", "Det")], ids=["no symbolic", "no gradient"]
)
def test_a_model_that_ort_cannot_train(workplace, operator, name):
    """A model with an operator that ONNX does not know, or ORT cannot differentiate, is refused with its name."""
    failed = workplace.tune("unexportable.py", arguments=("--operator", operator))
    assert failed.code == 5
    sentence = failed.complaint.splitlines()[0]
    assert name in sentence
    assert "ORTModule cannot take this model" in sentence
    assert "Outcome: export_error." in failed.complaint
    assert len(sentence) < 400, "a sentence, not a page of C++"


def test_a_script_that_insists_on_falling_back(workplace):
    """A script that chooses its own fallback policy is not measured in plain PyTorch: the operator is named."""
    failed = workplace.tune("unexportable.py", arguments=("--operator", "lgamma", "--fall-back"))
    assert failed.code == 5
    sentence = failed.complaint.splitlines()[0]
    assert "nothing is recomputed" in sentence
    assert "lgamma" in sentence
    assert "Outcome: fell_back." in failed.complaint
