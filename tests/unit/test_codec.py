import dataclasses
import json
import math
import resource
import typing

import pytest

from autorecompute import codec
from autorecompute.codec import DEEPEST, LARGEST_TEXT, MOST_VALUES, UnreadableError, parse, read_file
from autorecompute.figures import Ranking
from autorecompute.measurement import GradientCheck, Measurement, Trial
from autorecompute.plans import Choice, Config
from autorecompute.result import Best, Rejection, Result
from autorecompute.schemas import Definitions
from autorecompute.studies.analysis import Analysis
from autorecompute.studies.problem import Head
from autorecompute.studies.records import BatchRecord, RaceRecord, RoundRecord


def test_a_number_that_is_not_finite_is_written_as_a_word_and_comes_back(make_measurement):
    again = codec.decode(codec.encode(make_measurement(losses=(math.nan, math.inf))), Measurement)
    assert math.isnan(again.losses[0])
    assert math.isinf(again.losses[1])
    written = codec.write({"losses": (math.nan, math.inf, -math.inf, 1.0)})
    assert json.loads(written, parse_constant=pytest.fail) == {"losses": ["nan", "inf", "-inf", 1.0]}


REFUSED = {
    "no object": ([], "it is \\[\\], not an object"),
    "an unknown outcome": ({"outcome": "splendid"}, "'outcome' is 'splendid', none of ok, over_limit"),
    "words for seconds": ({"step_seconds": ["soon"]}, r"'step_seconds\[0\]' is 'soon', not a number"),
    "a text for a list": ({"marks": "abc"}, "'marks' is 'abc', not a list"),
    "part of a byte": ({"peak_bytes": 1.5}, "'peak_bytes' is 1.5, not a whole number"),
    "truth for a number": ({"samples": True}, "'samples' is True, not a whole number"),
    "more bytes than there can be": ({"held_bytes": 2**62}, "'held_bytes' is"),
    "a tiny batch": ({"batch": 1e-320}, "'batch' is 1e-320, not a whole number"),
    "seconds that are none": ({"step_seconds": ["nan"]}, r"'step_seconds\[0\]' is nan, not from"),
    "a step of no time": ({"step_seconds": [1e-320]}, r"'step_seconds\[0\]' is 1e-320"),
    "steps for ever": ({"step_seconds": [9e8, 9e8]}, "took more than 1000000000 s"),
    "no steps": ({"step_seconds": []}, "ok without a peak, samples or step times"),
    "half a character": ({"message": "\ud800"}, "'message' holds half a character"),
    "a number for a text": ({"message": 5}, "'message' is 5, not a text"),
    "a long list": ({"losses": [0.5] * 100_001}, "'losses' has 100001 entries, 100000 is the most"),
    "a long text": ({"message": "a" * 2_000_000}, "'message' is a text of 2000000 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_describes_no_measurement_is_refused(make_measurement, name):
    change, words = REFUSED[name]
    plain = {**codec.to_plain(make_measurement()), **change} if isinstance(change, dict) else change
    with pytest.raises(UnreadableError, match=f"describes no Measurement: .*{words}"):
        codec.from_plain(plain, Measurement)


@pytest.mark.parametrize(
    ("kind", "plain", "words"),
    [
        (Config, "blocks.*/gelu:drop", "not a list"),
        (Config, ["blocks.*/gelu"], "'blocks.\\*/gelu' is no choice"),
        (Config, ["blocks.*/cast:drop", "blocks.*/cast:keep_half"], "in one way only"),
        (tuple[str, str], ["a"], "has 1 entries, not 2"),
        (dict[str, int], {str(number): number for number in range(1001)}, "has 1001 entries, 1000 is the most"),
        (dict[str, int], {"\ud800": 1}, "half a character"),
        (Ranking, {"end": "tie", "rounds": 1, "confidence": 0.9, "rivals": []}, "ended as tie with nobody else left"),
        (Ranking, {"end": "ranked", "rounds": 1, "confidence": 1.5, "rivals": []}, "'confidence' is 1.5"),
        (Ranking, {"end": "ranked"}, "describes no Ranking"),
        (RoundRecord, {"step_seconds": [], "reference_seconds": [], "marks": []}, "without a timed step"),
    ],
)
def test_what_describes_no_record_is_refused(kind, plain, words):
    with pytest.raises(UnreadableError, match=words):
        codec.from_plain(plain, kind)


def test_as_deep_as_allowed_is_read_and_the_first_of_many_wrong_entries_is_told_at_once():
    """An error for each of them would take gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableError, match=r"'\[0\]\[0\]' is \[\], not a number"):
        codec.from_plain([[[]] * 100_000] * 20, list[list[float]])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB
    assert parse(b"[" * DEEPEST + b"]" * DEEPEST) is not None


NOT_FINITE = {(Measurement, "losses"), (Best, "losses"), (GradientCheck, "worst")}


def test_every_number_of_a_study_has_its_range_and_a_schema_tells_its_unit():
    records = {Head, Trial, Rejection, Best, RaceRecord, BatchRecord, Analysis, Result}
    for kind in records_in(*records):
        bare = {entry.name for entry in codec.entries_of(kind) if {int, float} & set(leaves(entry.kind))}
        assert bare == {name for record, name in NOT_FINITE if record is kind}, kind
    fields = Definitions().object_of(Measurement)["properties"]
    assert fields["peak_bytes"]["description"].endswith(" In bytes.")
    assert fields["step_seconds"]["description"].endswith(" In seconds.")
    assert fields["losses"]["items"] == {"type": ["number", "null"]}


def records_in(*kinds):
    found, todo = set(), list(kinds)
    while todo:
        kind = todo.pop()
        if kind in found or not dataclasses.is_dataclass(kind) or kind in {Choice, Config}:
            continue
        found.add(kind)
        for entry in codec.entries_of(kind):
            todo += leaves(entry.kind)
    return found


def leaves(kind):
    arguments = typing.get_args(kind)
    if not arguments or typing.get_origin(kind) is typing.Annotated:
        return [kind]
    return [leaf for argument in arguments for leaf in leaves(argument)]


@pytest.mark.parametrize("plain", [None, True, 0, -1.5, "é\n", [1, [2]], {"a": {"b": []}}, 2**63 - 1, -(2**63)])
def test_what_is_written_is_read(plain):
    assert parse(codec.write(plain).encode()) == plain


NO_JSON = {
    "nothing": (b"", "no JSON from column 1 on"),
    "a second line that is wrong": (b"[1,\n2 3]", "no JSON from line 2, column 3 on"),
    "a cut text": (b'{"a": [1, 2', "no JSON"),
    "bytes": (b'"\xff"', "no text in UTF-8"),
    "NaN": (b"[NaN]", "NaN, which is no JSON"),
    "infinity": (b"[-Infinity]", "-Infinity, which is no JSON"),
    "a long whole number": (b"[" + b"9" * 400 + b"]", "400 digits"),
    "a number beyond a float": (b"[1e400]", "1e400, which is too large"),
    "lists in lists": (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), f"nested deeper than {DEEPEST}"),
    "a hundred thousand brackets": (b"[" * 100_000 + b"]" * 100_000, f"nested deeper than {DEEPEST}"),
    "many values": (b"[" + b"0," * MOST_VALUES + b"0]", f"more than {MOST_VALUES} values"),
    "a large text": (b'"' + b"a" * LARGEST_TEXT + b'"', "larger than 32 MiB"),
}


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_of_ours_is_refused(name, tmp_path):
    text, words = NO_JSON[name]
    with pytest.raises(UnreadableError, match=words):
        parse(text)
    file = tmp_path / "file.json"
    file.write_bytes(text)
    with pytest.raises(UnreadableError, match=words):
        read_file(file)


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"",'])
def test_refusing_many_values_takes_no_memory(part):
    """Two bytes of text are sixty in memory: they are counted before they are made."""
    text = b"[" + part * (LARGEST_TEXT // len(part) - 1) + b"0]"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableError, match="values"):
        parse(text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
