"""Trains a small BERT in plain PyTorch, and evaluates it in between. Its batch is a flag."""

import argparse
import itertools

import torch
from transformers import BertConfig, BertForMaskedLM

VOCABULARY, LENGTH = 64, 16

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
args = parser.parse_args()

torch.manual_seed(0)
text = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "attn_implementation": "eager"}
layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
model = BertForMaskedLM(BertConfig(**text, **layers, **dropouts))
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.randint(VOCABULARY, (args.bs, LENGTH))
batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
held_out = torch.randint(VOCABULARY, (3, LENGTH))
for step in itertools.count(1):
    loss = model(**batch).loss
    loss.backward()
    print("step", step, "loss", loss.item())
    print("gradient", sum(parameter.grad.square().sum() for parameter in model.parameters()).sqrt().item())
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        print("evaluated", model(input_ids=held_out, labels=held_out).loss.item())
    model.train()
