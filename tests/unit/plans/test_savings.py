"""ORT's stated savings as it writes them."""

import pytest

from autorecompute.plans.savings import evaluate, simplify

ONE = "(((((d0)*(d1)*(256)) * 4 * 1.000000)))"
OTHER = "(((((d0)*(4)*(d1)*(d1)) * 4 * 0.500000)))"
DIMS = {"d0": 32, "d1": 128}


def test_a_saving_is_evaluated_at_the_batch():
    """The product of the dimensions, the element's bytes and the share that is saved."""
    assert evaluate(ONE, DIMS) == 32 * 128 * 256 * 4
    assert evaluate(OTHER, DIMS) == 32 * 4 * 128 * 128 * 4 // 2


def test_savings_of_several_outputs_add_up():
    """A joint string is the sum of its parts."""
    assert evaluate(f"{ONE} + {OTHER}", DIMS) == evaluate(ONE, DIMS) + evaluate(OTHER, DIMS)


@pytest.mark.parametrize("dims", [{}, {"d0": 32}])
def test_an_unknown_dimension_leaves_a_saving_unknown(dims):
    """Without a dimension there is no number, and above all not 0."""
    assert evaluate(ONE, dims) is None


def test_dimensions_that_do_not_occur_change_nothing():
    """A constant saving has a value without any dimension, and spare ones are ignored."""
    assert evaluate("((((128)*(2)) * 4 * 1.000000))", {}) == evaluate("((((128)*(2)) * 4 * 1.000000))", DIMS) == 1024


def test_a_simplified_saving_keeps_its_value():
    """What is shown to people is shorter than ORT's string, keeps its names and has the same value."""
    raw = f"{ONE} + {OTHER}"
    short = simplify(raw)
    assert len(short) < len(raw)
    assert "1.0" not in short
    assert evaluate(short, DIMS) == evaluate(raw, DIMS)


@pytest.mark.parametrize("name", ["input_ids_dim0", "N_dim0", "lambda_dim0", "_dim0"])
def test_a_dimension_may_have_any_name_ort_gives_it(name):
    """A dimension's name is a name even where algebra or Python knows the word."""
    assert evaluate(f"(((({name})*(256)) * 4 * 1.000000))", {name: 32}) == 32 * 256 * 4


@pytest.mark.parametrize("name", ["batch", "sequence", "N", "S", "beta"])
def test_a_dimension_can_be_renamed(name):
    """The new name may be a word that sympy knows; the value stays."""
    renamed = simplify(ONE, {"d0": name})
    assert evaluate(renamed, {"d1": 128}) is None
    assert evaluate(renamed, {name: 32, "d1": 128}) == evaluate(ONE, DIMS)


def test_aliases_of_one_dimension_become_one():
    """Two names of ORT's for one dimension are the same to us, in whatever order they come."""
    names = dict.fromkeys(("a_dim0", "b_dim0"), "batch")
    assert simplify("(a_dim0)*(4) + (3)*(b_dim0)", names) == simplify("(b_dim0)*3 + 4*(b_dim0)", names) == "7*batch"


@pytest.mark.parametrize("raw", ["sqrt(d0)", "d0 if d1 else 3", "d0.d1", "4/(d0 - 32)", "d0 +", "batch size"])
def test_what_has_no_value_is_unknown(raw):
    """What ORT may write and nobody here can work out leaves a saving unknown, and is shown as it is."""
    assert evaluate(raw, DIMS) is None
    if raw != "4/(d0 - 32)":
        assert simplify(raw, {"d0": "batch"}) == raw
