import collections
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from autorecompute.backends.ortmodule.controller import COMPROMISE, IGNORING_LAYERS, RECOMPUTE, WITHIN_LAYERS
from autorecompute.backends.ortmodule.detection import probe_plans, read_clusters, read_dims
from autorecompute.plans.savings import evaluate

# What ONNX Runtime answered about two small models: see benchmarks/record_plans.py.
RECORDED = Path(__file__).parent / "recorded"
VERSIONS = ("1.17.3", "1.18.0", "1.19.2")
DIMS = {"batch": 4, "sequence": 16}


class Answers:
    """One recording, in the shape of ORT's objects."""

    def __init__(self, model, version, *, has_table=True):
        recorded = json.loads((RECORDED / f"{model}-{version}.json").read_text())
        inputs = [_make_input(name, **described) for name, described in recorded["inputs"].items()]
        self.names, self.dims = read_dims(recorded["dims"], SimpleNamespace(input=inputs))
        answers = recorded["answers"]
        if not has_table:
            answers = {probe: ["another table", plans] for probe, (_, plans) in answers.items()}
        if version < "1.19":
            self.get_serialized_ortmodule_memory_stat = lambda _config, probe: answers[probe]
        else:
            self.get_serialized_ortmodule_memory_stat = lambda _config, probe, _table: answers[probe]

    def probe(self, probe=IGNORING_LAYERS):
        plans, clusters = probe_plans(self, probe, self.names, self.dims)
        return {plan.id: plan for plan in plans}, clusters


def _make_input(name, element_type, rank):
    tensor = SimpleNamespace(elem_type=element_type, shape=SimpleNamespace(dim=[None] * rank))
    return SimpleNamespace(name=name, type=SimpleNamespace(tensor_type=tensor))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", ["bert", "casting"])
@pytest.mark.parametrize("probe", [IGNORING_LAYERS, WITHIN_LAYERS])
def test_the_table_covers_every_plan_with_one_row_for_equal_nodes(model, version, probe):
    plans, clusters = Answers(model, version).probe(probe)
    offered = collections.Counter()
    for cluster in clusters:
        for way in cluster.alternatives:
            offered[str(way.choice)] += cluster.occurrences
    assert offered == {key: plan.occurrences for key, plan in plans.items()} != {}
    kinds = [str([(way.choice, way.activations) for way in cluster.alternatives]) for cluster in clusters]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("version", VERSIONS)
def test_dimensions_have_names_that_do_not_vary(version):
    plans, clusters = Answers("bert", version).probe()
    assert set(Answers("bert", version).names.values()) == {"batch", "sequence"}
    assert plans["FusedMatMul+Add+:1"].saving == "640*batch*sequence"
    assert ("batch", "2", "sequence", "16") in {
        activation.shape for cluster in clusters for way in cluster.alternatives for activation in way.activations
    }


@pytest.mark.parametrize(
    ("version", "names"), [("1.17.3", set()), ("1.18.0", set()), ("1.19.2", {"LayerNormalization+:1", "Dropout+:1"})]
)
def test_a_node_that_keeps_several_outputs_saves_all_of_them(version, names):
    """ORT 1.19 states one output alone, which stays beside what was corrected."""
    plans, clusters = Answers("bert", version).probe()
    assert {key for key, plan in plans.items() if plan.stated is not None} == names
    for key in names:
        assert plans[key].saving_bytes > evaluate(plans[key].stated, DIMS)
    kept = {len(way.activations) for cluster in clusters for way in cluster.alternatives}
    assert max(kept) == (3 if names else 1)


@pytest.mark.parametrize("version", ["1.18.0", "1.19.2"])
def test_options_of_one_node_are_numbered(version):
    _, clusters = Answers("casting", version).probe()
    (both,) = [cluster for cluster in clusters if len(cluster.alternatives) > 1]
    whole, part = both.alternatives
    assert (whole.choice.option, part.choice.option) == (RECOMPUTE, COMPROMISE)
    assert [way.activations[0].saved_percent for way in both.alternatives] == [100, 75]
    assert part.activations[0].saved_bytes == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_reuse_is_counted(version):
    _, clusters = Answers("casting", version).probe()
    reuses = {
        way.choice.site: way.activations[0].reuse_frequency for cluster in clusters for way in cluster.alternatives
    }
    assert reuses["Gelu+Mul+Softmax+"] == 1
    assert reuses["Mul+"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_that_cannot_be_read_leaves_the_plans(version):
    plans, clusters = Answers("bert", version, has_table=False).probe()
    assert clusters == ()
    assert plans.keys() == Answers("bert", version).probe()[0].keys()
    assert plans["FusedMatMul+Add+:1"].saving == "640*batch*sequence"


def test_shapes_of_the_first_tables_are_read():
    table = """
|2      |For each row options are mutually exclusive, only one of them can be enabled.
|       |>>Option 1     : RecomputeWithCompromise subgraph Cast+
|       |  Stashed Activations:
|       |   - ReuseFreq :  Output 0(2),
|       |   - Output 0  : [ids_dim0 x ids_dim1 - 1 x 32 x ], byte/elem: 8, 87% saved
"""
    (cluster,) = read_clusters(table, {"ids_dim0": "batch", "ids_dim1": "sequence"})
    (activation,) = cluster.alternatives[0].activations
    assert activation.shape == ("batch", "sequence - 1", "32")
    assert (activation.saved_bytes, activation.saved_percent, activation.reuse_frequency) == (7, 87.5, 2)
    assert evaluate(activation.saving, DIMS) == 7 * 4 * 15 * 32


def names_of(**shapes):
    """The names of the dimensions of inputs, of which those that begin with ids hold whole numbers."""
    inputs = [_make_input(name, 7 if name.startswith("ids") else 1, len(shape)) for name, shape in shapes.items()]
    sizes = {f"{name}_dim{place}": size for name, shape in shapes.items() for place, size in enumerate(shape)}
    return read_dims(sizes, SimpleNamespace(input=inputs))[0]


def test_dimensions_are_named_by_what_most_inputs_share_and_by_the_first_of_them():
    names = names_of(picture=(4, 3, 32, 32), noise=(4, 3, 32, 32))
    assert names["noise_dim0"] == "batch"
    assert names["picture_dim1"] == names["noise_dim1"] == "picture_dim1"
    assert names["picture_dim2"] != names["picture_dim3"]
    names = names_of(ids_of_positions=(1, 128), ids=(8, 128), labels=(8,))
    assert names["labels_dim0"] == names["ids_dim0"] == "batch"
    assert names["ids_of_positions_dim0"] == "ids_of_positions_dim0"
    assert names["ids_of_positions_dim1"] == "sequence"
    names = names_of(ids=(8, 128), ids_of_labels=(8, 64), ids_of_decoder=(8, 64), ids_mask=(8, 128))
    assert names["ids_mask_dim1"] == "sequence"
    assert names["ids_of_decoder_dim1"] == "ids_of_labels_dim1"


@pytest.mark.parametrize("order", list(itertools.permutations(["ids", "ids_of_types", "labels"])))
def test_the_order_of_token_ids_does_not_matter(order):
    shapes = {"ids": (8, 128), "ids_of_types": (8, 128), "labels": (8,)}
    names = names_of(**{name: shapes[name] for name in order})
    assert names == {
        "ids_dim0": "batch",
        "ids_dim1": "sequence",
        "ids_of_types_dim0": "batch",
        "ids_of_types_dim1": "sequence",
        "labels_dim0": "batch",
    }
