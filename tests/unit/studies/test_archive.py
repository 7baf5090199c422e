"""Studies as files that travel: the same there and back, and nothing believed that was not checked."""

import dataclasses
import functools
import gzip
import json
import math
import operator
import resource
from pathlib import Path

import jsonschema
import pytest

from autorecompute import codec
from autorecompute.emit.handing import hand_out
from autorecompute.errors import UsageError
from autorecompute.figures import Comparison
from autorecompute.measurement import Outcome
from autorecompute.schemas import ARCHIVE, schema_of
from autorecompute.studies import Problem, list_studies
from autorecompute.studies.archive import compress, dump
from autorecompute.studies.archive_reading import read_archive, read_archive_head
from autorecompute.studies.confirmed_here import keep_check
from autorecompute.studies.importing import import_records
from autorecompute.studies.plausible import with_own_verdict
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.records import read_records
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from fake_backend.controller import PLANS_VARIABLE, plans_text
from stand_ins.archives import TRUSTED, take, written


@pytest.mark.parametrize("is_compressed", [False, True])
def test_there_and_back_is_the_same(archive, elsewhere, is_compressed):
    """An archive that was imported is exported as it was, to the byte, and again if it is packed again."""
    first = b"".join(archive)
    file = elsewhere / "bert"
    file.write_bytes(compress(first) if is_compressed else first)
    assert compress(first) == compress(first)
    imported = take(file)
    assert dump(read_records(imported)) == first


def test_an_imported_study_that_was_checked_can_be_trained_with(archive, elsewhere):
    """Its variables lead to a plans file of its own, which holds the plans."""
    folder = take(written(elsewhere, archive), "mine")
    keep_check(folder, folder.result().best)
    plans_file = folder.best / "plans.json"
    rendered = hand_out(folder, folder.result())
    assert rendered.variables == {PLANS_VARIABLE: str(plans_file)}
    assert plans_file.read_text() == plans_text(folder.result().best.config)
    assert (folder.result().study, [study.name for study in list_studies()]) == ("mine", ["mine"])


CLOSE = Comparison(ratio=0.97, low=0.94, high=1.02, pairs=3, is_clear=False)
SLOWER = dataclasses.replace(CLOSE, high=0.96, is_clear=True)


@pytest.mark.parametrize(
    ("comparison", "written_as", "read_as"),
    [
        (CLOSE, Verdict.DOES_NOT_PAY, Verdict.UNDECIDED),
        (CLOSE, Verdict.UNDECIDED, Verdict.UNDECIDED),
        (SLOWER, Verdict.RECOMPUTE_PAYS, Verdict.DOES_NOT_PAY),
        (None, Verdict.DOES_NOT_PAY, Verdict.UNDECIDED),
        (None, Verdict.RECOMPUTE_PAYS, Verdict.RECOMPUTE_PAYS),
    ],
)
def test_a_verdict_is_what_its_comparison_bears(archive, elsewhere, comparison, written_as, read_as):
    """An older version may have had another rule, and somebody may write what they like."""
    lines = [json.loads(line) for line in archive]
    told = next(line["result"] for line in lines if "result" in line)
    told |= {"verdict": written_as, "comparison": codec.to_plain(comparison)}
    folder = take(written(elsewhere, [f"{json.dumps(line)}\n".encode() for line in lines]))
    assert folder.result().verdict is read_as


def test_a_verdict_about_several_batches_is_left_as_it_is(make_result, make_detection):
    """It depends on all of them."""
    result = make_result(verdict=Verdict.DOES_NOT_PAY, comparison=CLOSE)
    problem = Problem.of(make_detection(), MIB)
    assert with_own_verdict(result, problem).verdict is Verdict.UNDECIDED
    assert with_own_verdict(result, dataclasses.replace(problem, batch=SEVERAL_BATCHES)) == result


def test_what_json_has_no_word_for_survives(archive, elsewhere):
    """A loss that is no number is none afterwards, and every line is JSON."""
    losses = read_records(take(written(elsewhere, archive))).trials[1].measurement.losses
    assert math.isnan(losses[0])
    assert losses[1:] == (2.5, math.inf)


def test_nothing_of_the_machine_travels(archive):
    """Paths are cut down to names, a card's serial number is left out, and relative values stay."""
    text = b"".join(archive).decode()
    assert "somebody" not in text
    assert "GPU-1234" not in text
    head = json.loads(archive[0])["study"]
    assert head["command"] == ["python", "train.py", "--data=data", "--bs=1/2"]


