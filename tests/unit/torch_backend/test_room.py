"""A step that runs out of memory beside a training, which goes on as if nothing had been run."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.check.gradients import Step
from autorecompute.backends.torch.check.room import lacking_memory
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.fake.steps import returned_loss
from autorecompute.backends.torch.forecast.records import CHECKPOINT
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.plans import Choice
from tiny_models import call_of, differences, make

FORWARD, BACKWARD = "forward", "backward"


class RunsOut(TorchDispatchMode):
    """Memory runs out in an operator of one pass; else it counts those of both."""

    def __init__(self, phase="", place=0):
        super().__init__()
        self.at, self.calls = (phase, place), {FORWARD: 0, BACKWARD: 0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        phase = FORWARD if torch._C._current_autograd_node() is None else BACKWARD
        self.calls[phase] += 1
        if (phase, self.calls[phase]) == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return function(*args, **(kwargs or {}))


def train(training, between=lambda: None):
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(training.model.parameters())
    for _ in range(3):
        between()
        training.loss(training.model, training.batch).backward()
        between()  # with gradients there
        optimizer.step()
        optimizer.zero_grad()
    return dict(training.model.state_dict()) | {"next": torch.rand(1)}


def beside(training):
    """Gives what runs a step with every block checkpointed beside a training, and the switches."""
    args, kwargs = call_of(training)
    tuned = Tuned.of(training.model, args, kwargs)
    wholes = [site for site in tuned.board.sites.values() if CHECKPOINT in site.options and not site.attention]
    choices = [Choice(site.name, CHECKPOINT) for site in wholes]

    def run(mode):
        with LiveBytes(tensors_of(training.model, (), training.batch)) as meter, mode:
            told = lacking_memory(Step(training.model, args, kwargs, loss=returned_loss), tuned.board, choices)
        # On a CPU torch keeps what a failed backward pass has queued until the next one, whoever runs it.
        torch.ones(1, requires_grad=True).sum().backward()
        assert meter.now == meter.base, "nothing of the step is left"
        return told

    return run, tuned.board


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_training_goes_on_bit_for_bit_wherever_memory_ran_out_beside_it(name, phase):
    training = make(name)
    expected = train(copy.deepcopy(training))
    run, board = beside(training)
    counting = RunsOut()
    assert run(counting) == ""
    told, place = [], counting.calls[phase] // 2
    assert differences(train(training, lambda: told.append(run(RunsOut(phase, place)))), expected) == []
    assert len(told) == 6
    assert all("out of memory" in one.lower() for one in told)
    assert board.choices == frozenset()


def test_what_else_a_model_raises_beside_its_training_is_left_to_its_own_step():
    training = make("gpt2")
    run, _ = beside(training)

    class Fails(RunsOut):
        def __torch_dispatch__(self, *_args, **_kwargs):
            raise ValueError("no such thing")

    assert run(Fails()) == ""
