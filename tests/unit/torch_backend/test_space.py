import functools
import itertools
import random

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from autorecompute import codec
from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.identity import digest_of, name_of
from autorecompute.backends.torch.forecast.records import OptionStep, Part, Steps
from autorecompute.backends.torch.switch import chunks, heads
from autorecompute.codec import UnreadableError
from autorecompute.memory import Phase
from autorecompute.plans import Choice, Config
from autorecompute.plans.savings import evaluate
from autorecompute.studies import Sizes
from stand_ins.surveyed import Surveyed
from tiny_models import make


@functools.cache
def look_at(name):
    torch.set_num_threads(1)
    return Surveyed.of(name)


@pytest.fixture(scope="module", params=["bert", "resnet"])
def surveyed(request):
    return look_at(request.param)


def forecast(surveyed, config):
    return surveyed.memory.forecast(config, surveyed.memory.dims)


def test_every_plan_saves_something_at_any_batch_and_what_excludes_each_other_is_not_on_together(surveyed):
    """All plans on is a config in which every choice does something, and no plan is a checkpoint around all blocks."""
    config = surveyed.space.all_on
    effects = surveyed.board.resolve(config.choices)
    assert {effect.site for effect in effects} == {choice.site for choice in config.choices}
    units = set(surveyed.found.structure.units)
    for plan in surveyed.space.plans:
        (site,) = (surveyed.board.sites[name] for name in plan.sites)
        assert not any(units <= {u for u in units if u.startswith(f"{path}.")} for path in site.occurrences)
    for plan in surveyed.space.plans:
        assert plan.saving_bytes > 0
        assert evaluate(plan.saving, {"batch": surveyed.found.batch}) == pytest.approx(plan.saving_bytes, abs=2)
        assert plan.counts == (plan.occurrences > 1)
        assert Config.parse(plan.id.split(",")) == Config.of([plan])


def test_every_preset_is_forecast_as_a_whole_step_of_it_says_and_so_are_blocks_beside_operators():
    """Presets to one percent, and to the byte without recompute.

    The operators of the other blocks are dropped beside one whole block, which is less than either needs alone.
    """
    surveyed = look_at("bert")
    for name, config in surveyed.space.presets.items():
        told = forecast(surveyed, config)
        worst = 0.0 if name == "none" else 0.01
        assert told.live_bytes == pytest.approx(surveyed.peak_of(config), rel=worst), name
        assert (told.recompute_share > 0) == (not config.is_none)
    space = surveyed.space
    operators, blocks = space.presets["operators"], space.presets["blocks"]
    (whole,) = (plan for plan in space.plans_of(blocks) if plan.occurrences > 1)
    both = space.with_plan(operators, whole, 1)
    assert both.choices > operators.choices
    told = forecast(surveyed, both)
    assert told.live_bytes == pytest.approx(surveyed.peak_of(both), rel=0.02)
    alone = [forecast(surveyed, config) for config in (operators, space.with_plan(Config(), whole, 1))]
    assert told.stash_bytes < min(each.stash_bytes for each in alone)
    shares = [each.recompute_share for each in alone]
    assert max(shares) < told.recompute_share < sum(shares)


def test_random_mixes_are_forecast_to_the_byte_also_where_blocks_share_a_relu_in_place():
    surveyed = look_at("resnet")
    chance = random.Random(5)
    for _ in range(4):
        config = Config()
        for plan in chance.sample(surveyed.space.plans, min(4, len(surveyed.space.plans))):
            config = surveyed.space.with_plan(config, plan, chance.choice([None, 1]))
        assert_exact(surveyed, config)


def test_thousands_are_simulated_and_a_timeline_adds_up_to_the_forecast(surveyed):
    """Its peak is the forecast's wherever nothing is made again, and blocks keep less where they are."""
    choices = [choice for plan in surveyed.space.plans for choice in plan.choices]
    simulator = surveyed.memory.simulator(surveyed.memory.dims, choices)
    configs = [config for config in surveyed.space.presets.values() if surveyed.space.is_mix(config)]
    peaks = simulator.simulate(simulator.matrix(configs)).peak_bytes
    assert list(peaks) == [forecast(surveyed, config).live_bytes for config in configs]
    none, blocks = (surveyed.memory.timeline(surveyed.space.presets[name]) for name in ("none", "blocks"))
    assert none.peak_bytes == forecast(surveyed, Config()).live_bytes
    assert blocks.stash_bytes < none.stash_bytes
    assert any(operation.phase == "recompute" for operation in blocks.profile.operations)
    by_phase = blocks.live_by_phase()
    assert by_phase[Phase.RECOMPUTE][-1] == 0, "gradients are what is left"
    assert by_phase[Phase.BACKWARD][-1] == blocks.live_bytes[-1] > 0


def test_presets_have_a_name_where_the_model_has_what_they_are_about(surveyed):
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


