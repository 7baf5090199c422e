"""Choices that have to do with one tensor: the forecast of both is not the sum of each."""

import itertools

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.fakes import Script
from autorecompute.plans import Choice, Config
from stand_ins.surveyed import Surveyed


def test_what_one_choice_drops_and_another_keeps_is_forecast():
    """To the byte, at any two counts: a checkpointed module keeps what it is given."""
    torch.set_num_threads(1)
    surveyed = Surveyed.of("bert", layers=4)
    assert surveyed.steps.meetings
    for meeting in surveyed.steps.meetings:
        for counts in ((4, 4), (4, 1), (1, 3)):
            one, other = (meeting.site, meeting.option), meeting.beside
            config = Config.parse(
                [f"{':'.join(choice)}:{count}" for choice, count in zip((one, other), counts, strict=True)]
            )
            forecast = surveyed.memory.forecast(config, surveyed.memory.dims)
            assert forecast.live_bytes == surveyed.peak_of(config), config.texts


class Biased(nn.Module):
    """Blocks that are all given one bias, which is let go before the loss unless one of them keeps it."""

    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(BiasedBlock() for _ in range(blocks))

    def forward(self, x):
        """The mean of what the last block gives."""
        return torch.stack([self.blocks_of(x).exp(), x]).square().mean()

    def blocks_of(self, x):
        """What the last block gives."""
        bias = torch.linspace(0, 1, x.numel()).view_as(x)
        for block in self.blocks:
            x = block(x, bias)
        return x


class BiasedBlock(nn.Module):
    """Adds a bias that it need not keep."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x, bias):
        """The sum of all."""
        return x + self.inner(x) + bias


@pytest.mark.parametrize("count", [1, 2, 3, None])
def test_what_blocks_share_is_kept_by_any_of_them(count):
    """Some checkpointed blocks keep all of it, as all of them do: the forecast equals a whole step to the byte."""
    surveyed = Surveyed(Biased(), Script((torch.randn(64, 32),), {}))
    config = Config(frozenset({Choice("blocks.*", "checkpoint", count)}))
    assert surveyed.memory.forecast(config, surveyed.memory.dims).live_bytes == surveyed.peak_of(config)


class Adapted(nn.Module):
    """A projection that is not trained and one that is, behind a dropout: what both are given is kept by neither."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(32, 32).requires_grad_(requires_grad=False)
        self.drop = nn.Dropout(0.1)
        self.inner, self.outer = nn.Linear(32, 4), nn.Linear(4, 32)

    def forward(self, x):
        """The sum of both."""
        return self.base(x) + self.outer(self.inner(self.drop(x)))


class Projecting(nn.Module):
    """Three such projections of one tensor, which nothing else keeps."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.inside = Adapted(), Adapted(), nn.ModuleDict({"three": Adapted()})

    def forward(self, x):
        """What comes of all."""
        given = x + 1
        return x + self.one(given).sin() * self.two(given).cos() + self.inside["three"](given).sin()


@pytest.fixture(scope="module")
def projecting():
    """Four blocks of such projections."""
    model = nn.Sequential(nn.Linear(32, 32), *(Projecting() for _ in range(4)))
    return Surveyed(model, Script((torch.randn(64, 32),), {}))


@pytest.mark.parametrize("counts", [(None, None, 0), (None, 1, 0), (None, 2, 3), (None, None, None)])
def test_a_tensor_that_several_modules_are_given_is_kept_once(projecting, counts):
    """Checkpointed, each keeps it: for two or three of them the forecast equals a whole step to the byte."""
    config = checkpointed(counts)
    assert projecting.memory.forecast(config, projecting.memory.dims).live_bytes == projecting.peak_of(config)


def test_without_the_first_of_three_a_forecast_is_no_lower_than_a_step(projecting):
    """Two of three make no pair: what they share is then counted twice, which is the safe side."""
    config = checkpointed((0, None, None))
    assert projecting.memory.forecast(config, projecting.memory.dims).live_bytes >= projecting.peak_of(config)


def checkpointed(counts):
    """The first so many of each of the three projections."""
    sites = [f"*.{name}" for name in ("one", "two", "inside.three")]
    return Config(frozenset(Choice(site, "checkpoint", n) for site, n in zip(sites, counts, strict=True) if n != 0))


class Chained(nn.Module):
    """A module that ends with a ReLU, and one that is given its result and does not keep it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.ReLU())
        self.second = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        """The second of the first, added to what is given."""
        return x + self.second(self.first(x)).sin()


