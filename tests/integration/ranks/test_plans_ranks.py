import json
import re

import pytest
from jsonschema import Draft202012Validator

from autorecompute.errors import ScriptError
from autorecompute.schemas import schema_of
from workplace import SCRIPTS

SCRIPT = str(SCRIPTS / "counted_ranks.py")
TWO = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
PRESETS = {"blocks": "blocks.*", "keep_matmul": "blocks.*, matrix products kept"}
KINDS = {"parameter_bytes", "gradient_bytes", "state_bytes", "gathered_bytes", "activation_bytes"}


@pytest.fixture(scope="module")
def look(place):
    def look(*options, arguments=()):
        command = ("-m", "autorecompute", "plans", SCRIPT, "--fake", *options, "--", *arguments)
        return place.finish(place.start(*command))

    return look


def forecasts_of(looked):
    assert looked.code == 0, looked.stderr
    return {forecast["config"]: forecast for forecast in looked.answer["peak"]["forecasts"]}


@pytest.mark.parametrize("way", ["replicas", "views", "shards", "mixed"])
def test_a_rank_takes_what_two_real_ranks_count(place, look, way):
    looked = look("--ranks", "2", "--json", arguments=("--way", way))
    forecasts = forecasts_of(looked)
    Draft202012Validator(schema_of("plans")).validate(looked.answer)
    (place.path / f"{way}.json").write_text(json.dumps(looked.answer))
    files = [f"{way}_{preset}.json" for preset in PRESETS]
    for preset, file in zip(PRESETS, files, strict=True):
        emit = ("-m", "autorecompute", "emit", f"{way}.json", "--unmeasured", preset, "-o", file)
        assert place.finish(place.start(*emit)).code == 0
    counted = place.finish(place.start(*TWO, SCRIPT, "--way", way, "--count", *files))
    assert counted.code == 0, counted.stderr
    told = [forecasts[words] for words in ("none", *PRESETS.values())]
    assert [int(peak) for peak in re.findall(r"^peak (\d+)$", counted.stdout, re.MULTILINE)] == [
        forecast["peak_bytes"] for forecast in told
    ]
    for forecast in told:
        assert sum(forecast["rank"][kind] for kind in KINDS) == forecast["peak_bytes"]


def test_more_ranks_hold_less_of_each_and_gather_as_much(look):
    few, many = (forecasts_of(look("--ranks", ranks, "--json"))["blocks.*"]["rank"] for ranks in ("2", "64"))
    assert (few["ranks"], many["ranks"]) == (2, 64)
    for kind in ("parameter_bytes", "state_bytes"):
        assert many[kind] == pytest.approx(few[kind] / 32, rel=0.02)
    assert many["activation_bytes"] >= few["activation_bytes"], "the peak lies where more of them are alive"
    assert many["gathered_bytes"] >= few["gathered_bytes"]


def test_the_table_tells_what_a_rank_holds_and_how_to_measure(look):
    looked = look("--ranks", "4", arguments=("--way", "replicas"))
    head, _, table = looked.stdout.partition("The peak of one of 4 ranks")
    assert [line.split()[0] for line in table.splitlines()[2:] if line][1:4] == ["none", "blocks", "half_of_blocks"]
    assert "--nproc-per-node 4" in head


def test_ranks_that_nothing_joins_are_told(look):
    looked = look("--ranks", "2", arguments=("--way", "apart"))
    assert looked.code == 0, looked.stderr
    assert "neither DistributedDataParallel nor fully_shard joins the ranks" in looked.stdout


@pytest.mark.parametrize(
    ("options", "arguments", "code", "words"),
    [
        (("--ranks", "0"), (), 2, "'0' is not a positive whole number"),
        (("--ranks", "8"), ("--alone", "--way", "apart"), ScriptError.exit_code, "makes no process group"),
        (("--ranks", "8"), ("--world", "4"), ScriptError.exit_code, "rank 0 of 4, and --ranks says 8"),
        (("--ranks", "2"), ("--mesh", "8"), ScriptError.exit_code, "a mesh of 8 ranks"),
        (("--ranks", "8"), ("--mesh", "4"), ScriptError.exit_code, "a mesh of 4 ranks"),
        ((), (), ScriptError.exit_code, "--ranks N"),
    ],
    ids=["none", "alone", "world", "large", "small", "without"],
)
def test_ranks_that_cannot_be_end_in_one_sentence(look, options, arguments, code, words):
    looked = look(*options, arguments=arguments)
    assert (looked.code, looked.stdout) == (code, "")
    assert words in looked.complaint
    assert "Traceback" not in looked.complaint
