"""JSON is read within bounds, whoever wrote it, and what is refused is said."""

import json
import math
import resource

import pytest

from autorecompute import jsontext
from autorecompute.jsontext import DEEPEST, LARGEST_TEXT, MOST_VALUES, UnreadableError, parse, read_file

MIB_IN_KIB = 1024


@pytest.mark.parametrize("plain", [None, True, 0, -1.5, "é\n", [1, [2]], {"a": {"b": []}}, 2**63 - 1, -(2**63)])
def test_what_is_written_is_read(plain):
    """Every kind of value comes back as it was."""
    assert parse(jsontext.write(plain).encode()) == plain


def test_a_number_that_is_not_finite_is_written_as_a_word():
    """JSON has none for it: every reader of JSON can read what is written."""
    written = jsontext.write({"losses": (math.nan, math.inf, -math.inf, 1.0)})
    assert json.loads(written, parse_constant=pytest.fail) == {"losses": ["nan", "inf", "-inf", 1.0]}


REFUSED = {
    "nothing": (b"", "no JSON from column 1 on"),
    "words": (b"hello", "no JSON from column 1 on"),
    "a second line that is wrong": (b"[1,\n2 3]", "no JSON from line 2, column 3 on"),
    "a cut text": (b'{"a": [1, 2', "no JSON"),
    "bytes": (b'"\xff"', "no text in UTF-8"),
    "UTF-16": ('"a"'.encode("utf-16"), "no text in UTF-8"),
    "NaN": (b"[NaN]", "NaN, which is no JSON"),
    "infinity": (b"[-Infinity]", "-Infinity, which is no JSON"),
    "a long whole number": (b"[" + b"9" * 400 + b"]", "400 digits"),
    "a number beyond a float": (b"[1e400]", "1e400, which is too large"),
    "lists in lists": (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), f"nested deeper than {DEEPEST}"),
    "a hundred thousand brackets": (b"[" * 100_000 + b"]" * 100_000, f"nested deeper than {DEEPEST}"),
    "a hundred thousand objects": (b'{"a":' * 100_000, f"nested deeper than {DEEPEST}"),
    "many values": (b"[" + b"0," * MOST_VALUES + b"0]", f"more than {MOST_VALUES} values"),
    "a large text": (b'"' + b"a" * LARGEST_TEXT + b'"', "larger than 32 MiB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_json_of_ours_is_refused(name, tmp_path):
    """A text and a file of it are refused for the same reason, in words."""
    text, words = REFUSED[name]
    with pytest.raises(UnreadableError, match=words):
        parse(text)
    file = tmp_path / "file.json"
    file.write_bytes(text)
    with pytest.raises(UnreadableError, match=words):
        read_file(file)


def test_as_deep_as_allowed_is_read():
    """The bound is on what is beyond it."""
    assert parse(b"[" * DEEPEST + b"]" * DEEPEST) is not None


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"",'])
def test_refusing_many_values_takes_no_memory(part):
    """Two bytes of text are sixty in memory: they are counted before they are made."""
    text = b"[" + part * (LARGEST_TEXT // len(part) - 1) + b"0]"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableError, match="values"):
        parse(text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * MIB_IN_KIB
