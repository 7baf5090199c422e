import pytest

from autorecompute.plans import Config
from autorecompute.search.choice import MODEL
from autorecompute.tuning.step_profiles import PROFILED_BATCH, survey
from autorecompute.units import GIB, MIB
from fake_backend import controller
from stand_ins.blocks import BlocksBench, limit_for


@pytest.fixture
def _known(monkeypatch):
    def memory_of(detection):
        small = survey(BlocksBench(detection=detection), [Config(), detection.space.all_on], PROFILED_BATCH)
        return controller.memory_model(detection.space, small)

    monkeypatch.setattr(controller, "memory_of", memory_of)


@pytest.fixture
def search(tune_in, make_root):
    def search(step_bytes_of):
        tuning = tune_in(make_root(), BlocksBench(), sampler=MODEL, limit_bytes=limit_for(9 * MIB))
        tuning.bench.step_bytes_of = step_bytes_of
        tuning.run()
        presets = tuning.bench.detection.space.presets.values()
        return [trial.config for trial in tuning.watcher.trials if trial.config not in presets]

    return search


@pytest.mark.usefixtures("_known")
def test_what_should_take_too_much_as_a_whole_step_is_tried_after_others(search):
    first = search({})[0]
    assert search({first: 1})[0] == first
    assert first not in search({first: GIB})[:3]
