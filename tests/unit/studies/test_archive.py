import dataclasses
import functools
import gzip
import json
import operator
import resource

import jsonschema
import pytest

from autorecompute import codec
from autorecompute.codec import MOST_VALUES
from autorecompute.errors import UsageError
from autorecompute.figures import Comparison, Verdict
from autorecompute.measurement import Outcome
from autorecompute.plans import Choice, Config, Plan
from autorecompute.schemas import ARCHIVE, schema_of
from autorecompute.studies import Problem
from autorecompute.studies.analysis import keep_detection
from autorecompute.studies.archive import VERSION, dump, read_archive, with_own_verdict
from autorecompute.studies.importing import import_records
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.records import read_records
from autorecompute.units import GIB, MIB
from stand_ins.archives import COMMAND, TRUSTED, take, written
from stand_ins.studies import keep_study


def test_there_and_back_is_the_same(archive, elsewhere):
    first = b"".join(archive)
    assert dump(read_records(take(written(elsewhere, [gzip.compress(first)])))) == first


CLOSE = Comparison(ratio=0.97, low=0.94, high=1.02, pairs=3, is_clear=False)
SLOWER = dataclasses.replace(CLOSE, high=0.96, is_clear=True)


@pytest.mark.parametrize(
    ("comparison", "written_as", "read_as"),
    [
        (CLOSE, Verdict.DOES_NOT_PAY, Verdict.UNDECIDED),
        (SLOWER, Verdict.RECOMPUTE_PAYS, Verdict.DOES_NOT_PAY),
        (None, Verdict.DOES_NOT_PAY, Verdict.UNDECIDED),
        (None, Verdict.RECOMPUTE_PAYS, Verdict.RECOMPUTE_PAYS),
    ],
)
def test_a_verdict_is_what_its_comparison_bears(make_result, make_detection, comparison, written_as, read_as):
    """An older version may have had another rule. One about several batches depends on all of them."""
    problem, result = Problem.of(make_detection(), MIB), make_result(verdict=written_as, comparison=comparison)
    assert with_own_verdict(result, problem).verdict is read_as
    assert with_own_verdict(result, dataclasses.replace(problem, batch=SEVERAL_BATCHES)) == result


def test_an_imported_verdict_is_held_against_its_comparison(archive, elsewhere):
    lines = change(archive, 9, verdict=Verdict.RECOMPUTE_PAYS, comparison=codec.to_plain(SLOWER))
    assert take(written(elsewhere, lines)).result().verdict is Verdict.DOES_NOT_PAY


def test_nothing_of_the_machine_travels_and_every_line_is_as_the_schema_has_it(archive):
    text = b"".join(archive).decode()
    assert "secret" not in text
    assert "GPU-1234" not in text
    assert json.loads(archive[0])["study"]["command"] == list(COMMAND.values())
    measured = json.loads(archive[1])["trial"]["measurement"]
    assert measured["message"] == "[Errno 2] No such file or directory: 'x.bin'"
    assert measured["trace"] == ['  File "train.py", line 3', "    a = 'b' / c / 'd'"]
    schema = schema_of(ARCHIVE)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    lines = [json.loads(line) for line in archive]
    for line in lines:
        validator.validate(line)
    assert {kind for line in lines for kind in line} == {next(iter(kind["properties"])) for kind in schema["oneOf"]}
    assert set(schema["$defs"]["Outcome"]["enum"]) == set(Outcome)
    for wrong in ({"trial": {}}, {"other": {}}, {**lines[1], **lines[-1]}, {"end": {"lines": "x"}}):
        assert not validator.is_valid(wrong)
    for place, changes in (
        (0, {"version": 0}),
        (1, {"measurement__held_bytes": 2**62}),
        (2, {"measurement__step_seconds": [0]}),
        (6, {"asked": [-1]}),
    ):
        assert not validator.is_valid(json.loads(changed(archive[place], **changes))), changes


def refuse(elsewhere, lines, words):
    """No trace of an import is left."""
    with pytest.raises(UsageError, match=words) as caught:
        take(written(elsewhere, lines))
    assert [path.name for path in elsewhere.iterdir()] == ["a.jsonl"]
    return str(caught.value)


def change(archive, place, **changes):
    return [*archive[:place], changed(archive[place], **changes), *archive[place + 1 :]]


