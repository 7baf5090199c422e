"""Trains with the Trainer of Lightning, on a model whose network is an ORTModule."""

import lightning
import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy

from models import Classifier, classified


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = ORTModule(Classifier())

    def training_step(self, batch, _):
        inputs, labels = batch
        print("train", len(inputs))
        loss = cross_entropy(self.network(inputs), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        inputs, labels = batch
        print("evaluate", len(inputs))
        self.log("validation_loss", cross_entropy(self.network(inputs), labels))

    def on_validation_model_train(self):
        self.train()  # Lightning sets a flag on each module that it can see; ORTModule keeps another one to itself

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=100_000, log_every_n_steps=1, val_check_interval=8, enable_progress_bar=False
)
trainer.fit(Model(), classified(shuffle=True, drop_last=True), classified(12))
