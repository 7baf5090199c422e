import itertools

import pytest

from autorecompute.backends.ortmodule.axes import Axis, canonical_names


def make_axes(**inputs):
    return [
        Axis(alias=f"{name}_dim{place}", place=place, value=value, is_of_ids=name.startswith("ids") and len(shape) == 2)
        for name, shape in inputs.items()
        for place, value in enumerate(shape)
    ]


def test_dimensions_of_other_inputs_keep_the_name_of_the_first():
    names = canonical_names(make_axes(picture=(4, 3, 32, 32), noise=(4, 3, 32, 32)))
    assert names["noise_dim0"] == "batch"
    assert names["picture_dim1"] == names["noise_dim1"] == "picture_dim1"
    assert names["picture_dim2"] != names["picture_dim3"]


def test_the_batch_is_what_most_inputs_share():
    names = canonical_names(make_axes(ids_of_positions=(1, 128), ids=(8, 128), labels=(8,)))
    assert names["labels_dim0"] == names["ids_dim0"] == "batch"
    assert names["ids_of_positions_dim0"] == "ids_of_positions_dim0"
    assert names["ids_of_positions_dim1"] == "sequence"


def test_a_second_sequence_has_a_name_of_its_own():
    names = canonical_names(make_axes(ids=(8, 128), ids_of_labels=(8, 64), ids_of_decoder=(8, 64), ids_mask=(8, 128)))
    assert names["ids_mask_dim1"] == "sequence"
    assert names["ids_of_decoder_dim1"] == "ids_of_labels_dim1"


@pytest.mark.parametrize("order", list(itertools.permutations(["ids", "ids_of_types", "labels"])))
def test_the_order_of_token_ids_does_not_matter(order):
    shapes = {"ids": (8, 128), "ids_of_types": (8, 128), "labels": (8,)}
    names = canonical_names(make_axes(**{name: shapes[name] for name in order}))
    assert names == {
        "ids_dim0": "batch",
        "ids_dim1": "sequence",
        "ids_of_types_dim0": "batch",
        "ids_of_types_dim1": "sequence",
        "labels_dim0": "batch",
    }
