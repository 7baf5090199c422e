"""Trains a small BERT in plain PyTorch, evaluates it in between, and keeps a checkpoint. Its batch is a flag."""

import argparse
import copy
import pickle

import torch
from transformers import BertConfig, BertForMaskedLM

VOCABULARY, LENGTH = 64, 16

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
model = BertForMaskedLM(
    BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.randint(VOCABULARY, (args.bs, LENGTH))
batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
held_out = torch.randint(VOCABULARY, (3, LENGTH))
for step in range(1, args.steps + 1):
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
torch.save(model.state_dict(), "checkpoint.pt")
print("class", type(model).__name__, isinstance(model, BertForMaskedLM))
# A model can be pickled as ever. What is read back is what was just written, in this process.
for name, twin in {"copied": copy.deepcopy(model), "pickled": pickle.loads(pickle.dumps(model))}.items():  # noqa: S301
    with torch.no_grad():
        print(name, twin(**batch).loss.item())
    loss = twin(**batch).loss
    loss.backward()
    print(name, "trained", loss.item(), all(parameter.grad is None for parameter in model.parameters()))
