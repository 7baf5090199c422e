from types import SimpleNamespace

import pytest
import torch
from common.images import FIGURES, Figures
from common.text import BYTES, CLS, IGNORED_LABEL, MASK, SEP, ByteWindows, MaskedByteWindows
from common.training import make_parser, train
from torch import nn

SEQUENCE, COUNT = 64, 40


@pytest.mark.parametrize("make", [ByteWindows, MaskedByteWindows, Figures])
def test_samples_are_those_of_the_seed(make):
    first, again, other = make(SEQUENCE, COUNT, 0), make(SEQUENCE, COUNT, 0), make(SEQUENCE, COUNT, 1)
    assert len(first) == COUNT
    assert all(torch.equal(value, again[3][name]) for name, value in first[3].items())
    inputs = next(iter(first[3]))
    assert not torch.equal(first[3][inputs], first[4][inputs])
    assert not torch.equal(first[3][inputs], other[3][inputs])


def test_a_window_is_its_own_label():
    sample = ByteWindows(SEQUENCE, COUNT, 0)[0]
    assert sample["input_ids"].shape == (SEQUENCE,)
    assert int(sample["input_ids"].max()) < BYTES
    assert torch.equal(sample["input_ids"], sample["labels"])


def test_only_masked_bytes_have_labels():
    """About 15 % of the bytes are masked."""
    samples = MaskedByteWindows(SEQUENCE, COUNT, 0)
    inputs, labels = (torch.stack([samples[index][name] for index in range(COUNT)]) for name in ("input_ids", "labels"))
    assert inputs.shape == (COUNT, SEQUENCE)
    assert torch.equal(inputs == MASK, labels != IGNORED_LABEL)
    assert (inputs == MASK).float().mean().item() == pytest.approx(0.15, abs=0.03)
    assert {tuple(row) for row in inputs[:, [0, -1]].tolist()} == {(CLS, SEP)}


def test_every_figure_is_drawn():
    samples = [Figures(SEQUENCE, 100, 0)[index] for index in range(100)]
    assert {sample["pixel_values"].shape for sample in samples} == {(3, SEQUENCE, SEQUENCE)}
    assert {int(sample["labels"]) for sample in samples} == set(range(len(FIGURES)))


class Guess(nn.Module):
    """Guesses a figure by its mean colours, and begins with a penalty that it can get rid of."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, len(FIGURES))
        self.penalty = nn.Parameter(torch.tensor(3.0))

    def forward(self, pixel_values, labels):
        logits = self.head(pixel_values.mean((2, 3)))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels) + self.penalty**2)


@pytest.fixture
def losses(capsys):
    def losses(*flags):
        args = make_parser("").parse_args(["--device", "cpu", "--batch", "4", *flags])
        train(args, lambda _: Guess(), lambda count: Figures(8, count, args.seed))
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].startswith("peak resident memory ")
        return [line.split("  ")[1] for line in lines[:-1]]

    return losses


def test_a_training_is_that_of_its_seed(losses):
    flags = ("--steps", "4", "--log-every", "2")
    first, again, other = losses(*flags), losses(*flags), losses(*flags, "--seed", "1")
    assert len(first) == 2
    assert first == again != other


def test_the_last_step_is_printed(losses):
    assert [len(losses("--steps", str(steps), "--log-every", "3")) for steps in (2, 3, 4)] == [1, 1, 2]


def test_a_training_lowers_the_loss(losses):
    values = [float(text.removeprefix("loss ")) for text in losses("--steps", "40", "--learning-rate", "0.1")]
    assert values[-1] < values[0] - 5