def changed(line, **changes):
    ((kind, value),) = json.loads(line).items()
    for name, new in changes.items():
        *parents, last = (int(part) if part.isdecimal() else part for part in name.split("__"))
        functools.reduce(operator.getitem, parents, value)[last] = new
    return json.dumps({kind: value}).encode() + b"\n"


WRONG = {
    "nothing at all": (lambda _: [], 1, "missing"),
    "no JSON": (lambda _: [b"hello\n"], 1, "no JSON from column 1 on"),
    "blank": (lambda lines: [lines[0], b"\n", *lines[1:]], 2, "is blank"),
    "cut between lines": (lambda lines: lines[:4], 5, "cut short"),
    "cut within a line": (lambda lines: [*lines[:2], lines[2][:50]], 3, "cut off"),
    "a line lost": (lambda lines: [*lines[:5], *lines[6:]], 10, "lines are missing"),
    "a trial twice": (lambda lines: [*lines[:2], *lines[1:]], 3, "trial 0 where 1 or more"),
    "a line after the end": (lambda lines: [*lines, lines[1]], 12, "follows the end"),
    "no head": (lambda lines: lines[1:], 1, "not the first line"),
    "two answers": (lambda lines: [*lines[:-1], lines[-2], lines[-1]], 11, "second result"),
    "unknown": (lambda lines: [lines[0], b'{"pickle": 1}\n', *lines[1:]], 2, "'pickle'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named_and_nothing_is_left(archive, elsewhere, name):
    make, number, words = WRONG[name]
    assert words in refuse(elsewhere, make(archive), f"line {number} ")


EVIL = {"LD_PRELOAD": "./evil.so"}
TENSOR = "profiles__0__profile__tensors__0__"
OPERATION = "profiles__0__profile__operations__1__"
IMPLAUSIBLE = {
    "negative peak": (1, {"measurement__peak_bytes": -5}, "'measurement.peak_bytes' is -5, not from 1 to"),
    "a choice of another graph": (2, {"config": ["blocks.*/gelu:drop", "blocks.*/tanh:drop"]}, "'blocks.*/tanh:drop'"),
    "a rejected choice of another graph": (3, {"config": ["blocks.*/tanh:drop"]}, "'blocks.*/tanh:drop'"),
    "newer": (0, {"version": VERSION + 1}, f"version {VERSION + 1} of the format"),
    "another digest": (0, {"digest": "0" * 16}, "digest"),
    "no step without recompute": (7, {"profiles": []}, "without recompute"),
    "code as a size": (7, {f"{TENSOR}shape": ["__import__('os').system('touch pwned')"]}, "no value"),
    "a size over nothing": (7, {f"{TENSOR}shape": ["1/(batch - 2)"]}, "no value"),
    "too large a tensor": (7, {f"{TENSOR}shape": ["1000000000"] * 3}, "impossible size"),
    "a tensor of no operation": (7, {f"{TENSOR}first": 10_000_000}, "10000000"),
    "an operation of itself": (7, {f"{OPERATION}reads": ["x"], f"{OPERATION}makes": ["x"]}, "cannot run"),
    "plans that are none": (0, {"problem__plans": ["x"]}, "'x' is no choice"),
    "an answer nobody confirmed": (9, {"best__config": []}, "no line before it confirms"),
    "variables of a confirmed config": (4, {"environment": EVIL}, "environment' is unknown"),
    "variables of an answer": (9, {"best__environment": EVIL}, "environment' is unknown"),
}


@pytest.mark.parametrize("name", IMPLAUSIBLE)
def test_what_cannot_be_is_named(archive, elsewhere, name):
    place, changes, words = IMPLAUSIBLE[name]
    assert words in refuse(elsewhere, change(archive, place, **changes), f"line {place + 1} ")


@pytest.mark.parametrize("place", ["cut.jsonl.gz", "nothing-here", "."])
def test_a_file_that_is_no_whole_archive_is_named(archive, elsewhere, place):
    (elsewhere / "cut.jsonl.gz").write_bytes(gzip.compress(b"".join(archive))[:-40])
    with pytest.raises(UsageError, match="cannot be read"):
        take(elsewhere / place)


@pytest.mark.parametrize("name", ["../other", ".hidden", "a\nb"])
def test_a_name_leads_nowhere_else(archive, elsewhere, name):
    records = read_archive(written(elsewhere, change(archive, 0, study=name)))
    with pytest.raises(UsageError, match="cannot name a study"):
        import_records(records, records.head.study, TRUSTED, force=True)
    assert [path.name for path in elsewhere.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"best__knobs": ["evil"]}, "setting 'evil'"), ({"versions__backend": "..os"}, "training system")],
)
def test_what_this_version_does_not_have_is_refused_by_name(archive, elsewhere, changes, words):
    refuse(elsewhere, change(archive, 9, **changes), words)


