"""Trains a small BERT with the Trainer of Hugging Face, which evaluates and writes checkpoints in between."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

TOKENS, LENGTH = 50, 12


class Sentences(Dataset):
    def __init__(self, count):
        self.tokens, self.labels = torch.randint(TOKENS, (count, LENGTH)), torch.randint(2, (count,))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
config = BertConfig(vocab_size=TOKENS, attn_implementation="eager", **sizes)
length = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 1000}
between = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "save_total_limit": 1, "logging_steps": 1}
trainer = Trainer(
    model=ORTModule(BertForSequenceClassification(config)),
    args=TrainingArguments("checkpoints", **length, **between, use_cpu=True, disable_tqdm=True),
    train_dataset=Sentences(96),
    eval_dataset=Sentences(10),
)
trainer.train()