@pytest.mark.parametrize("counts", list(itertools.product([1, 3, None], repeat=2)))
def test_a_result_that_is_kept_is_kept_by_the_next_module_where_both_are_checkpointed(counts):
    """The first no longer keeps it, and the second does: the forecast equals a whole step to the byte."""
    blocks = nn.Sequential(nn.Linear(32, 32), *(Chained() for _ in range(4)))
    surveyed = Surveyed(blocks, Script((torch.randn(64, 32),), {}))
    sites = zip(("*.first", "*.second"), counts, strict=True)
    config = Config(frozenset(Choice(site, "checkpoint", count) for site, count in sites))
    assert surveyed.memory.forecast(config, surveyed.memory.dims).live_bytes == surveyed.peak_of(config)


class Joining(nn.Module):
    """A module that is given what another one is given, and the other's result."""

    def __init__(self):
        super().__init__()
        self.drop, self.drop_other = nn.Dropout(0.1), nn.Dropout(0.1)
        self.wide, self.other, self.last = nn.Linear(32, 64), nn.Linear(16, 64), nn.Linear(64, 32)

    def forward(self, x, other):
        """What comes of both."""
        return self.last(self.wide(self.drop(x)) * self.other(self.drop_other(other)).sin())


class Joined(nn.Module):
    """Such a module, and one before it that ends with a ReLU."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16), nn.ReLU())
        self.second = Joining()

    def forward(self, x):
        """The second of the first, added to what is given."""
        given = x + 1
        return x + self.second(given, self.first(given)).sin()


@pytest.mark.parametrize("blocks", [1, 4])
def test_two_modules_that_share_two_tensors_are_counted_once(blocks):
    """They make one pair, however they meet: the forecast equals a whole step to the byte."""
    model = nn.Sequential(nn.Linear(32, 32), *(Joined() for _ in range(blocks)))
    surveyed = Surveyed(model, Script((torch.randn(64, 32),), {}))
    name = "*" if blocks > 1 else "1"
    config = Config.parse([f"{name}.first:checkpoint", f"{name}.second:checkpoint"])
    assert surveyed.memory.forecast(config, surveyed.memory.dims).live_bytes == surveyed.peak_of(config)


class Unrepeated(nn.Module):
    """Projections of one tensor in a model without repeated layers."""

    def __init__(self):
        super().__init__()
        self.inner, self.gelu = nn.Linear(32, 32), nn.GELU()
        self.keys, self.values = self.projection(), self.projection()

    @staticmethod
    def projection():
        """One that need not keep what it is given."""
        return nn.Sequential(nn.Linear(32, 64).requires_grad_(requires_grad=False), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        """The product of both."""
        given = self.gelu(self.inner(x))
        return self.keys(given).sin() * self.values(given).cos()


@pytest.mark.parametrize(
    "texts",
    [
        ["keys:checkpoint", "values:checkpoint"],
        ["keys:checkpoint", "keys.1/gelu:drop"],
        ["keys:checkpoint", "values:checkpoint", "keys.1/gelu:drop", "values.1/gelu:drop"],
    ],
)
def test_choices_meet_and_cover_each_other_outside_of_repeated_layers_too(texts):
    """The forecast equals a whole step to the byte."""
    surveyed = Surveyed(Unrepeated(), Script((torch.randn(64, 32),), {}))
    config = Config.parse(texts)
    assert {choice.site for choice in config.choices} <= {site.name for site in surveyed.found.sites}
    assert surveyed.memory.forecast(config, surveyed.memory.dims).live_bytes == surveyed.peak_of(config)
