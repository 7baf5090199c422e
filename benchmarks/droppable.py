"""Tell how much of what a forward pass saves single operators can drop, by model, and what the rest is.

Models have random weights and few layers; sizes are chosen so that the parts of a layer are in proportion. Those that
the installed versions of transformers and diffusers do not have are told. Usage: ``python benchmarks/droppable.py``.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from autorecompute.backends.torch.find.operators import Finder, operator_of
from autorecompute.backends.torch.find.probe import Probe
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.find.structure import structure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.graph import Node

    from autorecompute.backends.torch.find.probe import Call

VIEWS = frozenset({"clone", "expand", "permute", "reshape_alias", "select", "slice", "split", "squeeze", "t", "to_copy",
                   "transpose", "unsafe_view", "unsqueeze", "view"})  # fmt: skip
KINDS = {"products": ("mm", "convolution"), "attention": ("attention", "softmax"), "sums": ("add", "sub")}

BATCH, LENGTH, WIDTH, HEADS, WORDS = 4, 128, 256, 4, 512

SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "vocab_size": WORDS,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "use_cache": False}
SLIDING: dict[str, Any] = {**GROUPED, "head_dim": 64, "sliding_window": 64}
IMAGE: dict[str, Any] = {**SIZES, "image_size": 64, "patch_size": 8}
OLDER: dict[str, Any] = {"vocab_size": WORDS, "use_cache": False}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 64}),
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", SLIDING),
    "GPT-OSS": ("GptOssConfig", "GptOssForCausalLM", {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", {**OLDER, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "BERT": ("BertConfig", "BertForMaskedLM", SIZES),
    "ModernBERT": ("ModernBertConfig", "ModernBertForMaskedLM", {**SIZES, "pad_token_id": 0}),
    "T5": ("T5Config", "T5ForConditionalGeneration",
           {**OLDER, "d_model": WIDTH, "d_ff": 3 * WIDTH, "d_kv": 64, "num_layers": 2, "num_heads": HEADS,
            "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}),
    "ViT": ("ViTConfig", "ViTForImageClassification", IMAGE),
    "ConvNeXt": ("ConvNextConfig", "ConvNextForImageClassification",
                 {"hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 2, 2], "image_size": 64}),
    "UNet": ("", "UNet2DModel", {"sample_size": 32, "layers_per_block": 1, "block_out_channels": (64, 128),
             "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}),
    "Mamba": ("MambaConfig", "MambaForCausalLM", {**OLDER, "hidden_size": WIDTH, "num_hidden_layers": 2}),
    "Whisper": ("WhisperConfig", "WhisperForConditionalGeneration",
                {**OLDER, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
                 "decoder_attention_heads": HEADS, "encoder_ffn_dim": 3 * WIDTH, "decoder_ffn_dim": 3 * WIDTH,
                 "num_mel_bins": 32, "max_source_positions": LENGTH, "pad_token_id": 0, "bos_token_id": 1,
                 "eos_token_id": 2, "decoder_start_token_id": 1}),
}  # fmt: skip
"""For each model the class of its config, its own, and its sizes."""


class Denoiser(nn.Module):
    """A model of diffusers, called by keywords."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Return the noise."""
        noise: torch.Tensor = self.model(sample, timestep).sample
        return noise


def make(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model and a batch for it.

    Raises:
        AttributeError, ImportError: The installed versions do not have it.
    """
    config, kind, sizes = MODELS[name]
    torch.manual_seed(0)
    if not config:
        model = Denoiser(getattr(importlib.import_module("diffusers"), kind)(**sizes))
        return model, {"sample": torch.randn(BATCH, 3, 32, 32), "timestep": torch.arange(BATCH)}
    library = importlib.import_module("transformers")
    model = getattr(library, kind)(getattr(library, config)(**sizes)).train()
    words = torch.randint(3, WORDS, (BATCH, LENGTH))
    if "ImageClassification" in kind:
        return model, {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.zeros(BATCH, dtype=torch.long)}
    if name == "Whisper":
        return model, {"input_features": torch.randn(BATCH, 32, 2 * LENGTH), "labels": words}
    return model, {"input_ids": words, "labels": words}


def look(model: nn.Module, batch: dict[str, Any]) -> tuple[float, collections.Counter[str], float]:
    """Return the share of saved bytes that operators can drop, the shares of the rest by operator, and the seconds."""
    structure = structure_of(model)
    finder, makers = Finder(model, structure), dict[int, str]()
    began = time.perf_counter()
    seen = Probe(model, structure.units, noting(finder.visit, makers)).run((), batch)
    seconds = time.perf_counter() - began
    _, storages = finder.finish(seen)
    dropped = set().union(*storages.values())
    total = sum(saved.bytes for saved in seen.saved.values())
    rest: collections.Counter[str] = collections.Counter()
    for number, saved in seen.saved.items():
        if number not in dropped:
            rest[makers.get(number, "given")] += saved.bytes
    shares = collections.Counter({name: round(100 * size / total) for name, size in rest.items()})
    return sum(seen.saved[number].bytes for number in dropped) / total, shares, seconds


def noting(visit: Callable[..., None], makers: dict[int, str]) -> Callable[[Probe, Call, Any], None]:
    """Return a visit that notes, too, which operator made each storage that a node of the unit saves."""

    def both(seen: Probe, call: Call, result: Any) -> None:
        visit(seen, call, result)
        waiting = [tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None]
        known = set(waiting)
        while waiting:
            node = waiting.pop()
            for before, _ in node.next_functions:
                if before is not None and before not in known and before._sequence_nr() >= call.first:
                    known.add(before)
                    waiting.append(before)
            for name in dir(type(node)):
                raw = getattr(node, name, None) if name.startswith("_raw_saved_") else None
                tensor = getattr(getattr(raw, "data", None), "tensor", None)
                if tensor is not None:
                    makers.setdefault(seen.storages.number(tensor), maker_of(tensor.grad_fn))

    return both


def maker_of(node: Node | None) -> str:
    """Return the kind of operator that made a tensor, before views and copies of it."""
    while node is not None and (name := operator_of(node)) in VIEWS:
        node = node.next_functions[0][0]
    if node is None:
        return "given"
    return next((kind for kind, names in KINDS.items() if any(one in name for one in names)), name)


def main() -> None:
    """Print a row for each model."""
    names = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names.add_argument("models", nargs="*", default=list(MODELS), help="only these")
    table = Table("model", "droppable", "seconds", "the rest, by what made it", box=None)
    for name in names.parse_args().models:
        warnings.simplefilter("ignore")
        try:
            share, rest, seconds = look(*make(name))
        except (AttributeError, ImportError) as error:
            table.add_row(name, "-", "-", f"not installed: {error}")
            continue
        most = ", ".join(f"{kind} {size} %" for kind, size in rest.most_common(4) if size)
        table.add_row(name, f"{share:.0%}", f"{seconds:.1f}", most)
    versions = ", ".join(f"{one} {importlib.import_module(one).__version__}" for one in ("torch", "transformers"))
    console = Console(width=150)
    console.print(versions, table)


if __name__ == "__main__":
    main()
