import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.memory import trace
from autorecompute.plans import Config
from autorecompute.search.candidates import choices_of
from autorecompute.trials import Bench, Job
from autorecompute.tuning.searcher_factory import survey

BERT = Path(__file__).parents[3] / "studies" / "bert_mlm" / "train.py"
SMALL_BERT = ("--ortmodule", "--layers", "2", "--hidden", "32", "--heads", "2", "--sequence", "32")
BATCH, LARGE_BATCH = 7, 21

PEAK_ERROR, STASH_ERROR = 0.03, 0.01
"""Shares by which a simulated config may be off; most are exact."""


@dataclass(frozen=True)
class Checked:
    model: OrtMemoryModel
    large: OrtMemoryModel

    def simulate(self, config, **dims):
        simulator = self.model.simulator(dims, choices_of(self.model.space))
        simulated = simulator.simulate(simulator.matrix([config]))
        return simulated.peak_bytes[0], simulated.stash_bytes[0]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    job = Job(script=BERT, arguments=(*SMALL_BERT, "--batch", "{batch}"))
    draw = random.Random(0)
    with Bench(job, BATCH, tmp_path_factory.mktemp("small")) as bench:
        space = bench.detect().space
        drawn = [Config.of(draw.sample(space.plans, count)) for count in (3, 5, 7, len(space.plans) - 1)]
        small = survey(bench, [Config(), space.all_on, *drawn])
    with Bench(job, LARGE_BATCH, tmp_path_factory.mktemp("large")) as bench:
        large = survey(bench, [Config(), *drawn[-2:]])
    return Checked(OrtMemoryModel(space, small), OrtMemoryModel(space, large))


def covers(blueprint, plan):
    return len(blueprint.subgraphs.get(plan.choices[0].site, ())) == plan.occurrences


def test_every_plan_is_found_in_the_profiles(checked):
    blueprint = checked.model.blueprint
    alone = [plan for plan in checked.model.space.plans if len(plan.choices) == 1]
    assert alone
    assert [plan.id for plan in alone if not covers(blueprint, plan)] == []


def assert_simulated(checked, config, profile, error=PEAK_ERROR, **dims):
    timeline, (peak, stash) = trace(profile), checked.simulate(config, **dims)
    assert peak == pytest.approx(timeline.peak_bytes, rel=error), config.texts
    assert stash == pytest.approx(timeline.stash_bytes, rel=STASH_ERROR), config.texts


def test_configs_that_were_profiled_or_never_ran_need_what_was_simulated(checked):
    assert len(checked.model.profiles) == 6
    for config, profile in checked.model.profiles.items():
        is_known = config == checked.model.space.all_on
        assert_simulated(checked, config, profile, STASH_ERROR if is_known else PEAK_ERROR)


def test_a_larger_batch_needs_what_was_simulated(checked):
    for config, profile in checked.large.profiles.items():
        if not config.is_none:
            assert_simulated(checked, config, profile, batch=LARGE_BATCH)


def test_what_a_model_returns_is_none_of_its_backward(scripts, tmp_path):
    with Bench(Job(script=scripts / "odd_models.py", arguments=("--model", "halfway")), None, tmp_path) as bench:
        space = bench.detect().space
        model = OrtMemoryModel(space, survey(bench, [Config(), space.all_on]))
    (plan,) = space.plans
    assert covers(model.blueprint, plan)
    peak, stash = Checked(model, model).simulate(space.all_on)
    timeline = trace(model.profiles[space.all_on])
    assert (peak, stash) == (timeline.peak_bytes, timeline.stash_bytes)
