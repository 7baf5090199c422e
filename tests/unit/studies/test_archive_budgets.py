"""An archive costs no more than a study of any size does, whatever it holds, and says where that ends."""

import gzip
import json
import resource
import time

import pytest

from autorecompute import codec
from autorecompute.errors import UsageError
from autorecompute.jsontext import LARGEST_TEXT, MOST_VALUES
from autorecompute.plans import Config, Space
from autorecompute.plans.plan import plan_of_id
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.archive import dump
from autorecompute.studies.archive_reading import LARGEST_ARCHIVE, MOST_LINES, MOST_PARAMETERS, read_archive
from autorecompute.studies.problem import MOST_PLANS, Head
from autorecompute.studies.records import StudyRecords
from autorecompute.units import GIB, MIB

LONG_SECONDS = 20


@pytest.fixture
def read(tmp_path, make_detection):
    """Reads an archive of these lines after the first, packed as tightly as can be; gives why it is refused."""

    def read(*lines, plans=None):
        detection = make_detection()
        if plans is not None:
            detection = make_detection(Space(plans=tuple(plan_of_id(text) for text in plans)))
        problem, sizes = Problem.of(detection, GIB), Sizes.of(detection)
        head = Head(study="bert", created="", autorecompute="1", command=("a",), problem=problem, sizes=sizes)
        file = tmp_path / "a.jsonl.gz"
        with gzip.open(file, "wb") as packed:
            packed.write(dump(StudyRecords(head=head)).splitlines(keepends=True)[0])
            for line in lines:
                packed.write(line)
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UsageError, match="Nothing was imported") as caught:
            read_archive(file)
        assert time.process_time() - began < LONG_SECONDS
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024  # KiB
        return str(caught.value)

    return read


def line(kind, value):
    """A line of an archive."""
    return json.dumps({kind: value}).encode() + b"\n"


@pytest.mark.parametrize("part", [b"[]", b"0.5", b"{}", b'""'])
def test_millions_of_values_are_refused(read, part):
    """They pack into some kilobytes, and are refused before they are made."""
    values = b'{"trial": [' + (part + b",") * (2 * MOST_VALUES) + part + b"]}\n"
    assert f"line 2 brings the archive to more than {MOST_VALUES} values" in read(values)


def test_values_of_all_lines_count_together(read, make_trial):
    """Lines that each hold less than allowed are refused where that is too much of all of them."""
    text = line("trial", codec.to_plain(make_trial(number=7, losses=(0.5,)))).replace(
        b"[0.5]", b"[" + b"0," * 90_000 + b"0]"
    )
    lines = [text.replace(b'"number": 7', b'"number": %d' % number) for number in range(MOST_VALUES // 90_000 + 1)]
    assert f"brings the archive to more than {MOST_VALUES} values" in read(*lines)


def test_a_long_line_is_refused(read):
    """A text of gigabytes is one value."""
    assert "line 2 is longer than 32 MiB" in read(b'{"trial": "' + bytes(LARGEST_TEXT))


def test_a_long_archive_is_refused(read, make_trial):
    """So many bytes in all, however they are divided."""
    lines = [
        line("trial", codec.to_plain(make_trial(number=number, message="a" * MIB)))
        for number in range(LARGEST_ARCHIVE // MIB)
    ]
    assert f"lies beyond {LARGEST_ARCHIVE // MIB} MiB" in read(*lines)


def test_many_lines_are_refused(read, make_trial):
    """Each trial takes its time to be stored."""
    lines = (line("trial", codec.to_plain(make_trial(number=number))) for number in range(MOST_LINES))
    assert f"line {MOST_LINES + 1} is one too many" in read(*lines)


def test_many_switches_are_refused(read, make_trial):
    """Each plan of each trial is a row of the database."""
    plans = tuple(f"Op{number}+:1" for number in range(MOST_PLANS))
    count = MOST_PARAMETERS // MOST_PLANS + 1
    lines = [line("trial", codec.to_plain(make_trial(number=number))) for number in range(count)]
    words = f"line {count + 1} brings the archive to more than {MOST_PARAMETERS} switches of plans in its trials"
    assert words in read(*lines, plans=plans)


def test_many_losses_are_refused(read, make_trial):
    """A trial has no million steps."""
    plain = codec.to_plain(make_trial(losses=(0.5,) * 1_000_000))
    assert "'measurement.losses' has 1000000 entries, 100000 is the most" in read(line("trial", plain))


@pytest.fixture
def analysis(make_step):
    """A line of a step with tensors of these shapes."""

    def make(*shapes):
        tensors = [(f"t{number}", 0, 2, *shape) for number, shape in enumerate(shapes)]
        profile = codec.to_plain(make_step("flb", ("t", 0, 2, "8")))
        profile["tensors"] = [
            {"name": name, "shape": shape, "element_bytes": 1, "first": first, "last": last}
            for name, first, last, *shape in tensors
        ]
        profiled = {"config": codec.to_plain(Config()), "profile": profile}
        return line("analysis", {"peak_bytes": 9, "held_bytes": 5, "profiles": [profiled]})

    return make


def test_a_shape_of_many_products_is_refused(read, analysis):
    """Eighty thousand numbers of nineteen digits would be multiplied for hours."""
    assert "of 80000 dimensions" in read(analysis(["1000000000000000000"] * 80_000))


def test_many_expressions_are_refused(read, analysis):
    """Each of them takes its time to be read and worked out."""
    shapes = ([f"1/((batch**16)**16 + {number})"] for number in range(50_000))
    assert "has sizes that take more than 10000 letters to write" in read(analysis(*shapes))


def test_many_steps_are_refused(read, analysis):
    """Two are profiled."""
    plain = json.loads(analysis(["batch"]))["analysis"]
    plain["profiles"] *= 100
    assert "holds 100 steps, 4 is the most" in read(line("analysis", plain))
