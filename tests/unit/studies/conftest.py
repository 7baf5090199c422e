import dataclasses
import math

import pytest

from autorecompute import codec
from autorecompute.figures import Figures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Rejection
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.archive import dump
from autorecompute.studies.batch_studies import BatchRecord, keep_batches
from autorecompute.studies.detected import keep_detection
from autorecompute.studies.records import read_records
from autorecompute.studies.storage import TrialStore
from autorecompute.units import MIB
from stand_ins.archives import COMMAND, HOME

ROUND = {"step_seconds": [0.5], "reference_seconds": [], "marks": []}


@pytest.fixture(scope="module")
def archive(tmp_path_factory, make_detection, make_space, make_trial, make_result, make_step):  # noqa: PLR0917
    detection, folder = make_detection(), StudyFolder("bert", tmp_path_factory.mktemp("studies"))
    folder.prepare()
    device = dataclasses.replace(detection.device, uuid="GPU-1234")
    problem = Problem.of(detection, 900 * MIB)
    folder.begin(problem, list(COMMAND), Sizes.of(detection))
    store, all_on = TrialStore(folder.database, "bert", make_space(), problem.limit_bytes), make_space().all_on
    trace = (f'  File "{HOME}/train.py", line 3', "    a = 'b' / c / 'd'")
    message = f"[Errno 2] No such file or directory: '{HOME}/x.bin'"
    store.add(make_trial(outcome=Outcome.OVER_LIMIT, message=message, trace=trace))
    store.add(make_trial(all_on, number=1, losses=(math.nan, 2.5, math.inf), reference_seconds=0.4))
    folder.keep_rejections(
        [Rejection(config=Config(), outcome=Outcome.CRASH, reason="see /home/somebody/secret/01.log")]
    )
    folder.keep_confirmed([make_result().best])
    standing = {"trial": 1, "description": "all plans", "peak_bytes": 700 * MIB, "rounds": [ROUND]}
    folder.write("race.json", {"ranking": None, "standings": [standing], "over_limit": [], "failed": [], "trials": 2})
    keep_batches(folder, BatchRecord(asked=(16, 32), without=(Figures(batch=16),)))
    profiled = {"config": codec.to_plain(Config()), "profile": codec.to_plain(make_step("flb", ("a", 0, 2, "8")))}
    folder.write("analysis.json", {"peak_bytes": 9, "held_bytes": 5, "profiles": [profiled]})
    keep_detection(
        folder, dataclasses.replace(detection, device=device, extra={"no_steps": f"'{HOME}/train.py' is missing"})
    )
    folder.finish(make_result(device=device, warnings=("/home/somebody/secret/train.py:7 does it",)))
    return dump(read_records(folder)).splitlines(keepends=True)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    place = tmp_path / "elsewhere"
    place.mkdir()
    monkeypatch.chdir(place)
    return place
