"""Two workers that tune a real script in plain PyTorch."""

import contextlib

import pytest

from workplace import FREED_AT_ONCE, PLAIN_BATCH, SCRIPTS, Workplace

SCRIPT, BATCH, TRIALS = "plain_transformer.py", str(PLAIN_BATCH), 6
TRANSFORMER = ("--backend", "torch", "--batch-flag=--bs")


@pytest.fixture
def places(tmp_path):
    """Two working directories, with a temporary folder each: two that share one wait for each other's device."""
    with contextlib.ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name / "tmp").mkdir(parents=True)
        made = [Workplace(tmp_path / name, str(tmp_path / name / "tmp"), **FREED_AT_ONCE) for name in ("one", "two")]
        yield [stack.enter_context(contextlib.closing(place)) for place in made]


def test_workers_in_plain_pytorch_share_a_study(places, database_url):
    asked = ("plans", str(SCRIPTS / SCRIPT), *TRANSFORMER, "--batch", BATCH, "--peak", "--json")
    looked = places[0].finish(places[0].start("-m", "autorecompute", *asked)).answer
    peaks = [forecast["peak_bytes"] for forecast in looked["peak"]["forecasts"]]
    options = ("--memory-limit", str((max(peaks) + min(peaks)) // 2), "--target-batch", BATCH, "--study", "shared")
    given = (*TRANSFORMER, *options, "--max-trials", str(TRIALS), "--json", "--storage", database_url)
    tuning = [place.start_tuning(SCRIPT, *given) for place in places]
    first, second = (place.finish(process).answer["best"] for place, process in zip(places, tuning, strict=True))
    assert (first["config"], first["confirmed"]) == (second["config"], True)
    own = [set(place.study("shared").configs) for place in places]
    assert own[0].isdisjoint(own[1])
    assert 0 < len(own[0] | own[1]) <= TRIALS
