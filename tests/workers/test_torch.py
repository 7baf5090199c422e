import contextlib

import pytest

from workplace import FREED_AT_ONCE, PLAIN_BATCH, SCRIPTS, Workplace

SCRIPT = "plain_transformer.py"
TRANSFORMER = ("--backend", "torch", "--batch-flag=--bs")
BATCH, TRIALS = str(PLAIN_BATCH), 6
ASKED = ("--target-batch", BATCH, "--max-trials", str(TRIALS), "--study", "shared", "--json")


@pytest.fixture
def places(tmp_path):
    """Two working directories, with a temporary folder each: two that share one wait for each other's device."""
    with contextlib.ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name / "tmp").mkdir(parents=True)
        made = [Workplace(tmp_path / name, str(tmp_path / name / "tmp"), **FREED_AT_ONCE) for name in ("one", "two")]
        yield [stack.enter_context(contextlib.closing(place)) for place in made]


@pytest.fixture
def limit(places):
    """A limit that the script breaks without recompute, and whose whole process holds it with some."""
    asked = (*TRANSFORMER, "--batch", BATCH, "--peak", "--json")
    looked = places[0].finish(places[0].start("-m", "autorecompute", "plans", str(SCRIPTS / SCRIPT), *asked))
    assert looked.code == 0, looked.stderr
    peaks = {forecast["config"]: forecast["peak_bytes"] for forecast in looked.answer["peak"]["forecasts"]}
    return str((2 * peaks["none"] + min(peaks.values())) // 3)


def test_workers_in_plain_pytorch_share_a_study(places, limit, database_url):
    shared = (*TRANSFORMER, *ASKED, "--memory-limit", limit, "--storage", database_url)
    tuning = [place.start_tuning(SCRIPT, *shared) for place in places]
    finished = [place.finish(process) for place, process in zip(places, tuning, strict=True)]
    assert [one.code for one in finished] == [0, 0], finished
    first, second = (one.answer["best"] for one in finished)
    assert (first["config"], first["confirmed"]) == (second["config"], True)
    own = [set(place.study("shared").configs) for place in places]
    assert own[0].isdisjoint(own[1])
    assert 0 < len(own[0] | own[1]) <= TRIALS
