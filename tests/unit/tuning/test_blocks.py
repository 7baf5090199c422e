import json

import pytest

from autorecompute.cli import main
from autorecompute.plans import Config
from autorecompute.search.sampling import SAMPLERS
from autorecompute.units import MIB
from fake_backend.controller import MODE_VARIABLE, PLANS_VARIABLE, read_config
from fake_backend.space import BLOCKS, CHECKPOINT, GELU, HEAD, KEEP_MATMUL, NORM, SPACE
from stand_ins.blocks import BATCH, CHEAP_BLOCKS, CHEAP_PARTS, BlocksBench, blocks_detection, limit_for
from stand_ins.emitted import choices_of, variables_of
from stand_ins.formula import Turned
from stand_ins.knobs import by_name, tried_under
from stand_ins.sharing import measured
from stand_ins.tuning import Tuning

FIVE_OF_TWELVE = Config.parse(["blocks.*:checkpoint:5"])
OF_FIVE = limit_for(14 * MIB * 5 // BLOCKS)  # what five blocks hold, and four do not
TRIALS = 30
OWN = ("greedy", "model")
OPTUNAS = sorted(set(SAMPLERS) - {"gp"})  # which needs PyTorch where it runs, and tells nothing that they do not


@pytest.fixture(scope="module")
def tune(make_root):
    def tune(costs=CHEAP_PARTS, *, root=None, bench=None, **settings):
        asked = {"limit_bytes": limit_for(9 * MIB + MIB // 2), "max_trials": TRIALS, **settings}
        tuning = Tuning(root or make_root(), bench or BlocksBench(costs), **asked)
        return tuning, tuning.run()

    return tune


@pytest.fixture(scope="module")
def counted(tune):
    """A study of whole blocks whose answer is five of the twelve."""
    return tune(CHEAP_BLOCKS, limit_bytes=OF_FIVE)


@pytest.fixture
def call(counted, monkeypatch, capsys):
    monkeypatch.chdir(counted[0].folder.path.parents[1])

    return lambda *arguments: (main(list(arguments)), capsys.readouterr().out)


def conflicts_in(config):
    return [(one, other) for one in config.choices for other in config.choices - {one} if SPACE.excludes(one, other)]


@pytest.mark.parametrize("sampler", [*OWN, *OPTUNAS])
def test_every_search_keeps_to_configs_that_exist(tune, sampler):
    tuning, result = tune(sampler=sampler)
    configs = [trial.config for trial in measured(tuning)]
    assert len(configs) == len(set(configs)) <= TRIALS
    assert not [config for config in configs if conflicts_in(config)]
    assert configs == [SPACE.normalize(config) for config in configs]
    assert result.best.confirmed
    assert result.best.peak_bytes <= result.best.limit_bytes
    assert not conflicts_in(result.best.config)


@pytest.mark.parametrize("sampler", OWN)
def test_no_more_blocks_are_recomputed_than_it_takes(tune, sampler):
    _, result = tune(CHEAP_BLOCKS, limit_bytes=OF_FIVE, sampler=sampler)
    assert result.best.config == FIVE_OF_TWELVE
    assert result.best.description == "5 of 12 blocks.* checkpoint"


@pytest.mark.parametrize("sampler", OWN)
@pytest.mark.parametrize(
    ("costs", "wins"),
    [
        (CHEAP_PARTS, {GELU, NORM, HEAD}),
        (CHEAP_BLOCKS, {CHECKPOINT}),
        ((0.9, 0.06, 0.6, 0.6, 0.03), {KEEP_MATMUL, HEAD}),
    ],
    ids=["parts", "whole blocks", "the other option"],
)
def test_parent_and_child_and_both_options_are_weighed(tune, sampler, costs, wins):
    tuning, result = tune(costs, sampler=sampler)
    assert {*SPACE.plans_of(result.best.config)} - {HEAD} == wins - {HEAD}
    tried = {plan for trial in measured(tuning) for plan in SPACE.plans_of(trial.config)}
    assert wins | {CHECKPOINT} <= tried


def test_what_differs_in_a_count_is_measured_raced_and_trained_with_the_emitted_file(counted):
    tuning, result = counted
    presets = result.presets
    assert {"blocks", "every_2nd_block", "all_on"} <= set(presets)
    assert presets["every_2nd_block"].peak_bytes == limit_for(7 * MIB)
    assert presets["blocks"].peak_bytes == limit_for(14 * MIB)
    configs = {trial.config for trial in measured(tuning)}
    assert {FIVE_OF_TWELVE, SPACE.own_presets["every_2nd_block"]} <= configs
    assert result.best.ranking is not None
    assert tuning.bench.checked[-1] == FIVE_OF_TWELVE
    assert (FIVE_OF_TWELVE, BATCH) in tuning.bench.watched
    assert set(variables_of(tuning.folder)) == {PLANS_VARIABLE}
    assert choices_of(tuning.folder) == ["blocks.*:checkpoint:5"]


def test_wrong_gradients_of_a_count_are_the_plans_fault_and_a_knob_is_tried_on_a_count(tune):
    bench = BlocksBench(CHEAP_BLOCKS)
    bench.wrong = (CHECKPOINT,)
    tuning, result = tune(bench=bench, limit_bytes=OF_FIVE)
    assert not result.best.config.has(CHECKPOINT)
    assert FIVE_OF_TWELVE in [rejection.config for rejection in tuning.folder.rejections()]
    tuning, result = tune(CHEAP_BLOCKS, limit_bytes=OF_FIVE, turns_knobs=True)
    assert set(by_name(result)) == {"fused_kernels", "whole_graph"}
    assert result.best.config == FIVE_OF_TWELVE
    assert tried_under("FAKE_FUSED", tuning) == tried_under(MODE_VARIABLE, tuning) == {FIVE_OF_TWELVE}
    assert all(figures.message == "" for figures in result.knobs)


@pytest.mark.parametrize("is_found", [True, False])
def test_a_knob_is_tried_on_a_preset_as_a_whole(tune, is_found):
    level = Config.parse(["whole model:deep"])
    bench = BlocksBench(CHEAP_BLOCKS, blocks_detection(own_presets={"deep": level}))
    formula_bytes, formula_seconds = bench.peak_bytes, bench.seconds
    bench.peak_bytes = lambda config, batch: 300 * MIB if config == level else formula_bytes(config, batch)
    bench.seconds = lambda config, batch: 0.43 if config == level else formula_seconds(config, batch)
    presets = bench.detection.own_presets if is_found else {}
    bench.knobs = {"FAKE_FUSED": Turned(detection=blocks_detection(own_presets=presets))}
    tuning, result = tune(bench=bench, limit_bytes=OF_FIVE, turns_knobs=True)
    assert result.best.config == level
    assert tried_under("FAKE_FUSED", tuning) == {level if is_found else Config()}
    assert ("not found then" in by_name(result)["fused_kernels"].message) is not is_found


def test_people_and_programs_read_the_count(call, counted):
    told = "5 of 12 blocks.* checkpoint"
    code, out = call("show", "bert")
    assert (code, told in out) == (0, True)
    assert call("report", "bert")[0] == 0
    assert told in (counted[0].folder.path / "report.html").read_text()
    best = json.loads(call("show", "bert", "--json")[1])["result"]["best"]
    assert best["config"] == ["blocks.*:checkpoint:5"]
    assert read_config(best["env"]) == FIVE_OF_TWELVE
    emitted = json.loads(call("emit", "bert", "--format", "json")[1])
    assert (emitted["config"], read_config(emitted["environment"])) == (best["config"], FIVE_OF_TWELVE)


@pytest.mark.parametrize("more_mib", [10, 25, 60])
def test_where_faster_configs_need_too_much_as_whole_processes_the_search_goes_on_below(tune, more_mib):
    """All blocks, which are confirmed first, are slower than some of them."""
    bench = BlocksBench(CHEAP_BLOCKS)
    bench.every_life_bytes = more_mib * MIB
    tuning, result = tune(bench=bench, limit_bytes=limit_for(8 * MIB))
    assert any("searching below" in note for note in tuning.watcher.notes)
    assert sum("measuring the largest batch" in note for note in tuning.watcher.notes) == 1
    all_blocks = Config.parse(["blocks.*:checkpoint"])
    assert result.best.peak_bytes == bench.peak_bytes(result.best.config, BATCH) + bench.every_life_bytes
    assert bench.seconds(result.best.config, BATCH) < 0.95 * bench.seconds(all_blocks, BATCH)


def test_what_was_confirmed_stays_unless_something_faster_is_where_the_search_goes_on(tune):
    """Its whole process needs less beyond its steps than those that were rejected, and it is over the new limit."""
    _, first = tune(CHEAP_BLOCKS, limit_bytes=limit_for(8 * MIB))
    bench = BlocksBench(CHEAP_BLOCKS)
    bench.every_life_bytes = 4 * MIB
    bench.life_bytes[first.best.config] = 60 * MIB
    bench.life_bytes[Config()] = 0
    tuning, result = tune(bench=bench, limit_bytes=limit_for(8 * MIB))
    confirmed = [best.config for best in tuning.folder.confirmed()]
    assert first.best.config in {known.config for known in tuning.folder.rejections()}
    assert bench.seconds(result.best.config, BATCH) == min(bench.seconds(config, BATCH) for config in confirmed)
