"""Names for symbolic dimensions that are the same in every run."""

import itertools

import pytest

from autorecompute.backends.ortmodule.axes import Axis, canonical_names


def make_axes(**inputs):
    """The axes of inputs, each given as its shape; names of token ids begin with ``ids``."""
    return [
        Axis(alias=f"{name}_dim{place}", place=place, value=value, is_of_ids=name.startswith("ids") and len(shape) == 2)
        for name, shape in inputs.items()
        for place, value in enumerate(shape)
    ]


def test_inputs_of_token_ids_share_batch_and_sequence():
    """Every alias of the shared dimensions has the one name."""
    names = canonical_names(make_axes(ids=(8, 128), ids_of_types=(8, 128), mask=(8, 128)))
    assert set(names.values()) == {"batch", "sequence"}
    assert names["mask_dim1"] == "sequence"


def test_dimensions_of_other_inputs_keep_the_name_of_the_first():
    """A picture has no sequence; what a second input shares with it has the first one's names."""
    names = canonical_names(make_axes(picture=(4, 3, 32, 32), noise=(4, 3, 32, 32)))
    assert names["noise_dim0"] == "batch"
    assert names["picture_dim1"] == names["noise_dim1"] == "picture_dim1"
    assert names["picture_dim2"] != names["picture_dim3"]


def test_the_batch_is_what_most_inputs_share():
    """An input of one sample, such as positions, does not make the batch."""
    names = canonical_names(make_axes(ids_of_positions=(1, 128), ids=(8, 128), labels=(8,)))
    assert names["labels_dim0"] == names["ids_dim0"] == "batch"
    assert names["ids_of_positions_dim0"] == "ids_of_positions_dim0"
    assert names["ids_of_positions_dim1"] == "sequence"


def test_a_second_sequence_has_a_name_of_its_own():
    """A decoder's shorter sequence is no alias of the encoder's."""
    names = canonical_names(make_axes(ids=(8, 128), ids_of_labels=(8, 64), ids_of_decoder=(8, 64), ids_mask=(8, 128)))
    assert names["ids_mask_dim1"] == "sequence"
    assert names["ids_of_decoder_dim1"] == "ids_of_labels_dim1"


@pytest.mark.parametrize("order", list(itertools.permutations(["ids", "ids_of_types", "labels"])))
def test_the_order_of_token_ids_does_not_matter(order):
    """Shared dimensions have the same names however the inputs are ordered."""
    shapes = {"ids": (8, 128), "ids_of_types": (8, 128), "labels": (8,)}
    names = canonical_names(make_axes(**{name: shapes[name] for name in order}))
    assert names == {
        "ids_dim0": "batch",
        "ids_dim1": "sequence",
        "ids_of_types_dim0": "batch",
        "ids_of_types_dim1": "sequence",
        "labels_dim0": "batch",
    }


def test_a_model_without_symbolic_dimensions_has_no_names():
    """Nothing to name is no error."""
    assert canonical_names([]) == {}
