"""What the torch backend costs beside training itself: ``python benchmarks/torch_overheads.py``, some minutes.

Two models of transformers, like GPT-2 and like Llama. Each figure is this process's processor time, so
that a busy machine counts little, and ratios are of steps that are taken in turns, so that a slow minute counts for
both:

* the swap of one config for another, all presets in turn, and the switch to the config of another length;
* the detection before the first step, in steps and in seconds;
* a step with nothing on, after all was on once, against a step of a model that nobody has looked at;
* the rewriting of a block's graph with all operators on, without what is computed again: first without the masks of
  dropout, whose packing reads them once, then with them;
* the share of the check of what is made again, of all blocks and of all operators; the goal is that of ``some``.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import statistics
import time
import unittest.mock

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from autorecompute.backends.torch.check import recompute_check
from autorecompute.backends.torch.check.recompute_check import ALL, OFF, SOME, TURNS
from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.find.operators import MASK
from autorecompute.backends.torch.forecast.records import CHECKPOINT, DROP
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.backends.torch.switch.intercepting import around_of, put_around, release
from autorecompute.backends.torch.switch.lengths import ByLength
from autorecompute.plans import Choice, Lengths
from autorecompute.tuning.intervals import interval

BATCH, LENGTH, LAYERS, WIDTH, VOCABULARY = 8, 128, 6, 256, 4000
SWAP_GOAL, SWITCH_GOAL, DETECTION_STEPS_GOAL, DETECTION_GOAL = 0.005, 0.0001, 3.0, 5.0
OFF_GOAL, BLOCK_GOAL, CHECK_GOAL = 0.005, 0.0003, 0.005
MISS = 0.005
"""Chance that an interval lies above what it is about, and the same again below."""


def make_gpt2(width=WIDTH):
    """Six blocks with dropout, and a head of four thousand classes."""
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=LAYERS,
            n_embd=width,
            n_head=8,
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def make_llama(width=WIDTH):
    """Six blocks with grouped queries and gated products."""
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=LAYERS,
            hidden_size=width,
            intermediate_size=688,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )


MODELS = {"GPT-2": make_gpt2, "Llama": make_llama}


class Training:
    """A model that trains on one batch."""

    def __init__(self, model):
        self.model = model.train()
        self.optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
        self.batch = {"input_ids": tokens, "labels": tokens}

    def step(self):
        """The processor's seconds of one step."""
        began = time.process_time()
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - began


class Rewritten:
    """Measures what is done around each block: from the end of its own forward to when its result is there.

    Args:
        model: The model.
        paths: Of its blocks.
    """

    def __init__(self, model, paths):
        self.seconds, self._through = [], 0.0
        self._modules = [model.get_submodule(path) for path in paths]
        for module in self._modules:
            put_around(module, [self._outside, *around_of(module), self._inside])

    def _inside(self, forward, _module, /, *args, **kwargs):
        try:
            return forward(*args, **kwargs)
        finally:
            self._through = time.thread_time()

    def _outside(self, forward, _module, /, *args, **kwargs):
        result = forward(*args, **kwargs)
        self.seconds.append(time.thread_time() - self._through)
        return result

    def end(self):
        """The blocks are plain again."""
        for module in self._modules:
            release(module)


def detect(training):
    """The switches and presets of a model, and the seconds that it took to find them."""
    began = time.process_time()
    tuned = Tuned.of(training.model, (), training.batch)
    script = Script((), training.batch, [training.optimizer])
    steps = survey_steps(training.model, tuned.found, tuned.board, script)
    space = space_of(tuned.found, tuned.board, steps)
    return tuned, space, time.process_time() - began


def swap(board, presets, rounds):
    """Seconds of each swap from one preset to another."""
    seconds = []
    for config in itertools.islice(itertools.cycle(presets), rounds * len(presets)):
        began = time.process_time()
        board.set(config.choices)
        seconds.append(time.process_time() - began)
    board.set([])
    return seconds


