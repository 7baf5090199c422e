import json

import pytest

from autorecompute.backends.torch.forecast.plans_file import VARIABLE
from autorecompute.plans import Config
from workplace import OWN_TRAINING


@pytest.fixture(scope="module")
def planned(place):
    looked = place.finish(place.start("-m", "autorecompute", "plans", OWN_TRAINING, "--fake", "--peak", "--json"))
    (place.path / "looked.json").write_text(looked.stdout)
    file = place.path / "planned.json"
    command = ("-m", "autorecompute", "emit", "looked.json", "--unmeasured", "blocks", "-o", str(file))
    emitted = place.finish(place.start(*command))
    assert (emitted.code, emitted.stdout) == (0, ""), emitted.stderr
    return file


@pytest.fixture(scope="module")
def limits(limit, forecasts):
    """A process that tunes itself as it trains holds more than one that is tuned."""
    peaks = [forecast["peak_bytes"] for forecast in forecasts]
    return {"train": limit, "tune": f"{(max(peaks) + min(peaks)) // 2}"}


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_what_was_planned_is_the_first_that_is_measured(place, planned, limits, verb):
    options = ["--tuning-steps", "32"] if verb == "train" else ["--max-trials", "3", "--warmup", "1", "--steps", "2"]
    script = ["--steps", "40"] if verb == "train" else ["--steps", "1000"]
    command = [verb, OWN_TRAINING, "--memory-limit", limits[verb], "--study", verb, *options, "--", *script]
    place.finish(place.start("-m", "autorecompute", *command, **{VARIABLE: str(planned)}))
    first, second, *_ = place.study(verb).trials
    config = Config.parse(json.loads(planned.read_text())["plans"])
    assert (Config.parse(second["config"]), second["reason"]) == (config, "planned, unmeasured")
    assert second["measurement"]["peak_bytes"] > 0
    assert first["reason"] != second["reason"]
