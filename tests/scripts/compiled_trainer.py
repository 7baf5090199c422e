"""Trains a small BERT of two layers with the Trainer of Hugging Face, which has torch.compile run it."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

TOKENS, LENGTH = 50, 12


class Sentences(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return {"input_ids": torch.arange(LENGTH) % TOKENS, "labels": torch.tensor(index % 2)}


config = BertConfig(vocab_size=TOKENS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
settings = TrainingArguments(
    "checkpoints", per_device_train_batch_size=16, torch_compile=True, use_cpu=True, save_strategy="no", report_to=[]
)
Trainer(model=BertForSequenceClassification(config), args=settings, train_dataset=Sentences()).train()
