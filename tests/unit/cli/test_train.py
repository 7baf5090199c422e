"""Settings of a training with a launcher, whose first rank starts the search."""

import pytest

from autorecompute import cli, codec
from autorecompute.cli import train
from autorecompute.worker.protocol import SETTINGS_VARIABLE, Settings


def test_the_search_of_ranks_knows_that_checkpoints_are_replaced(monkeypatch, tmp_path):
    class StartedError(Exception):
        """In place of the training."""

    def start(_command, environment, _option):
        raise StartedError(environment[SETTINGS_VARIABLE])

    monkeypatch.setattr(train, "replace_process", start)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(StartedError) as started:
        cli.main(["train", "--launcher", "torchrun", "--replace-checkpointing", "train.py"])
    settings = codec.decode(str(started.value), Settings)
    assert (settings.replaces_checkpointing, settings.search.replaces_checkpointing) == (True, True)
    assert train._job_of(settings.search).replaces_checkpointing
