import os

import pytest
import torch

from autorecompute.worker.protocol import LAUNCHER_VARIABLES, explain_missing_rank


@pytest.fixture
def _without_launcher(monkeypatch):
    for name in (*LAUNCHER_VARIABLES, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_without_launcher")
@pytest.mark.parametrize(
    "look",
    [
        lambda: torch.distributed.init_process_group("gloo"),
        lambda: os.environ["LOCAL_RANK"],
        lambda: int(os.environ["WORLD_SIZE"]),
    ],
)
def test_a_script_that_looks_for_its_rank_is_told_of_the_launcher(look):
    with pytest.raises((ValueError, KeyError)) as raised:
        look()
    assert "--launcher" in explain_missing_rank(raised.value)


@pytest.mark.usefixtures("_without_launcher")
def test_other_errors_are_none_of_a_launchers(monkeypatch):
    """And a rank that fails has one."""
    for lack in (lambda: os.environ["NO_SUCH_VARIABLE"], lambda: {}["RANK"]):
        with pytest.raises(KeyError) as raised:
            lack()
        assert explain_missing_rank(raised.value) == ""
    assert explain_missing_rank(ValueError("LORA_RANK is 8, and RANK has to be less")) == ""
    monkeypatch.setenv("RANK", "0")
    assert explain_missing_rank(ValueError("MASTER_ADDR expected, but not set")) == ""