def switch(training, board, presets, rounds):
    """Seconds of each switch that the length of a batch asks for, all presets in turn, once their wrappers are made."""
    ends = tuple(LENGTH * (place + 1) // len(presets) for place in range(len(presets)))
    lengths = Lengths(batch=BATCH, ends=ends, configs=tuple(presets))
    board.by_length = ByLength(training.model, board, lengths)
    by_length = {end: {name: tensor[:, :end] for name, tensor in training.batch.items()} for end in ends}
    seconds = []
    for number, end in enumerate(itertools.islice(itertools.cycle(ends), (rounds + 1) * len(ends))):
        began = time.process_time()
        board.by_length._switches(training.model, (), by_length[end])
        if number >= len(ends):
            seconds.append(time.process_time() - began)
    board.by_length = None
    board.set([])
    return seconds


def off(plain, looked_at, rounds):
    """The ratio of a step with nothing on to one of an untouched model, in pairs of random order."""
    order = random.Random(0)
    ratios = []
    for _ in range(rounds):
        trainings = [plain, looked_at]
        order.shuffle(trainings)
        seconds = {training: training.step() for training in trainings}
        ratios.append(seconds[looked_at] / seconds[plain])
    return ratios


def rewrite(training, board, units, operators, rounds):
    """Return the seconds that rewriting one block takes, the mean of each round.

    The check is off: it has a row of its own.
    """
    board.set(operators)
    board.check.mode = OFF
    watch = Rewritten(training.model, units)
    means = []
    for _ in range(rounds):
        watch.seconds.clear()
        training.step()
        means.append(statistics.mean(watch.seconds))
    watch.end()
    board.set([])
    return means


def checked(training, board, choices, mode):
    """Return which share of steps the check of each recompute takes, in seconds of the thread, and how often it looks.

    Pairs of steps with it and without would need hundreds of rounds to tell so little.
    """
    board.set(choices)
    check = board.check
    check.mode, check.every = mode, TURNS if mode == SOME else 1
    with unittest.mock.patch.object(recompute_check.time, "perf_counter", time.thread_time):
        for _ in range(3 * TURNS + 1):  # in which it finds out what it may compare
            training.step()
    board.set([])
    return check.share, check.every


def report(name, value, goal, form):
    """Prints a figure beside its goal."""
    print(f"{name:48} {form(value):>10}   goal {form(goal):>10}   {'met' if value <= goal else 'MISSED'}", flush=True)


def milliseconds(seconds):
    """With two digits behind the point."""
    return f"{1000 * seconds:.2f} ms"


def measure(name, make, width, rounds):
    """Prints all figures of one model."""
    torch.manual_seed(0)
    plain = Training(make(width))
    looked_at = Training(copy.deepcopy(plain.model))
    step = statistics.median([looked_at.step() for _ in range(4)][1:])
    tuned, space, seconds = detect(looked_at)
    print(f"{name}: {len(space.plans)} plans, a step takes {milliseconds(step)}")
    report("detection, in steps", seconds / step, DETECTION_STEPS_GOAL, "{:.1f}".format)
    report("detection", seconds, DETECTION_GOAL, "{:.1f} s".format)
    presets = list(space.presets.values())
    report("swap, median", statistics.median(swap(tuned.board, presets, rounds)), SWAP_GOAL, milliseconds)
    switched = switch(looked_at, tuned.board, presets, rounds)
    report("switch to the config of another length, median", statistics.median(switched), SWITCH_GOAL, milliseconds)
    ratios = off(plain, looked_at, rounds)
    found = interval(ratios, MISS)
    report("nothing on, beside a plain step", found.middle - 1, OFF_GOAL, "{:+.2%}".format)
    print(f"{'':48} between {found.low - 1:+.2%} and {found.high - 1:+.2%} at {1 - 2 * MISS:.0%}")
    blocks = [Choice(path, CHECKPOINT) for path in tuned.found.blocks]
    operators = [choice for plan in space.plans if plan.option == DROP for choice in plan.choices]
    without_masks = [choice for choice in operators if not choice.site.endswith(MASK)]
    rewritten = {"a rewritten block": without_masks}
    if len(operators) > len(without_masks):
        rewritten["the same, masks of dropout packed"] = operators
    for what, choices in rewritten.items():
        seconds = rewrite(looked_at, tuned.board, tuned.found.structure.units, choices, min(rounds, 10))
        report(f"{what}, least", min(seconds), BLOCK_GOAL, milliseconds)
        print(f"{'':48} median {milliseconds(statistics.median(seconds))}")
    for (what, choices), mode in itertools.product((("blocks", blocks), ("operators", operators)), (SOME, ALL)):
        share, every = checked(looked_at, tuned.board, choices, mode)
        report(f"check={mode} of {what}", share, CHECK_GOAL, "{:.2%}".format)
        print(f"{'':48} one call in {every} compared")


def main():
    """Measures each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="pairs of steps, and swaps of each preset")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the models, in numbers for each token")
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help="all where none is named")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in args.models:
        measure(name, MODELS[name], args.width, args.rounds)


if __name__ == "__main__":
    main()
