"""Trains a small GPT-2 in plain PyTorch, in one of the ways that people do."""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from models import Lora

VOCABULARY, LENGTH, WIDTH = 1500, 64, 192


class Texts(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        tokens = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def make_model(*, is_adapted):
    sizes = {"n_layer": 3, "n_embd": WIDTH, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": LENGTH}
    model = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))
    if is_adapted:
        model.requires_grad_(requires_grad=False)
        for block in model.transformer.h:
            block.attn.c_attn = Lora(block.attn.c_attn, WIDTH, 3 * WIDTH)
    return model


def train(model, batch, dtype):
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    texts = Texts()
    for step in range(100_000):
        given = default_collate([texts[step * batch + place] for place in range(batch)])
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())


def train_with_trainer(model, batch, **options):
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    length = {"per_device_train_batch_size": batch, "max_steps": 100_000}
    args = TrainingArguments("checkpoints", use_cpu=True, **options, **length, **quiet)
    Trainer(model=model, args=args, train_dataset=Texts()).train()


def train_with_lightning(network, batch):
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, given, _):
            loss = self.network(**given).loss
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=100_000, **quiet)
    trainer.fit(Model(), DataLoader(Texts(), batch_size=batch))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["loop", "autocast", "lora", "trainer", "lightning"], default="loop")
    parser.add_argument("--bf16", action="store_true", help="mixed precision of the trainer")
    parser.add_argument("--compiled", action="store_true", help="the trainer compiles the model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--folder", help="load the model from here")
    args = parser.parse_args()
    if args.folder:
        model = GPT2LMHeadModel.from_pretrained(args.folder, use_cache=False)
    else:
        model = make_model(is_adapted=args.way == "lora")
    if args.way == "trainer":
        train_with_trainer(model, args.batch, bf16=args.bf16, torch_compile=args.compiled)
    elif args.way == "lightning":
        train_with_lightning(model, args.batch)
    else:
        model.train()
        train(model, args.batch, torch.bfloat16 if args.way == "autocast" else None)


if __name__ == "__main__":
    main()
