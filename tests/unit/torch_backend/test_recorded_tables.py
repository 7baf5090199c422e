import gzip
import json
from pathlib import Path

import pytest

from autorecompute import codec
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.training_job import Detection

TABLES = sorted((Path(__file__).parents[3] / "studies/tables").glob("torch_*.json.gz"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name.partition(".")[0])
def test_a_recorded_table_still_tells_its_steps(table):
    """Nothing else reads what a detection of an earlier version has of them."""
    detection = codec.decode(json.dumps(json.loads(gzip.decompress(table.read_bytes()))["detection"]), Detection)
    assert TorchMemoryModel.of(detection).steps.parts
