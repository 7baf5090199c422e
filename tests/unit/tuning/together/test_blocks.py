import time

import pytest

from autorecompute.plans import Config
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from fake_backend.space import BLOCKS, SPACE
from stand_ins.blocks import CHEAP_BLOCKS, BlocksBench, blocks_detection, limit_for
from stand_ins.emitted import choices_of
from stand_ins.sharing import measured, run_all
from stand_ins.tuning import Tuning


@pytest.mark.parametrize("sampler", ["greedy", "model", "tpe"])
def test_two_workers_measure_each_count_once(root, open_shared, monkeypatch, sampler):
    monkeypatch.setattr("autorecompute.tuning.shared_ledger.POLL_SECONDS", 0.01)
    tunings = []
    for place in range(2):
        folder = root / str(place)
        folder.mkdir()
        device = Device(kind="cpu", name="Some Processor", uuid=f"device-{place}", total_bytes=16 * GIB)
        bench = BlocksBench(CHEAP_BLOCKS, blocks_detection(device=device))
        bench.pace = lambda _: time.sleep(0.05) or 1.0
        limit = limit_for(14 * MIB * 5 // BLOCKS)
        tunings.append(Tuning(folder, bench, shared=open_shared(), sampler=sampler, limit_bytes=limit, max_trials=20))
    answers = run_all(tunings)
    configs = [trial.config for trial in measured(tunings[0])]
    assert len(configs) == len(set(configs)) <= 20
    assert configs == [SPACE.normalize(config) for config in configs]
    assert measured(tunings[0]) == measured(tunings[1])
    assert all(tuning.tried for tuning in tunings)
    assert answers[0].best.config == answers[1].best.config
    if sampler != "tpe":
        assert answers[0].best.config == Config.parse(["blocks.*:checkpoint:5"])
    for tuning, answer in zip(tunings, answers, strict=True):
        assert choices_of(tuning.folder) == answer.best.config.texts
