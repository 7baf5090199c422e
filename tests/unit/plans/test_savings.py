from dataclasses import replace
from fractions import Fraction

import pytest

from autorecompute.plans.savings import NEGLIGIBLE_BYTES, evaluate, explain_worthless, read, simplify
from stand_ins.plans import plan_of_id

ONE = "(((((d0)*(d1)*(256)) * 4 * 1.000000)))"
OTHER = "(((((d0)*(4)*(d1)*(d1)) * 4 * 0.500000)))"
DIMS = {"d0": 32, "d1": 128}


@pytest.mark.parametrize("dims", [{}, {"d0": 32}])
def test_an_unknown_dimension_leaves_a_saving_unknown(dims):
    """Without a dimension there is no number, and above all not 0."""
    assert evaluate(ONE, dims) is None


def test_savings_add_up_and_keep_their_value_when_simplified_and_aliases_of_one_dimension_become_one():
    raw = f"{ONE} + {OTHER}"
    short = simplify(raw)
    assert len(short) < len(raw)
    assert "1.0" not in short
    assert evaluate(short, DIMS) == evaluate(raw, DIMS) == 32 * 128 * 256 * 4 + 32 * 4 * 128 * 128 * 4 // 2
    names = dict.fromkeys(("a_dim0", "b_dim0"), "batch")
    assert simplify("(a_dim0)*(4) + (3)*(b_dim0)", names) == simplify("(b_dim0)*3 + 4*(b_dim0)", names) == "7*batch"


@pytest.mark.parametrize("name", ["batch", "sequence", "N", "S", "beta", "N_dim0", "lambda_dim0", "_dim0"])
def test_a_dimension_can_be_renamed(name):
    """A dimension's name is a name even where algebra or Python knows the word."""
    renamed = simplify(ONE, {"d0": name})
    assert evaluate(renamed, {"d1": 128}) is None
    assert evaluate(renamed, {name: 32, "d1": 128}) == evaluate(ONE, DIMS)


@pytest.mark.parametrize("raw", ["sqrt(d0)", "d0 if d1 else 3", "d0.d1", "d0 +", "batch size"])
def test_what_cannot_be_read_is_unknown_and_shown_as_it_is(raw):
    assert evaluate(raw, DIMS) is None
    assert evaluate("4/(d0 - 32)", DIMS) is None
    assert simplify(raw, {"d0": "batch"}) == raw


def make_plans(*savings):
    return [replace(plan_of_id(f"h.{number}:drop"), saving=saving) for number, saving in enumerate(savings)]


@pytest.mark.parametrize(("savings", "why"), [((), "no plan"), (("8*batch", "24*batch"), "save 1,024 bytes")])
def test_a_graph_without_plans_or_with_those_that_save_next_to_nothing_is_explained(savings, why):
    text = explain_worthless(make_plans(*savings), {"batch": 32})
    assert why in text
    assert "smaller batch" in text


@pytest.mark.parametrize(
    "savings", [(str(NEGLIGIBLE_BYTES),), ("8", f"{NEGLIGIBLE_BYTES // 32}*batch"), ("8", "4*empty_dim_param1")]
)
def test_plans_that_may_be_worth_it_are_left_to_speak(savings):
    assert explain_worthless(make_plans(*savings), {"batch": 32}) == ""


SIZES = {"batch": 7, "sequence": 128}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*batch*sequence", 1792),
        ("-batch + +sequence - 1", 120),
        ("sequence/3", Fraction(128, 3)),
        ("floor(sequence/3)", 42),
        ("ceiling(sequence/3)/2", Fraction(43, 2)),
        ("sequence//batch", 18),
        ("Mod(sequence, batch) + sequence % 5", 5),
        ("Max(batch, sequence - 200, 3)*Min(2, batch)", 14),
        ("(batch - 1)**2 * sequence**-1", Fraction(36, 128)),
        ("(((batch)*(256)) * 4 * 0.500000)", 3584),
    ],
)
def test_arithmetic_is_worked_out(text, value):
    for same in (text, simplify(text)):
        assert evaluate(f"4608*({same})", SIZES) == 4608 * value


SYSTEM = "Symbol.__new__.__globals__['__builtins__']['__import__']('os').system('touch pwned')"


@pytest.mark.parametrize(
    "text",
    [
        *(SYSTEM, "__import__('os').system('touch pwned')", "floor(open('pwned', 'w'))"),
        *("(lambda: open('pwned', 'w'))()", "[open('pwned', 'w') for x in (1,)]", "floor(*[1])", "floor(value=1)"),
        *("floor(1, 2)", "sqrt(4)", "Max()", "'a'*9", "True", "1j", "1 << 40", "a.b", "a[0]", "a == b", "a; b"),
        *("a := 3", "", "\0", "\ud800"),
        # What would take forever.
        *("9**9**9**9", "(((9**16)**16)**16)**16", "2**batch", "2**-99", "9" * 30, "9" * 5000, "1e999"),
        *("-" * 9000 + "1", "(" * 150 + "1" + ")" * 150 + "+1" * 2000, "a" + ".a" * 4000, "1" + "+1" * 400),
        "1" * 20_000,
    ],
    ids=lambda text: text[:12],
)
def test_nothing_else_is_read(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"expression|exponent"):
        read(text)
    assert evaluate(text, {**SIZES, text: 1}) is None
    assert list(tmp_path.iterdir()) == []