def test_a_name_tells_models_apart_and_not_their_weights_and_a_graph_autocast_and_not_batches_or_lengths():
    first, second, deeper = make("gpt2").model, make("gpt2").model, make("gpt2", layers=3).model
    with torch.no_grad():
        next(second.parameters()).add_(1)
    assert name_of(first) == name_of(second) != name_of(deeper)
    assert name_of(first).startswith("GPT2LMHeadModel ")

    def digest(*, batch=4, sequence=32, bfloat16=False):
        training = make("llama", batch=batch)
        short = {name: value[:, :sequence] for name, value in training.batch.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            return digest_of(training.model, detect(training.model, (), short).operators)

    assert digest() == digest(batch=6) == digest(sequence=16) != digest(bfloat16=True)


def test_the_same_graph_may_keep_more(make_detection):
    """A stride changes no module, no weight and no operator: what the plans save tells two such models apart."""

    def look(stride):
        first, last = nn.Conv2d(3, 16, 3, stride=stride), nn.Conv2d(16, 16, 3)
        model = nn.Sequential(first, nn.GELU(), last, nn.GELU(), nn.AdaptiveAvgPool2d(1))
        seen = Surveyed(model, Script((torch.randn(8, 3, 32, 32),), {}, ()))
        sizes = Sizes.of(make_detection(seen.space, dims={"batch": seen.found.batch}))
        return digest_of(model, seen.found.operators), sizes.saved_bytes

    (first, fine), (second, coarse) = look(1), look(2)
    assert first == second
    assert fine > 3 * coarse > 0


@pytest.mark.parametrize("changes", [{"parts": (3,)}, {"parts": (0, 1)}, {"units": ((-2,),)}, {"owners": (0, 0)}])
def test_damaged_steps_are_refused(changes):
    """A choice that changes a part which no step has, or names fewer changes than parts, is none."""
    numbers = {"units": ((0,),), "parts": (0,), "change": (1,), "highest": (1,), "work": 0.0}
    option = OptionStep(site="a", option="drop", **numbers)
    part = Part(phase="forward", name="a", owner=0, change=1, highest=1)
    steps = Steps(batch=1, parts=(part,), options=(option,), later_bytes=0, has_own_loss=True)
    for sound in (steps, look_at("bert").steps):
        assert codec.from_plain(codec.to_plain(sound), Steps) == sound
    plain = codec.to_plain(steps)
    plain["options"][0] |= {name: list(values) for name, values in changes.items()}
    with pytest.raises(UnreadableError):
        codec.from_plain(plain, Steps)


def survey(model):
    return Surveyed(model, Script((torch.randn(64, 32),), {}))


def blocks_of(kind, count=4):
    return nn.Sequential(nn.Linear(32, 32), *(kind() for _ in range(count)))


def checkpointed(sites, counts):
    """The first so many of each site; all for ``None``."""
    return Config(frozenset(Choice(site, "checkpoint", n) for site, n in zip(sites, counts, strict=True) if n != 0))


def beside_step(surveyed, config):
    assert {choice.site for choice in config.choices} <= {site.name for site in surveyed.found.sites}
    return forecast(surveyed, config).live_bytes, surveyed.peak_of(config)


def assert_exact(surveyed, config):
    told, whole = beside_step(surveyed, config)
    assert told == whole, config.texts


def test_what_one_choice_drops_and_another_keeps_is_forecast():
    """A checkpointed module keeps what it is given."""
    surveyed = look_at("bert")
    assert surveyed.steps.interactions
    for meeting in surveyed.steps.interactions:
        for counts in ((3, 3), (3, 1), (1, 2)):
            pairs = zip(((meeting.site, meeting.option), meeting.beside), counts, strict=True)
            assert_exact(surveyed, Config.parse([f"{':'.join(choice)}:{count}" for choice, count in pairs]))


class BiasedBlock(nn.Sequential):
    def forward(self, x, bias):
        return x + super().forward(x) + bias


class Biased(nn.Sequential):
    """Blocks that are all given one bias, which is let go before the loss unless one of them keeps it."""

    def forward(self, x):
        return torch.stack([self.through_blocks(x).exp(), x]).square().mean()

    def through_blocks(self, x):
        bias = torch.linspace(0, 1, x.numel()).view_as(x)
        for block in self:
            x = block(x, bias)
        return x


def test_what_blocks_share_is_kept_by_any_of_them_and_a_result_by_the_next_module_where_both_are_checkpointed():
    surveyed = survey(Biased(*(BiasedBlock(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4))))
    for count in (1, 2, 3, None):
        assert_exact(surveyed, checkpointed(["*"], [count]))
    surveyed = survey(blocks_of(Chained))
    for counts in ((1, 3), (3, 1), (3, None), (None, None)):
        assert_exact(surveyed, checkpointed(("*.first", "*.second"), counts))


class Adapted(nn.Module):
    """A projection that is not trained and one that is, behind a dropout: what both are given is kept by neither."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(32, 32).requires_grad_(requires_grad=False)
        self.drop = nn.Dropout(0.1)
        self.inner, self.outer = nn.Linear(32, 4), nn.Linear(4, 32)

    def forward(self, x):
        return self.base(x) + self.outer(self.inner(self.drop(x)))


class Projecting(nn.Module):
    """Three such projections of one tensor, which nothing else keeps."""

    sites = ("*.one", "*.two", "*.inside.three")

    def __init__(self):
        super().__init__()
        self.one, self.two, self.inside = Adapted(), Adapted(), nn.ModuleDict({"three": Adapted()})

    def forward(self, x):
        given = x + 1
        return x + self.one(given).sin() * self.two(given).cos() + self.inside["three"](given).sin()


def test_a_tensor_that_several_checkpointed_modules_are_given_is_kept_once():
    """Without the first of three, the others make no pair: what they share counts twice, which is the safe side."""
    projecting = survey(blocks_of(Projecting))
    for counts in ((None, None, 0), (None, 1, 0), (None, 2, 3), (None, None, None)):
        assert_exact(projecting, checkpointed(Projecting.sites, counts))
    told, whole = beside_step(projecting, checkpointed(Projecting.sites, (0, None, None)))
    assert told >= whole


class Chained(nn.Module):
    """A module that ends with a ReLU, and one that is given its result and does not keep it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.ReLU())
        self.second = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        return x + self.second(self.first(x)).sin()


class Unrepeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gelu = nn.Linear(32, 32), nn.GELU()
        frozen = (nn.Linear(32, 64).requires_grad_(requires_grad=False) for _ in range(2))
        self.keys, self.values = (nn.Sequential(one, nn.GELU(), nn.Linear(64, 32)) for one in frozen)

    def forward(self, x):
        given = self.gelu(self.inner(x))
        return self.keys(given).sin() * self.values(given).cos()


def test_choices_meet_and_cover_each_other_outside_of_repeated_layers_too():
    surveyed = survey(Unrepeated())
    both, drops = ["keys:checkpoint", "values:checkpoint"], ["keys.1/gelu:drop", "values.1/gelu:drop"]
    for texts in (both, [both[0], drops[0]], both + drops):
        assert_exact(surveyed, Config.parse(texts))


def have_own_sites(plans):
    sites = [choice.site for plan in plans for choice in plan.choices]
    return len(set(sites)) == len(sites)


def test_no_mix_of_three_is_forecast_too_low_where_nothing_repeats():
    """What each takes off the passes counts where it is: some are too high by two percent, and most are exact."""
    surveyed = Surveyed.of("llama", layers=1)
    assert not surveyed.found.structure.units
    triples = [triple for triple in itertools.combinations(surveyed.space.plans, 3) if have_own_sites(triple)]
    errors = []
    for plans in random.Random(0).sample(triples, 8):
        told, whole = beside_step(surveyed, surveyed.space.normalize(Config.of(plans)))
        errors.append(told / whole - 1)
    assert 0 <= min(errors) <= max(errors) < 0.02
    assert errors.count(0) > 4


class WithHead(nn.Sequential):
    """Blocks and a head in mixed precision, with the loss."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.cross_entropy(super().forward(x), torch.zeros(len(x), dtype=torch.int64))


def test_gradients_that_a_head_in_chunks_computes_in_the_forward_pass_belong_to_that():
    """The peak lies there once the blocks are checkpointed, and a checkpoint of the head itself has nothing left."""
    blocks = blocks_of(lambda: nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)))
    model = WithHead(*blocks, nn.Linear(32, 700))
    surveyed = Surveyed(model, Script((torch.randn(600, 32),), {}))
    in_chunks, head = Choice("5/cross_entropy", "chunk"), Choice("5", "checkpoint")
    assert surveyed.space.excludes(in_chunks, head)
    for others in ((), (Choice("*", "checkpoint"),)):
        assert_exact(surveyed, Config(frozenset({in_chunks, *others})))


def test_chunks_are_switched_on_in_a_hook_of_an_optimizer(monkeypatch):
    """A search gives its next order there, and torch lets no hook register another one."""
    for module in (chunks, heads):
        monkeypatch.setattr(module, "STEPS", chunks._Steps())
    model = WithHead(nn.Linear(32, 32), nn.Linear(32, 700))
    found = detect(model, (torch.randn(600, 32),), {})
    (site,) = (site for site in found.sites if "chunk" in site.options)
    board = found.switchboard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = register_optimizer_step_post_hook(lambda *_: board.set([Choice(site.name, "chunk")]))
    try:
        optimizer.step()
    finally:
        handle.remove()
    assert {effect.option for effect in board.effects} == {"chunk"}
