"""Trains a small GPT-2 in plain PyTorch with the Trainer of Lightning."""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader

from language_model import Texts, make_model


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = make_model(is_adapted=False)

    def training_step(self, batch, _):
        loss = self.network(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=100_000, **quiet)
trainer.fit(Model(), DataLoader(Texts(), batch_size=args.batch))