def test_every_line_is_as_the_schema_has_it(archive):
    """The published schema holds for each kind of line, and for no other."""
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


def test_the_head_takes_one_line(archive, elsewhere):
    """What an archive is about can be told without the rest of it."""
    assert read_archive_head(written(elsewhere, archive[:1])).study == "bert"


def changed(line, **changes):
    """The line with other values in its object; ``measurement__batch`` is that of its measurement."""
    ((kind, value),) = json.loads(line).items()
    for name, new in changes.items():
        *parents, last = (int(part) if part.isdecimal() else part for part in name.split("__"))
        functools.reduce(operator.getitem, parents, value)[last] = new
    return json.dumps({kind: value}).encode() + b"\n"


WRONG = {
    "nothing at all": (lambda _: [], 1, "missing"),
    "no JSON": (lambda _: [b"hello\n"], 1, "no JSON from column 1 on"),
    "blank": (lambda lines: [lines[0], b"\n", *lines[1:]], 2, "is blank"),
    "some other JSON": (lambda _: [b'{"study": {"name": "bert"}}\n'], 1, "not the first line"),
    "no object": (lambda lines: [lines[0], b"[1]\n"], 2, "no object"),
    "cut between lines": (lambda lines: lines[:4], 5, "cut short"),
    "cut within a line": (lambda lines: [*lines[:2], lines[2][:50]], 3, "cut off"),
    "a line lost": (lambda lines: [*lines[:5], *lines[6:]], 10, "lines are missing"),
    "a trial lost": (lambda lines: [lines[0], *lines[2:]], 10, "lines are missing"),
    "a trial twice": (lambda lines: [*lines[:2], *lines[1:]], 3, "trial 0 where 1 or more"),
    "a line after the end": (lambda lines: [*lines, lines[1]], 12, "follows the end"),
    "two heads": (lambda lines: [lines[0], *lines], 2, "begins another"),
    "no head": (lambda lines: lines[1:], 1, "not the first line"),
    "two answers": (lambda lines: [*lines[:-1], lines[-2], lines[-1]], 11, "second result"),
    "unknown": (lambda lines: [lines[0], b'{"pickle": 1}\n', *lines[1:]], 2, "'pickle'"),
    "newer": (lambda lines: [changed(lines[0], version=3), *lines[1:]], 1, "version 3 of the format"),
    "older": (lambda lines: [changed(lines[0], version=1), *lines[1:]], 1, "version 1 of the format"),
    "no version": (lambda lines: [changed(lines[0], version=None), *lines[1:]], 1, "version None of the format"),
    "another digest": (lambda lines: [changed(lines[0], digest="0" * 16), *lines[1:]], 1, "digest"),
    "no problem": (lambda lines: [changed(lines[0], problem=7), *lines[1:]], 1, "'problem' is 7, not an object"),
    "a trial of nothing": (
        lambda lines: [lines[0], b'{"trial": {"number": 0}}\n', *lines[2:]],
        2,
        "'config' is missing",
    ),
    "a trial of words": (
        lambda lines: [lines[0], changed(lines[1], measurement__outcome="fine")],
        2,
        "measurement.outcome",
    ),
    "a trial that is none": (
        lambda lines: [lines[0], b'{"trial": null}\n', *lines[2:]],
        2,
        "it is null, not an object",
    ),
    "a row that is none": (
        lambda lines: [lines[0], changed(lines[1], config=["rm -rf"]), *lines[2:]],
        2,
        "'config' holds what is no choice",
    ),
    "an analysis of nothing": (
        lambda lines: [*lines[:7], b'{"analysis": {}}\n', *lines[8:]],
        8,
        "'peak_bytes' is missing",
    ),
    "not a number": (lambda lines: [lines[0], b'{"trial": NaN}\n'], 2, "NaN"),
    "not text": (lambda lines: [lines[0], b'{"trial": "\xff"}\n'], 2, "no text in UTF-8"),
    "too deep": (lambda lines: [lines[0], b'{"trial": ' + b"[" * 200_000 + b"\n"], 2, "nested deeper than"),
    "too long a number": (lambda lines: [lines[0], b'{"trial": ' + b"9" * 5000 + b"}\n"], 2, "5000 digits"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named_and_nothing_is_left(archive, elsewhere, name):
    """Whatever is wrong with a file, the line is told, and there is no trace of an import."""
    make, number, words = WRONG[name]
    file = written(elsewhere, make(archive))
    with pytest.raises(UsageError, match=f"line {number} ") as caught:
        take(file)
    assert words in str(caught.value)
    assert [path.name for path in elsewhere.iterdir()] == ["a.jsonl"]


TENSOR = "profiles__0__profile__tensors__0__"
OPERATION = "profiles__0__profile__operations__1__"
IMPLAUSIBLE = {
    "negative peak": (1, {"measurement__peak_bytes": -5}, "'measurement.peak_bytes' is -5, not from 1 to"),
    "negative steps": (1, {"measurement__step_seconds": [-1.0]}, "step_seconds"),
    "steps of no time": (2, {"measurement__step_seconds": [0, 0]}, "step_seconds"),
    "steps of no length": (1, {"measurement__step_seconds": ["nan"]}, "step_seconds"),
    "no samples": (1, {"measurement__samples": 0}, "samples"),
    "batch of none": (1, {"measurement__batch": 0}, "batch"),
    "too many bytes": (1, {"measurement__held_bytes": 2**62}, "held_bytes"),
    "a reference of no time": (2, {"reference_seconds": 0}, "reference_seconds"),
    "a choice of another graph": (2, {"config": ["blocks.*/gelu:drop", "blocks.*/tanh:drop"]}, "'blocks.*/tanh:drop'"),
    "a rejected choice of another graph": (3, {"config": ["blocks.*/tanh:drop"]}, "'blocks.*/tanh:drop'"),
    "version of none": (0, {"version": 0}, "version 0"),
    "version of truth": (0, {"version": True}, "version True"),
    "no limit": (0, {"problem__limit_bytes": 0}, "problem.limit_bytes"),
    "a race of junk": (5, {"standings": [{"junk": 1}]}, "RaceRecord"),
    "a race without steps": (5, {"standings__0__rounds__0__step_seconds": [0]}, "step_seconds"),
    "batches below none": (6, {"asked": [-1]}, "asked"),
    "an analysis without config": (7, {"profiles": [{"profile": {}}]}, "Analysis"),
    "no step without recompute": (7, {"profiles": []}, "without recompute"),
    "code as a size": (7, {f"{TENSOR}shape": ["__import__('os').system('touch pwned')"]}, "no value"),
    "a dimension of nothing": (7, {"profiles__0__profile__dims": {"batch": 0}}, "dims['batch']' is 0, not from 1"),
    "a size for ever": (7, {f"{TENSOR}shape": ["9**9**9**9"]}, "no value"),
    "a size of what is not there": (7, {f"{TENSOR}shape": ["sequence"]}, "no value"),
    "a size over nothing": (7, {f"{TENSOR}shape": ["1/(batch - 2)"]}, "no value"),
    "a size below nothing": (7, {f"{TENSOR}shape": ["batch - 9"]}, "impossible size"),
    "too large a tensor": (7, {f"{TENSOR}shape": ["1000000000"] * 3}, "impossible size"),
    "a tensor of no operation": (7, {f"{TENSOR}first": 10_000_000}, "10000000"),
    "a tensor that ends first": (7, {f"{TENSOR}last": -1}, "tensors[0].last' is -1"),
    "no forward pass": (7, {"profiles__0__profile__backward": 9}, "9 of them"),
    "an operation of itself": (7, {f"{OPERATION}reads": ["x"], f"{OPERATION}makes": ["x"]}, "cannot run"),
    "an operation that shares nothing": (7, {f"{OPERATION}shares": True}, "cannot run"),
    "a tie with nobody": (
        9,
        {"best__ranking": {"end": "tie", "rounds": 4, "confidence": 0.99, "rivals": []}},
        "ended as tie with nobody else left",
    ),
    "a step for ever": (2, {"measurement__step_seconds": [2.0**59]}, "'measurement.step_seconds[0]' is 5.7646"),
    "no step times": (2, {"measurement__step_seconds": []}, "ok without a peak, samples or step times"),
    "a round without steps": (5, {"standings__0__rounds__0__step_seconds": []}, "is a round without a timed step"),
    "a reason of half a character": (2, {"reason": "\ud800"}, "'reason' holds half a character"),
    "a command of half a character": (0, {"command": ["\udfff"]}, "'command[0]' holds half a character"),
    "a name of half a character": (0, {"study": "\ud83d"}, "'study' holds half a character"),
    "a tiny batch": (2, {"measurement__batch": 1e-320}, "'measurement.batch' is 1e-320, not a whole number"),
    "no versions": (8, {"versions": {}}, "has no version of backend"),
    "plans that are none": (0, {"problem__plans": ["x"]}, "'x' is no choice"),
    "a negative answer": (9, {"trials": -3}, "'trials' is -3"),
    "an answer nobody confirmed": (9, {"best__config": []}, "no line before it confirms"),
}


@pytest.mark.parametrize("name", IMPLAUSIBLE)
def test_what_cannot_have_been_measured_is_named(archive, elsewhere, name):
    """Figures, rows, steps and answers are held against what can be before anything is made of them."""
    place, changes, words = IMPLAUSIBLE[name]
    file = written(elsewhere, [*archive[:place], changed(archive[place], **changes), *archive[place + 1 :]])
    with pytest.raises(UsageError, match=f"line {place + 1} ") as caught:
        take(file)
    assert words in str(caught.value)
    assert [path.name for path in elsewhere.iterdir()] == ["a.jsonl"]


def test_the_schema_knows_what_cannot_be(archive):
    """The published schema refuses the same figures."""
    validator = jsonschema.Draft202012Validator(schema_of(ARCHIVE))
    for place, changes, words in IMPLAUSIBLE.values():
        if "_" in words or words in {"asked", "batch", "samples", "version 0", "'trials' is -3"}:
            assert not validator.is_valid(json.loads(changed(archive[place], **changes))), words


def test_a_file_that_was_cut_while_packed_is_named(archive, elsewhere):
    """A compressed archive that ends too early says so."""
    file = elsewhere / "a.jsonl.gz"
    file.write_bytes(compress(b"".join(archive))[:-40])
    with pytest.raises(UsageError, match="cannot be read"):
        take(file)


@pytest.mark.parametrize("place", ["nothing-here", "."])
def test_what_is_no_file_is_named(elsewhere, place):
    """A path that leads nowhere, or to a folder, is no archive."""
    with pytest.raises(UsageError, match="cannot be read"):
        take(elsewhere / place)


def test_a_bomb_does_not_fill_the_memory(archive, elsewhere):
    """A line that unpacks to far more than an archive takes is refused before it is held."""
    file = elsewhere / "bomb.gz"
    with gzip.open(file, "wb") as bomb:
        bomb.write(archive[0])
        for _ in range(80):
            bomb.write(bytes(MIB))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="line 2 is longer than"):
        take(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.parametrize("name", ["../other", "/tmp/other", ".hidden", "", "a/b", "x" * 300, "a\nb", "\x1b[31m"])
def test_a_name_leads_nowhere_else(archive, elsewhere, name):
    """An archive cannot choose a folder outside of the studies."""
    file = written(elsewhere, [changed(archive[0], study=name), *archive[1:]])
    records = read_archive(file)
    with pytest.raises(UsageError, match="cannot name a study"):
        import_records(records, records.head.study, TRUSTED, force=True)
    assert [path.name for path in elsewhere.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    "variables",
    [
        {"LD_PRELOAD": "./evil.so"},
        {"FAKE_FUSED": "1"},
        {"FAKE_PLANS": "plans.json"},
        {"FAKE_PLANS": "/etc/passwd"},
        {"FAKE_MODE": "whole"},
        {"X\0Y": "\0"},
        {},
    ],
)
@pytest.mark.parametrize("place", [4, -2])
def test_variables_in_an_archive_are_refused_by_name(archive, elsewhere, variables, place):
    """What will be set where somebody trains is not for an archive to say, in no line that has a config."""
    (kind, record) = next(iter(json.loads(archive[place]).items()))
    best = record["best"] if kind == "result" else record
    best["environment"] = variables
    lines = [*archive]
    lines[place] = json.dumps({kind: record}).encode() + b"\n"
    with pytest.raises(UsageError, match=r"environment' is unknown"):
        take(written(elsewhere, lines))
    assert not Path("studies").exists()


def test_a_setting_that_is_not_known_is_refused_by_name(archive, elsewhere):
    """An archive may turn on what this version can, and nothing else."""
    best = {**json.loads(archive[-2])["result"]["best"], "knobs": ["fused_kernels", "evil"]}
    with pytest.raises(UsageError, match="setting 'evil'"):
        take(written(elsewhere, [*archive[:-2], changed(archive[-2], best=best), archive[-1]]))
    assert not Path("studies").exists()


def test_another_training_system_is_refused(archive, elsewhere):
    """The name of a backend is none of the archive's business."""
    versions = {**json.loads(archive[-2])["result"]["versions"], "backend": "..os"}
    file = written(elsewhere, [*archive[:-2], changed(archive[-2], versions=versions), archive[-1]])
    with pytest.raises(UsageError, match="training system"):
        take(file)
