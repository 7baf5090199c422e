"""What is written as JSON comes back as it was."""

import dataclasses
import json
import math
import resource
import typing

import pytest

from autorecompute import codec
from autorecompute.figures import Figures
from autorecompute.jsontext import UnreadableError
from autorecompute.measurement import GradientCheck, Measurement, Outcome, Trial
from autorecompute.plans import Choice, Config
from autorecompute.ranking import Ranking
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies import Problem
from autorecompute.studies.analysis import Analysis
from autorecompute.studies.batch_studies import BatchRecord
from autorecompute.studies.problem import Head
from autorecompute.studies.race_record import RaceRecord, RoundRecord
from autorecompute.training_job import Detection
from autorecompute.verdict import Verdict

CONFIGS = [
    Config(),
    Config.parse(["whole model:deep"]),
    Config.parse(["blocks.*/gelu:drop:5", "blocks.*/cast:keep_half"]),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_comes_back(config):
    """Sites, options, counts and opaque presets survive, and with them the hash."""
    again = codec.decode(codec.encode(config), Config)
    assert (again, again.hash) == (config, config.hash)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("outcome", Outcome)
def test_a_trial_comes_back(make_trial, config, outcome):
    """Every outcome survives, with figures or without."""
    trial = make_trial(config, number=7, outcome=outcome, message="why", reference_seconds=0.5)
    assert codec.decode(codec.encode(trial), Trial) == trial


def test_a_diverged_loss_comes_back(make_measurement):
    """A loss that is no number is still none after the way through JSON."""
    again = codec.decode(codec.encode(make_measurement(losses=(math.nan, math.inf))), Measurement)
    assert math.isnan(again.losses[0])
    assert math.isinf(again.losses[1])


def test_a_detection_and_its_problem_come_back(make_detection, make_space):
    """What identifies a problem survives, and the same plans make the same digest."""
    detection = make_detection(make_space(has_opaque=True))
    problem = Problem.of(detection, 2**30)
    assert codec.decode(codec.encode(detection), Detection) == detection
    assert codec.decode(codec.encode(problem), Problem) == problem


@pytest.mark.parametrize(
    "changes", [{}, {"best": None, "verdict": Verdict.NO_FIT}, {"rival": Figures(outcome=Outcome.OK, batch=8)}]
)
def test_an_answer_comes_back(make_result, changes):
    """An answer survives with a winner, without one, and with a rival."""
    result = dataclasses.replace(make_result(), **changes)
    assert codec.decode(codec.encode(result), Result) == result


def test_what_is_unknown_is_null_and_never_0(make_trial):
    """A number that was not measured is ``null`` in the JSON."""
    plain = json.loads(codec.encode(make_trial(outcome=Outcome.OOM)))
    assert {plain["measurement"][name] for name in ("peak_bytes", "samples", "batch", "device_bytes")} == {None}
    assert plain["reference_seconds"] is None


REFUSED = {
    "no object": ([], "it is \\[\\], not an object"),
    "an unknown outcome": ({"outcome": "splendid"}, "'outcome' is 'splendid', none of ok, over_limit"),
    "an outcome that is none": ({"outcome": []}, "'outcome' is"),
    "words for seconds": ({"step_seconds": ["soon"]}, r"'step_seconds\[0\]' is 'soon', not a number"),
    "a number for a list": ({"step_seconds": 3}, "'step_seconds' is 3, not a list"),
    "a text for a list": ({"marks": "abc"}, "'marks' is 'abc', not a list"),
    "words for bytes": ({"peak_bytes": "much"}, "'peak_bytes' is 'much', not a whole number"),
    "part of a byte": ({"peak_bytes": 1.5}, "'peak_bytes' is 1.5, not a whole number"),
    "truth for a number": ({"samples": True}, "'samples' is True, not a whole number"),
    "bytes below none": ({"held_bytes": -1}, "'held_bytes' is -1, not from 0"),
    "more bytes than there can be": ({"held_bytes": 2**62}, "'held_bytes' is"),
    "a tiny batch": ({"batch": 1e-320}, "'batch' is 1e-320, not a whole number"),
    "seconds that are none": ({"step_seconds": ["nan"]}, r"'step_seconds\[0\]' is nan, not from"),
    "seconds of NaN": ({"warmup_seconds": math.nan}, "'warmup_seconds' is nan, not from"),
    "a step of no time": ({"step_seconds": [1e-320]}, r"'step_seconds\[0\]' is 1e-320"),
    "a step for ever": ({"step_seconds": [2.0**59]}, r"'step_seconds\[0\]' is"),
    "steps for ever": ({"step_seconds": [9e8, 9e8]}, "took more than 1000000000 s"),
    "no steps": ({"step_seconds": []}, "ok without a peak, samples or step times"),
    "half a character": ({"message": "\ud800"}, "'message' holds half a character"),
    "a number for a text": ({"message": 5}, "'message' is 5, not a text"),
    "a long list": ({"losses": [0.5] * 100_001}, "'losses' has 100001 entries, 100000 is the most"),
    "a long text": ({"message": "a" * 2_000_000}, "'message' is a text of 2000000 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_describes_no_measurement_is_refused(make_measurement, name):
    """Nothing is converted and nothing lies out of its range: the field and what stands there are named."""
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
        (Config, None, "is null, not a list"),
        (tuple[str, str], ["a"], "has 1 entries, not 2"),
        (dict[str, int], {str(number): number for number in range(1001)}, "has 1001 entries, 1000 is the most"),
        (dict[str, int], {"a": 1.0}, r"\['a'\]' is 1.0, not a whole number"),
        (dict[str, int], {"\ud800": 1}, "half a character"),
        (Ranking, {"end": "tie", "rounds": 1, "confidence": 0.9, "rivals": []}, "ended as tie with nobody else left"),
        (Ranking, {"end": "ranked", "rounds": 1, "confidence": 1.5, "rivals": []}, "'confidence' is 1.5"),
        (RoundRecord, {"step_seconds": [], "reference_seconds": [], "marks": []}, "without a timed step"),
    ],
)
def test_what_describes_no_record_is_refused(kind, plain, words):
    """What is a list, an object or a whole is held to that, too."""
    with pytest.raises(UnreadableError, match=words):
        codec.from_plain(plain, kind)


def test_the_first_of_many_wrong_entries_is_told_at_once():
    """An error for each of them would take gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableError, match=r"'\[0\]\[0\]' is \[\], not a number"):
        codec.from_plain([[[]] * 100_000] * 20, list[list[float]])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


def test_a_name_that_is_no_utf8_comes_back():
    """A byte of a file's name is half a character in Python, and may stand in a command."""
    assert codec.decode(codec.encode(["caf\udce9.py"]), list[str]) == ["caf\udce9.py"]


NOT_FINITE = {(Measurement, "losses"), (Best, "losses"), (GradientCheck, "worst")}


def test_every_number_of_a_study_has_its_range():
    """A record that is stored says of each of its numbers what it may be, but for those of a training gone astray."""
    records = {Head, Trial, Rejection, Best, RaceRecord, BatchRecord, Analysis, Result}
    for kind in records_in(*records):
        types = typing.get_type_hints(kind, include_extras=True)
        bare = {field.name for field in dataclasses.fields(kind) if {int, float} & set(leaves(types[field.name]))}
        assert bare == {name for record, name in NOT_FINITE if record is kind}, kind


def records_in(*kinds):
    """The records, and those in their fields."""
    found, todo = set(), list(kinds)
    while todo:
        kind = todo.pop()
        if kind in found or not dataclasses.is_dataclass(kind) or kind in {Choice, Config}:
            continue
        found.add(kind)
        for field in typing.get_type_hints(kind, include_extras=True).values():
            todo += leaves(field)
    return found


def leaves(kind):
    """The types that a type is made of; one with a range counts as one."""
    arguments = typing.get_args(kind)
    if not arguments or typing.get_origin(kind) is typing.Annotated:
        return [kind]
    return [leaf for argument in arguments for leaf in leaves(argument)]


def test_a_missing_field_is_refused(make_trial):
    """A trial without its config is no trial."""
    plain = codec.to_plain(make_trial())
    del plain["config"]
    with pytest.raises(UnreadableError):
        codec.from_plain(plain, Trial)
