"""A training script with Hugging Face's Trainer in bfloat16: a Llama with 32,000 words, for ``card_sitting.py``."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WORDS = 32_000


class Texts(Dataset):
    """So many texts of random words.

    Args:
        count: How many.
        length: Words in each.
    """

    def __init__(self, count, length):
        self.words = torch.randint(0, WORDS, (count, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.words[index]}


def main():
    """Train until the steps are over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=16 * (args.hidden // 6),
        max_position_embeddings=args.sequence,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch,
            max_steps=args.steps,
            bf16=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(LlamaForCausalLM(config), arguments, train_dataset=Texts(64 * args.batch, args.sequence)).train()


if __name__ == "__main__":
    main()
