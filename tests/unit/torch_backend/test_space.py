"""What a model offers as plans, and the forecast of each config from steps on fake tensors."""

import dataclasses
import itertools
import random

import pytest
import torch
from torch import nn

from autorecompute import codec
from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.extra import OptionStep, Part, Steps, TorchDetection
from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.identity import digest_of, name_of
from autorecompute.jsontext import UnreadableError
from autorecompute.memory.step import Phase
from autorecompute.plans import Choice, Config
from autorecompute.plans.savings import evaluate
from autorecompute.studies import Sizes
from stand_ins.surveyed import Surveyed
from tiny_models import Training, call_of, make, own_loss


@pytest.fixture(scope="module", params=["gpt2", "bert", "resnet"])
def surveyed(request):
    """Each model, looked at once."""
    torch.set_num_threads(1)
    return Surveyed.of(request.param)


def test_what_excludes_each_other_is_not_on_together(surveyed):
    """All plans on is a config in which every choice does something, and no plan is a checkpoint around all blocks."""
    config = surveyed.space.all_on
    effects = surveyed.board.resolve(config.choices)
    assert {effect.site for effect in effects} == {choice.site for choice in config.choices}
    units = set(surveyed.found.structure.units)
    for plan in surveyed.space.plans:
        (site,) = (surveyed.board.sites[name] for name in plan.sites)
        assert not any(units <= {u for u in units if u.startswith(f"{path}.")} for path in site.occurrences)


def test_every_plan_is_worth_something_and_says_what(surveyed):
    """Each saving is a positive number of bytes, and the expression gives it at the batch that was looked at."""
    for plan in surveyed.space.plans:
        assert plan.saving_bytes > 0
        assert evaluate(plan.saving, {"batch": surveyed.found.batch}) == pytest.approx(plan.saving_bytes, abs=2)
        assert plan.counts == (plan.occurrences > 1)
        assert Config.parse(plan.id.split(",")) == Config.of([plan])


def test_every_preset_is_forecast_as_a_whole_step_of_it_says(surveyed):
    """To one percent, and to the byte without recompute."""
    dims = surveyed.memory.dims
    for name, config in surveyed.space.presets.items():
        forecast = surveyed.memory.forecast(config, dims)
        worst = 0.0 if name == "none" else 0.01
        assert forecast.live_bytes == pytest.approx(surveyed.peak_of(config), rel=worst), name
        assert (forecast.recompute_share > 0) == (not config.is_none)


def test_random_mixes_with_counts_are_forecast(surveyed):
    """Mixes of what does not exclude each other, some at their first occurrence only, are forecast to the byte.

    So they are where blocks share a ReLU in place and some of them are checkpointed.
    """
    chance = random.Random(5)
    for _ in range(8):
        config = Config()
        for plan in chance.sample(surveyed.space.plans, min(4, len(surveyed.space.plans))):
            config = surveyed.space.with_plan(config, plan, chance.choice([None, 1]))
        forecast = surveyed.memory.forecast(config, surveyed.memory.dims)
        assert forecast.live_bytes == surveyed.peak_of(config), config.texts


def test_what_stays_beside_some_checkpointed_blocks_is_forecast(surveyed):
    """The operators of the other blocks are dropped beside one whole block, which is less than either needs alone."""
    space, dims = surveyed.space, surveyed.memory.dims
    operators, blocks = space.presets["operators"], space.presets["blocks"]
    (whole,) = (plan for plan in space.plans_of(blocks) if plan.occurrences > 1)
    both = space.with_plan(operators, whole, 1)
    assert both.choices > operators.choices
    forecast = surveyed.memory.forecast(both, dims)
    assert forecast.live_bytes == pytest.approx(surveyed.peak_of(both), rel=0.02)
    alone = [surveyed.memory.forecast(config, dims) for config in (operators, space.with_plan(Config(), whole, 1))]
    assert forecast.stash_bytes < min(each.stash_bytes for each in alone)
    shares = [each.recompute_share for each in alone]
    assert max(shares) < forecast.recompute_share < sum(shares)


def test_thousands_are_simulated_as_each_by_itself(surveyed):
    """A row of switches gives what the forecast of its config gives."""
    choices = [choice for plan in surveyed.space.plans for choice in plan.choices]
    simulator = surveyed.memory.simulator(surveyed.memory.dims, choices)
    configs = [config for config in surveyed.space.presets.values() if surveyed.space.is_mix(config)]
    peaks = simulator.simulate(simulator.matrix(configs)).peak_bytes
    assert list(peaks) == [surveyed.memory.forecast(config, surveyed.memory.dims).live_bytes for config in configs]


