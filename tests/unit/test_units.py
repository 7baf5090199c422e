import pytest

from autorecompute.errors import UsageError
from autorecompute.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bytes,
    format_count,
    format_rate,
    format_samples,
    format_seconds,
    parse_bytes,
    parse_seconds,
    printable,
)


@pytest.mark.parametrize(
    ("parse", "text", "number"),
    [
        (parse_bytes, "40 gib", 40 * GIB),
        (parse_bytes, " 1.5GiB ", 1536 * MIB),
        (parse_bytes, "16GB", 16 * 10**9),
        (parse_bytes, "1kb", 1000),
        (parse_bytes, "512", 512),
        (parse_bytes, "24G", 24 * GIB),
        (parse_bytes, "8m", 8 * MIB),
        *((parse_seconds, *typed) for typed in (("90", 90), ("0.5", 0.5), ("30m", 1800), ("2 H", 7200))),
        *((parse_seconds, *typed) for typed in (("1h 30m", 5400), ("1h5s", 3605))),
    ],
)
def test_an_amount_of_memory_or_time_is_read(parse, text, number):
    assert parse(text) == number


NO_MEMORY = ("40 gigs", "", " ", "GiB", "-1GiB", "0", "0GiB", "0.1b", "1e9", "nan", "inf", "1GiB 2", "9" * 400)
NO_TIME = ("", "soon", "-5m", "30 min", "5d", "m", "1h30", "30s1m", "1.2.3")


@pytest.mark.parametrize(
    ("parse", "text", "example"),
    [*((parse_bytes, text, "40GiB") for text in NO_MEMORY), *((parse_seconds, text, "30m") for text in NO_TIME)],
)
def test_what_is_no_amount_is_refused_with_an_example(parse, text, example):
    with pytest.raises(UsageError, match=rf"'{text}'.*{example}"):
        parse(text)


@pytest.mark.parametrize("number_of_bytes", [MIB, 735 * MIB, GIB, 5 * GIB // 4, 40 * GIB, 2048 * GIB])
def test_what_is_printed_can_be_typed(number_of_bytes):
    assert parse_bytes(format_bytes(number_of_bytes)) == number_of_bytes


def test_memory_and_time_are_printed_in_the_unit_that_suits_them():
    sizes = (1.254 * GIB, GIB - MIB, -2 * GIB, 0, 1.5 * TIB, -12 * KIB, None)
    printed = ["1.25 GiB", "1023 MiB", "-2.00 GiB", "0 MiB", "1.50 TiB", "-12 KiB", "-"]
    assert list(map(format_bytes, sizes)) == printed
    printed = ["350 ms", "12.4 s", "4 min 05 s", "2 min 00 s", "-"]
    assert list(map(format_seconds, (0.35, 12.41, 245, 119.7, None))) == printed


@pytest.mark.parametrize(
    ("speed", "text"), [(15924.44, "15924.4"), (51.25, "51.2"), (9.996, "10.0"), (8.3, "8.30"), (1 / 1100, "0.000909")]
)
def test_a_slow_training_has_a_speed(speed, text):
    assert format_samples(speed) == text
    assert format_rate(speed) == f"{text} samples/s"
    assert format_samples(None) == format_rate(None) == "-"


@pytest.mark.parametrize(("number", "text"), [(0, "0 trials"), (1, "1 trial"), (2, "2 trials")])
def test_one_is_no_plural(number, text):
    assert format_count(number, "trial") == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J\x7f\r\t", "\\x9b2J\\x7f\\r\\t"),
        ("a\u202eb", "a\\u202eb"),
        ("a\udcc2\udc9bb", "a\\x9bb"),
        ("a\udce2\udc80\udcaeb\udcff", "a\\u202eb\udcff"),
        ("ü\n█ 日本", "ü\n█ 日本"),
    ],
)
def test_what_a_terminal_obeys_is_written_out(text, shown):
    assert printable(text) == shown
