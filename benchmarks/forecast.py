"""How far the peaks that ``plans`` predicts are off, by study; arguments name studies and leave out the rest.

With ORTModule (``make bench-forecast``) each study is profiled at a small batch and measured at a large one, some
minutes each. A second line holds what is simulated from two of the profiled steps alone against all of them.

In plain PyTorch (``make bench-forecast-torch``) the forecast is made before the first step. It is held against the
bytes of live tensors in real steps under random configs, about a minute a study. Those are counted that differ by no
more than the number that is the script's loss.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from autorecompute.backends import registry
from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.backends.torch.fake.live import OUTSIDE
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.search.candidates import choices_of
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.tuning.searcher_factory import PROFILED_BATCH, informative_configs, survey
from autorecompute.units import MIB, format_bytes

STUDIES = Path(__file__).parents[1] / "studies"
TARGETS = {
    "bert_mlm": 64,
    "gpt2_clm": 64,
    "deberta_mlm": 48,
    "bloom_clm": 64,
    "vit_images": 128,
    "resnet_images": 128,
}
"""Batches at which the activations outweigh all else that the process holds."""

EXACT = 1e-4
"""Sums of float32 differ by less."""

MEDIAN_GOAL, WORST_GOAL = 0.03, 0.08
PLAIN_STUDIES = (*TARGETS, "llama_clm", "t5_seq2seq")
PLAIN_BATCH, PLAIN_CONFIGS, MOST_PLANS, DRAWS = 16, 40, 6, 10
LOSS_BYTES = 8
PLAIN_MEDIAN_GOAL, PLAIN_WORST_GOAL = 0.005, 0.03
CHANCE_CONFIGS, TELLING_CONFIGS = 8, 10
EFFORT = Effort(warmup=1, steps=1)


def choose_configs(space):
    """None and the presets, some plans alone and all but each, and sets drawn by chance; the same in every run."""
    chance = random.Random(0)
    telling = informative_configs(space)
    count = len(set(space.presets.values()))
    presets, rest = telling[:count], telling[count:]
    drawn = [
        Config.of(chance.sample(space.plans, chance.randint(2, max(2, len(space.plans) - 2))))
        for _ in range(CHANCE_CONFIGS if len(space.plans) > CHANCE_CONFIGS else 0)
        if len({plan.choices[0].site for plan in space.plans}) == len(space.plans)
    ]
    return list(dict.fromkeys([*presets, *chance.sample(rest, min(TELLING_CONFIGS, len(rest))), *drawn]))


def predict(job, logs, batch):
    """The forecast of each config at the batch, from steps at a small one."""
    with Bench(job, PROFILED_BATCH, logs) as bench:
        space = bench.detect().space
        small = survey(bench, choose_configs(space))
    found = OrtMemoryModel(space, small)
    report_simulation(found)
    return space, {config: found.forecast(config, {**found.dims, BATCH: batch}) for config in found.profiles}


def report_simulation(found):
    """Prints how far tensors alive at the peak are off that were simulated, from those of each profiled step."""
    configs = [config for config in found.profiles if found.space.is_mix(config)]
    simulator = found.simulator(found.dims, choices_of(found.space))
    simulated = simulator.simulate(simulator.matrix(configs)).peak_bytes
    errors = [
        abs(float(bytes_alive) / found.timeline(config).peak_bytes - 1)
        for config, bytes_alive in zip(configs, simulated, strict=True)
    ]
    exact = sum(error < EXACT for error in errors)
    print(
        f"{'':14} simulated from two steps: {exact} of {len(errors)} live peaks exact, "
        f"median {statistics.median(errors):.2%} off, worst {max(errors):.1%}"
    )


def measure(job, logs, batch, configs):
    """The peak of each config at the batch, where it could be measured."""
    with Bench(job, batch, logs) as bench:
        peaks = {config: bench.measure(config, EFFORT).peak_bytes for config in configs}
        return bench.detect().resting_bytes, {config: peak for config, peak in peaks.items() if peak}


def report(study, batch):
    """Prints one study's line, and gives back its errors as shares of the measured peaks."""
    job = Job(script=STUDIES / study / "train.py", arguments=("--device", "cpu", "--ortmodule"))
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        space, forecasts = predict(job, Path(first), batch)
        resting, peaks = measure(job, Path(second), batch, forecasts)
    errors = {config: forecasts[config].peak_bytes / peak - 1 for config, peak in peaks.items()}
    worst = max(errors, key=lambda config: abs(errors[config]))
    median = statistics.median(map(abs, errors.values()))
    least, most, rest = (size // MIB for size in (min(peaks.values()), max(peaks.values()), resting))
    print(
        f"{study:14} batch {PROFILED_BATCH} -> {batch:3}  {len(errors):2} configs of {least:4} to {most:4} MiB, "
        f"{rest} at rest  median {median:5.1%}  worst {errors[worst]:+6.1%} ({space.describe(worst)})",
        flush=True,
    )
    return list(errors.values())


def draw_configs(space, count=PLAIN_CONFIGS):
    """Presets, and mixes drawn by chance of plans at some or all of their occurrences; the same in every run.

    A small space has fewer than were asked for.
    """
    chance, configs = random.Random(0), dict.fromkeys(space.presets.values())
    for _ in range(DRAWS * count if space.plans else 0):
        config = Config()
        for plan in chance.sample(space.plans, chance.randint(1, min(MOST_PLANS, len(space.plans)))):
            config = space.with_plan(config, plan, chance.choice([None, chance.randint(1, max(plan.occurrences, 1))]))
        configs[space.normalize(config)] = None
    return list(configs)[:count]


def report_plain(study):
    """Prints the line of one study in plain PyTorch, and gives back its errors as shares of the measured bytes."""
    job = Job(script=STUDIES / study / "train.py", arguments=("--device", "cpu"))
    with tempfile.TemporaryDirectory() as logs, Bench(job, PLAIN_BATCH, Path(logs)) as bench:
        detection = bench.detect()
        memory = registry.backend_of(detection.versions).memory_of(detection)
        trials = {config: bench.measure(config, EFFORT) for config in draw_configs(detection.space)}
    return print_plain(study, memory, trials)


def print_plain(study, memory, trials):
    """Prints how far forecasts are off what trials have measured, and gives back the errors.

    What is missing by the same bytes in most configs is the script's own, as its labels are: it is told, and no error.
    """
    # A measured step begins as the optimizer's last one ends, when the gradients are alive that its own will replace.
    gradients = sum(part.change for part in memory.steps.parts if part.phase != OUTSIDE)
    live = {config: one.allocated_bytes + gradients for config, one in trials.items() if one.allocated_bytes}
    missing = {config: size - memory.forecast(config, memory.dims).live_bytes for config, size in live.items()}
    own = most_common if (most_common := statistics.mode(missing.values())) > LOSS_BYTES else 0
    errors = {config: (own - missing[config]) / size for config, size in live.items()}
    exact = sum(abs(size - own) <= LOSS_BYTES for size in missing.values())
    sizes, worst = list(map(abs, errors.values())), max(errors, key=lambda config: abs(errors[config]))
    print(
        f"{study:14} {len(errors):2} configs of {format_bytes(min(live.values())):8} to "
        f"{format_bytes(max(live.values())):8} live, {exact:2} to the byte{f' and {own} bytes' * bool(own)}  "
        f"median {statistics.median(sizes):6.2%}  worst {errors[worst]:+6.2%} ({', '.join(worst.texts)})",
        flush=True,
    )
    return list(errors.values())


def main():
    """All studies, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", action="store_true", help="in plain PyTorch")
    parser.add_argument("names", nargs="*", metavar="STUDY")
    args = parser.parse_args()
    if args.torch:
        errors = [error for name in args.names or PLAIN_STUDIES for error in report_plain(name)]
        goals = PLAIN_MEDIAN_GOAL, PLAIN_WORST_GOAL
    else:
        errors = [error for name in args.names or TARGETS for error in report(name, TARGETS[name])]
        goals = MEDIAN_GOAL, WORST_GOAL
    sizes = [abs(error) for error in errors]
    print(
        f"all: {len(errors)} configs, median {statistics.median(sizes):.2%} (goal {goals[0]:.1%}), "
        f"worst {max(sizes):.1%} (goal {goals[1]:.0%}), too low {sum(error < 0 for error in errors)} times"
    )


if __name__ == "__main__":
    main()