@pytest.fixture
def read(archive, tmp_path, monkeypatch):
    """Reads lines after a head, packed as tightly as can be, under other limits; gives why they are refused."""

    def read(*lines, **limits):
        for name, limit in limits.items():
            monkeypatch.setattr(f"autorecompute.studies.archive.{name}", limit)
        file = tmp_path / "a.jsonl.gz"
        with gzip.open(file, "wb", compresslevel=1) as packed:
            packed.writelines([archive[0], *lines])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UsageError, match="Nothing was imported") as caught:
            read_archive(file)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
        return str(caught.value)

    return read


def line(kind, value):
    return json.dumps({kind: value}).encode() + b"\n"


@pytest.mark.parametrize("part", [b"[]", b'""'])
def test_millions_of_values_are_refused_before_they_are_made(read, part):
    values = b'{"trial": [' + (part + b",") * (2 * MOST_VALUES) + part + b"]}\n"
    assert f"line 2 brings the archive to more than {MOST_VALUES} values" in read(values)


def test_a_long_line_is_refused_before_it_is_held(read):
    assert "line 2 is longer than 32 MiB" in read(b'{"trial": "', *[bytes(MIB)] * 80)


@pytest.mark.parametrize(
    ("changes", "limits", "words"),
    [
        ({"losses": (0.5,) * 1000}, {"MOST_VALUES": 2500}, "brings the archive to more than 2500 values"),
        ({"message": "a" * MIB}, {"LARGEST_ARCHIVE": 5 * MIB // 2}, "lies beyond 2 MiB"),
        ({}, {"MOST_LINES": 3}, "is one too many"),
        ({}, {"MOST_PARAMETERS": 10}, "brings the archive to more than 10 switches of plans in its trials"),
    ],
    ids=["values", "bytes", "lines", "switches"],
)
def test_all_lines_of_an_archive_count_together(read, make_trial, changes, limits, words):
    lines = [line("trial", codec.to_plain(make_trial(number=number, **changes))) for number in range(3)]
    assert f"line 4 {words}" in read(*lines, **limits)


def test_many_steps_and_many_expressions_are_refused(archive, elsewhere):
    """Each expression takes its time to be read and worked out."""
    profiles = json.loads(archive[7])["analysis"]["profiles"] * 100
    assert "holds 100 steps, 4 is the most" in refuse(elsewhere, change(archive, 7, profiles=profiles), "line 8 ")
    size = {"element_bytes": 1, "first": 0, "last": 2}
    tensors = [{"name": f"t{n}", "shape": [f"1/((batch**16)**16 + {n})"], **size} for n in range(2000)]
    said = refuse(elsewhere, change(archive, 7, profiles__0__profile__tensors=tensors), "line 8 ")
    assert "has sizes that take more than 10000 letters to write" in said


SITES = ("*/gelu", "h.*(Block)/gelu", "h.*/gelu", "(Block)/gelu", "a b/ /gelu", "x /y/z")


def test_a_site_is_no_path(elsewhere, make_detection, make_trial):
    plans = tuple(
        Plan(choices=(Choice(site, "drop"),), label=site, occurrences=4, saving_bytes=10, saving="d0") for site in SITES
    )
    told = {"outcome": Outcome.OOM, "message": "*/gelu and h.*(Block)/gelu could not be made again"}
    trials = tuple(
        make_trial(Config.of((plan,)), number=number, description=f"{plan.label} dropped", **told)
        for number, plan in enumerate(plans)
    )
    extra = {"steps": [{"name": site} for site in SITES]}
    detection = dataclasses.replace(make_detection(), plans=plans, own_presets={}, extra=extra)
    folder = keep_study(elsewhere / "before", detection, name="first", trials=trials)
    keep_detection(folder, detection)
    file = written(elsewhere, [dump(read_records(folder))])
    records = read_archive(file)
    assert records.head.problem == Problem.of(detection, GIB)
    assert records.trials == trials
    assert records.detection.extra == extra
    assert read_records(take(file)).head.sizes.space.plans == plans
