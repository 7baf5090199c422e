import subprocess
import sys

import pytest
import torch

import autorecompute
from autorecompute.errors import UsageError

PROGRAM = """
import logging, sys
import torch
import autorecompute

{setup}
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sys.executable = "/missing/python"  # so no search can be started
autorecompute.auto(model, optimizer, memory_limit="1GiB")
"""


MODEL = torch.nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"memory_limit": "forty"}, "cannot be read as a quantity"),
        ({"memory_limit": 40}, "is 40 bytes. Write a unit with it"),
        ({"memory_limit": "0GiB"}, "no amount of memory"),
        ({"memory_limit": "1GiB", "tuning_steps": 0}, "leaves no step"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        autorecompute.auto(MODEL, OPTIMIZER, **options)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((torch.nn.Linear(3, 3), OPTIMIZER), "no parameter of the model"),
        ((OPTIMIZER, OPTIMIZER), "is none"),
        ((MODEL, [MODEL]), "takes torch optimizers"),
        ((MODEL, None), r"is given no optimizer.*autorecompute.auto\(trainer\)"),
        ((MODEL,), "is given no optimizer"),
        (("trainer",), "is none"),
    ],
)
def test_what_is_no_model_with_its_optimizer_is_refused(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        autorecompute.auto(*given)


@pytest.mark.parametrize(
    ("setup", "begins"),
    [
        ("", "autorecompute: the training goes on"),
        ("logging.basicConfig()", "WARNING:autorecompute:the training goes on"),
    ],
)
def test_a_warning_names_the_tool_once(tmp_path, setup, begins):
    """Python prints a warning without its logger where a program has no logging, and with it where it has."""
    command = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(begins)
