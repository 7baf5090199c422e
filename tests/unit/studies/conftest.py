import dataclasses
import math

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Rejection
from autorecompute.studies.analysis import keep_detection
from autorecompute.studies.archive import dump
from autorecompute.studies.records import read_records
from autorecompute.units import MIB
from stand_ins.archives import COMMAND, HOME
from stand_ins.studies import keep_more, keep_study


@pytest.fixture(scope="module")
def archive(tmp_path_factory, make_detection, make_space, make_trial, make_result, make_step):  # noqa: PLR0917
    detection, place = make_detection(), tmp_path_factory.mktemp("studies")
    device = dataclasses.replace(detection.device, uuid="GPU-1234")
    trace = (f'  File "{HOME}/train.py", line 3', "    a = 'b' / c / 'd'")
    message = f"[Errno 2] No such file or directory: '{HOME}/x.bin'"
    trials = (
        make_trial(outcome=Outcome.OVER_LIMIT, message=message, trace=trace),
        make_trial(make_space().all_on, number=1, losses=(math.nan, 2.5, math.inf), reference_seconds=0.4),
    )
    result = make_result(device=device, warnings=("/home/somebody/secret/train.py:7 does it",))
    folder = keep_study(place, detection, limit_bytes=900 * MIB, command=COMMAND, trials=trials, result=result)
    log = "/home/somebody/secret/01.log"
    folder.keep_rejections([Rejection(config=Config(), outcome=Outcome.CRASH, reason=f"see {log}")])
    keep_more(folder, make_step("flb", ("a", 0, 2, "8")))
    extra = {"no_steps": f"'{HOME}/train.py' is missing"}
    keep_detection(folder, dataclasses.replace(detection, device=device, extra=extra))
    return dump(read_records(folder)).splitlines(keepends=True)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    place = tmp_path / "elsewhere"
    place.mkdir()
    monkeypatch.chdir(place)
    return place
