"""What ONNX Runtime 1.17.3, 1.18.0 and 1.19.2 answered about two small models: see benchmarks/record_plans.py."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from autorecompute.backends.ortmodule.axes import canonical_names
from autorecompute.backends.ortmodule.detection import probe_plans, read_axes
from autorecompute.backends.ortmodule.environment import IGNORING_LAYERS, WITHIN_LAYERS
from autorecompute.backends.ortmodule.grammar import COMPROMISE, RECOMPUTE
from autorecompute.backends.ortmodule.insight_table import read_clusters
from autorecompute.plans.savings import evaluate

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = ("1.17.3", "1.18.0", "1.19.2")
DIMS = {"batch": 4, "sequence": 16}


class Answers:
    """One recording, in the shape of ORT's objects.

    Args:
        model: ``bert`` or ``casting``.
        version: The version that was asked.
    """

    def __init__(self, model, version):
        recorded = json.loads((RECORDED / f"{model}-{version}.json").read_text())
        self._answers, self._recorded = recorded["answers"], recorded
        if version < "1.19":
            self.get_serialized_ortmodule_memory_stat = lambda _config, probe: self._answers[probe]
        else:
            self.get_serialized_ortmodule_memory_stat = lambda _config, probe, _table: self._answers[probe]

    @property
    def axes(self):
        """The dimensions as detection reads them."""
        inputs = [_make_input(name, **described) for name, described in self._recorded["inputs"].items()]
        return read_axes(self._recorded["dims"], SimpleNamespace(input=inputs))

    def probe(self, probe=IGNORING_LAYERS):
        """Plans by their key, and clusters."""
        axes = self.axes
        names = canonical_names(axes)
        plans, clusters = probe_plans(self, probe, names, {names[axis.alias]: axis.value for axis in axes})
        return {plan.id: plan for plan in plans}, clusters

    def without_table(self):
        """The same answers from an ORT whose table nobody can read."""
        self._answers = {probe: ["another table", plans] for probe, (_, plans) in self._answers.items()}
        return self


def _make_input(name, element_type, rank):
    tensor = SimpleNamespace(elem_type=element_type, shape=SimpleNamespace(dim=[None] * rank))
    return SimpleNamespace(name=name, type=SimpleNamespace(tensor_type=tensor))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", ["bert", "casting"])
@pytest.mark.parametrize("probe", [IGNORING_LAYERS, WITHIN_LAYERS])
def test_the_table_covers_every_plan(model, version, probe):
    """Each node that a plan counts is in one row of the table, with the plan among its options."""
    plans, clusters = Answers(model, version).probe(probe)
    offered = {}
    for cluster in clusters:
        for way in cluster.alternatives:
            offered[str(way.choice)] = offered.get(str(way.choice), 0) + cluster.occurrences
    assert offered == {key: plan.occurrences for key, plan in plans.items()} != {}


@pytest.mark.parametrize("version", VERSIONS)
def test_dimensions_have_names_that_do_not_vary(version):
    """Three inputs of token ids share a batch and a sequence, whichever alias ORT wrote."""
    plans, clusters = Answers("bert", version).probe()
    assert set(canonical_names(Answers("bert", version).axes).values()) == {"batch", "sequence"}
    assert plans["FusedMatMul+Add+:1"].saving == "640*batch*sequence"
    assert ("batch", "2", "sequence", "16") in {
        activation.shape for cluster in clusters for way in cluster.alternatives for activation in way.activations
    }


def test_a_node_that_keeps_several_outputs_saves_all_of_them():
    """ORT 1.19 states one output of a LayerNormalization or Dropout; the plan has all, and ORT's figure beside it."""
    plans, clusters = Answers("bert", "1.19.2").probe()
    corrected = {key for key, plan in plans.items() if plan.stated is not None}
    assert corrected == {"LayerNormalization+:1", "Dropout+:1"}
    for key in corrected:
        assert plans[key].saving_bytes > evaluate(plans[key].stated, DIMS)
    kept = [len(way.activations) for cluster in clusters for way in cluster.alternatives]
    assert max(kept) == 3


@pytest.mark.parametrize("version", ["1.17.3", "1.18.0"])
def test_earlier_versions_state_the_right_savings(version):
    """ORT 1.17 and 1.18 add up what they should: nothing is corrected."""
    plans, _ = Answers("bert", version).probe()
    assert [plan for plan in plans.values() if plan.stated is not None] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_equal_nodes_are_one_row(version):
    """No two rows of the table have the same options with the same activations."""
    _, clusters = Answers("bert", version).probe()
    kinds = [str([(way.choice, way.activations) for way in cluster.alternatives]) for cluster in clusters]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("version", ["1.18.0", "1.19.2"])
def test_options_of_one_node_are_numbered(version):
    """A cast from booleans can be recomputed whole, or from the cast on for three bytes of four."""
    _, clusters = Answers("casting", version).probe()
    (both,) = [cluster for cluster in clusters if len(cluster.alternatives) > 1]
    whole, part = both.alternatives
    assert (whole.choice.option, part.choice.option) == (RECOMPUTE, COMPROMISE)
    assert [way.activations[0].saved_percent for way in both.alternatives] == [100, 75]
    assert part.activations[0].saved_bytes == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_reuse_is_counted(version):
    """A Softmax that writes over its input is one of the nodes whose output lies in another's buffer."""
    _, clusters = Answers("casting", version).probe()
    reuses = {
        way.choice.site: way.activations[0].reuse_frequency for cluster in clusters for way in cluster.alternatives
    }
    assert reuses["Gelu+Mul+Softmax+"] == 1
    assert reuses["Mul+"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_that_cannot_be_read_leaves_the_plans(version):
    """Without the table there are no clusters, and each plan has the saving that ORT states."""
    plans, clusters = Answers("bert", version).without_table().probe()
    assert clusters == ()
    assert plans.keys() == Answers("bert", version).probe()[0].keys()
    assert plans["FusedMatMul+Add+:1"].saving == "640*batch*sequence"


def test_shapes_of_the_first_tables_are_read():
    """The form ``a x b - 1 x 32 x`` of ORT's earliest tables gives the same dimensions."""
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
