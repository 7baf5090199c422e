"""Memory and time of a vocabulary head in chunks: ``python benchmarks/vocabulary_head.py``, some minutes.

A Llama of transformers with two layers, at several widths, vocabularies and lengths, each with a batch of one:

* bytes alive at the peak of a step, without recompute, with all blocks checkpointed, and each with logits in chunks;
* processor time of a step with chunks, as a share of one without, steps in turns;
* both of TRL's fused head (``add_fused_lm_head``, which its ``SFTTrainer`` trains with), where TRL is installed;
* the largest gradient difference;
* the longest sequence whose forecast holds a limit, with all blocks checkpointed, with and without chunks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.fake.tensors import LargeTensorsAreFake
from autorecompute.backends.torch.forecast.records import CHECKPOINT, CHUNK
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.plans import Choice, Config
from autorecompute.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from trl.trainer.utils import add_fused_lm_head
except ImportError:
    add_fused_lm_head = None

SIZES = ((256, 32_000, 1024), (256, 128_256, 1024), (512, 151_936, 2048), (1024, 128_256, 2048))
"""Width, words and length."""

LIMIT_BYTES, SHORTEST, LONGEST = 4 * GIB, 256, 2**20


def make(width: int, words: int) -> LlamaForCausalLM:
    """Return a model of two layers, in training."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // 64,
        vocab_size=words,
        max_position_embeddings=LONGEST,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def batch_of(words: int, length: int) -> dict[str, torch.Tensor]:
    """Return a batch of one text."""
    numbers = torch.randint(0, words, (1, length))
    return {"input_ids": numbers, "labels": numbers}


def configs_of(tuned: Tuned) -> dict[str, Config]:
    """Return the four configs by their names."""
    sites = tuned.board.sites.values()
    chunks = [Choice(site.name, CHUNK) for site in sites if CHUNK in site.options]
    blocks = [Choice(name, CHECKPOINT) for name in tuned.found.blocks]
    chosen = {"plain": [], "chunks": chunks, "blocks": blocks, "blocks and chunks": [*blocks, *chunks]}
    return {name: Config(frozenset(choices)) for name, choices in chosen.items()}


def live_bytes(tuned: Tuned, batch: dict[str, torch.Tensor], config: Config) -> int:
    """Return the bytes at the peak of a step on fake tensors, the parameters and their gradients among them."""
    step = tuned.whole_step(config, Script((), batch))
    assert step is not None, "a Llama runs on fake tensors"
    return step.peak


def longest(width: int, words: int, name: str) -> int:
    """Return the longest sequence, of those that are twice another, whose peak holds the limit."""
    length = SHORTEST
    with LargeTensorsAreFake() as fakes, fakes.everything():
        model = make(width, words)
        while length < LONGEST:
            batch = batch_of(words, 2 * length)
            tuned = Tuned.of(model, (), batch)
            if live_bytes(tuned, batch, configs_of(tuned)[name]) > LIMIT_BYTES:
                break
            length *= 2
    return length


def seconds(step: Callable[[], torch.Tensor], model: LlamaForCausalLM) -> float:
    """Return the processor time of one step."""
    began = time.process_time()
    step().backward()
    model.zero_grad()
    return time.process_time() - began


def peak_bytes(step: Callable[[], torch.Tensor], model: LlamaForCausalLM, batch: dict[str, torch.Tensor]) -> int:
    """Return the bytes alive at the peak of one step, the parameters and their gradients among them."""
    with LiveBytes(tensors_of(model, (), (batch,))) as live:
        step().backward()
    model.zero_grad()
    return live.peak


def measure(width: int, words: int, length: int, rounds: int) -> str:
    """Return a line of the peaks and times of one size."""
    model, batch = make(width, words), batch_of(words, length)
    tuned = Tuned.of(model, (), batch)
    configs = configs_of(tuned)
    steps: dict[str, tuple[Config, dict[str, bool]]] = {name: (config, {}) for name, config in configs.items()}
    if add_fused_lm_head is not None:
        add_fused_lm_head(model)
        steps["TRL"] = Config(), {"fused_lm_head": True}
    peaks, taken = {}, {name: [] for name in ("plain", "chunks", "TRL") if name in steps}
    for turn in range(rounds + 1):
        for name, (config, asked) in steps.items():
            tuned.switch(config)

            def step(asked: dict[str, bool] = asked) -> torch.Tensor:
                loss: torch.Tensor = model(**batch, **asked).loss
                return loss

            if not turn:
                peaks[name] = peak_bytes(step, model, batch)
            elif name in taken:
                taken[name].append(seconds(step, model))
    tuned.switch(Config())
    check = check_gradients(model, tuned.board, configs["chunks"].choices, (), batch)
    plain = statistics.median(taken["plain"])
    told = ", ".join(f"{name} {peak / MIB:.0f} MiB" for name, peak in peaks.items())
    times = ", ".join(f"{name} {statistics.median(found) / plain:.2f}x" for name, found in taken.items())
    size, rate = f"width {width}, {words} words, {length} tokens", f"{length / plain:.0f} tokens/s plain"
    return f"{size}: {told}; {rate}, time {times}; gradients within {check.worst:.1e}"


def main() -> None:
    """Print a line for each size, and the longest sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each kind")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many sizes, the smallest first")
    args = parser.parse_args()
    torch.manual_seed(0)
    for width, words, length in SIZES[: args.sizes]:
        print(measure(width, words, length, args.rounds), flush=True)
    width, words, _ = SIZES[1]
    lengths = [longest(width, words, name) for name in ("blocks", "blocks and chunks")]
    print(f"longest sequence in 4 GiB, width {width}, {words} words: {lengths[0]}, in chunks {lengths[1]}")


if __name__ == "__main__":
    main()