def test_a_timeline_adds_up_to_the_forecast(surveyed):
    """Its peak is the forecast's wherever nothing is made again, and blocks keep less where they are."""
    none, blocks = (surveyed.memory.timeline(surveyed.space.presets[name]) for name in ("none", "blocks"))
    assert none.peak_bytes == surveyed.memory.forecast(Config(), surveyed.memory.dims).live_bytes
    assert blocks.stash_bytes < none.stash_bytes
    assert any(operation.phase == "recompute" for operation in blocks.profile.operations)
    by_phase = blocks.live_by_phase()
    assert by_phase[Phase.RECOMPUTE][-1] == 0, "gradients are what is left"
    assert by_phase[Phase.BACKWARD][-1] == blocks.live_bytes[-1] > 0


def test_what_crosses_the_wall_comes_back(surveyed):
    """The steps are JSON, and equal when they are read again."""
    told = TorchDetection(steps=surveyed.steps, refusals=("a",))
    assert codec.from_plain(codec.to_plain(told), TorchDetection) == told


def test_presets_have_a_name_where_the_model_has_what_they_are_about(surveyed):
    """Blocks, the first half and every second of them, and their matrix products kept."""
    presets, plans = surveyed.space.own_presets, surveyed.space.plans
    (block,) = (plan for plan in plans if plan.sites <= set(surveyed.found.blocks) and plan.option == "checkpoint")
    assert presets["blocks"] == Config.of([block])
    assert presets["half_of_blocks"] == Config(frozenset({Choice(*block.sites, "checkpoint", 2)}))
    alternating = surveyed.board.resolve(presets["every_2nd_block"].choices)
    assert [effect.path for effect in sorted(alternating)] == [surveyed.found.structure.units[at] for at in (0, 2)]
    assert presets["keep_matmul"] == Config(frozenset({Choice(*block.sites, "keep_matmul")}))
    assert all(choice.option == "drop" or "attention" in choice.site for choice in presets["operators"].choices)
    for one, other in itertools.combinations(presets["operators"].choices, 2):
        assert not surveyed.space.excludes(one, other)


def test_a_model_without_blocks_has_plans_all_the_same():
    """Its modules are groups of one, and the forecast needs no units."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Tanh()), nn.Linear(64, 8))
    training = Training(model, {"x": torch.randn(16, 8)}, own_loss)
    surveyed = Surveyed(model, Script(*call_of(training)))
    space, memory = surveyed.space, surveyed.memory
    assert space.plans
    assert memory.forecast(space.all_on, memory.dims).stash_bytes < memory.forecast(Config(), memory.dims).stash_bytes
    assert not surveyed.steps.has_own_loss


def test_a_name_tells_models_apart_and_not_their_weights():
    """Another depth is another model; the same one made twice is not, and neither is one on which it has trained."""
    first, second, deeper = make("gpt2").model, make("gpt2").model, make("gpt2", layers=3).model
    with torch.no_grad():
        next(second.parameters()).add_(1)
    assert name_of(first) == name_of(second) != name_of(deeper)
    assert name_of(first).startswith("GPT2LMHeadModel ")


def test_a_graph_is_another_one_where_operators_are():
    """Autocast changes the digest. Neither the batch nor the length of its texts does."""

    def digest(*, batch=4, sequence=32, bfloat16=False):
        training = make("llama", batch=batch)
        short = {name: value[:, :sequence] for name, value in training.batch.items()}
        training = dataclasses.replace(training, batch=short)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            found = detect(training.model, *call_of(training))
        return digest_of(training.model, found)

    assert digest() == digest(batch=6) == digest(sequence=16) != digest(bfloat16=True)


def test_the_same_graph_may_keep_more(make_detection):
    """A stride changes no module, no weight and no operator: what the plans save tells two such models apart."""

    def look(stride):
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=stride), nn.GELU(), nn.Conv2d(16, 16, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1)
        )
        seen = Surveyed(model, Script((torch.randn(8, 3, 32, 32),), {}, ()))
        sizes = Sizes.of(make_detection(seen.space, dims={"batch": seen.found.batch}))
        return digest_of(model, seen.found), sizes.saved_bytes

    (first, fine), (second, coarse) = look(1), look(2)
    assert first == second
    assert fine > 3 * coarse > 0


@pytest.mark.parametrize("changes", [{"parts": (3,)}, {"parts": (0, 1)}, {"units": ((-2,),)}, {"owners": (0, 0)}])
def test_damaged_steps_are_refused(changes):
    """A choice that changes a part which no step has, or names fewer changes than parts, is none."""
    option = {
        "site": "a",
        "option": "drop",
        "units": ((0,),),
        "parts": (0,),
        "change": (1,),
        "highest": (1,),
        "work": 0.0,
    }
    part = Part(phase="forward", name="a", owner=0, change=1, highest=1)
    steps = Steps(batch=1, parts=(part,), options=(OptionStep(**option),), later_bytes=0, has_own_loss=True)
    plain = codec.to_plain(steps)
    plain["options"][0] |= {name: list(values) for name, values in changes.items()}
    with pytest.raises(UnreadableError):
        codec.from_plain(plain, Steps)
