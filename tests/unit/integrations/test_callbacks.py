"""Callbacks in trainings of two steps by real trainers. No search can start here: that is told where one would have."""

import logging
import sys

import lightning
import pytest
import torch
import transformers
from torch.nn.functional import mse_loss

import autorecompute
from autorecompute.errors import UsageError

BEGAN = "the training goes on without autorecompute: /missing/python cannot be started for the search"


class Model(lightning.LightningModule):
    """Trains under either library."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, inputs):
        return {"loss": mse_loss(self.layer(inputs), inputs)}

    def training_step(self, batch, _):
        return self(batch["inputs"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


ROWS = [{"inputs": torch.ones(2)} for _ in range(8)]
QUIET = {"max_steps": 2, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def train_by_transformers(tmp_path, callbacks, prepare):
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=ROWS, callbacks=callbacks)
    prepare(trainer)
    trainer.train()
    return trainer.state.global_step


def train_by_lightning(tmp_path, callbacks, prepare):
    trainer = lightning.Trainer(
        default_root_dir=tmp_path, callbacks=callbacks, accelerator="cpu", logger=False, **QUIET
    )
    prepare(trainer)
    trainer.fit(Model(), torch.utils.data.DataLoader(ROWS, batch_size=2))
    return trainer.global_step


TRAINERS = {"TrainerCallback": train_by_transformers, "LightningCallback": train_by_lightning}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_given", [True, False], ids=["callback", "auto"])
@pytest.mark.parametrize("name", TRAINERS)
def test_a_search_begins_with_the_optimizer_that_the_trainer_makes(tmp_path, monkeypatch, caplog, name, is_given):
    monkeypatch.setattr(sys, "executable", "/missing/python")
    monkeypatch.setattr(logging.getLogger("autorecompute"), "propagate", True)
    callbacks = [getattr(autorecompute, name)("1GiB")] if is_given else []

    def prepare(trainer):
        if not is_given:
            autorecompute.auto(trainer, memory_limit="1GiB")
        assert BEGAN not in caplog.text

    assert TRAINERS[name](tmp_path, callbacks, prepare) == 2
    assert sum(BEGAN in message for message in caplog.messages) == 1


@pytest.mark.parametrize("name", TRAINERS)
def test_a_wrong_argument_is_told_when_the_callback_is_made(name):
    with pytest.raises(UsageError, match="Write a unit with it"):
        getattr(autorecompute, name)(memory_limit=24)


@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_that_is_none_of_torch_leaves_the_training_as_it_is(caplog):
    callback = autorecompute.TrainerCallback()
    callback.on_train_begin(None, None, None, model=Model(), optimizer=object())
    assert "the training goes on without autorecompute: autorecompute.auto takes torch optimizers" in caplog.text


def test_other_names_are_not_known():
    with pytest.raises(AttributeError, match="no attribute 'TrainCallback'"):
        autorecompute.TrainCallback  # noqa: B018
