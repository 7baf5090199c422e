"""How often noise makes the race choose a wrong winner, and what it costs to be sure: ``python benchmarks/noise.py``.

The real race runs over a bench that replays step times: recorded ones, and synthetic weather (jitter, spikes, drift and
swings up to 3x) over configs whose true step times are known. It is made hard: the finalists follow each other at the
stated difference (0, 5, 10 and 15 % for 5 %), and the slower ones have the lower peaks, so that every mistaken tie is a
wrong winner too. A winner is wrong where it is slower than the fastest by more than a tie, and surely wrong where the
race called itself decided besides.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from autorecompute.figures import RaceEnd
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.training_job import Device
from autorecompute.trials.job import Effort
from autorecompute.tuning.race import CONFIDENCE, FINALISTS, LOOKS, TIE, Finalist, race

RECORDED = json.loads(Path(__file__).with_name("recorded_steps.json").read_text(encoding="utf-8"))
CONFIGS = [Config.parse([f"Plan{number}+:1:-1"]) for number in range(FINALISTS)]
LARGEST_SWING = 3.0
HALF = math.sqrt(LARGEST_SWING)
"""Drift and swings of this size reach the largest swing together."""

FORMER_ROUNDS = 3
TRIAL = Effort()


def quiet(chance):
    """A machine with nothing else to do: every step differs by a percent or so."""
    while True:
        yield chance.lognormvariate(0, 0.01)


def replay(chance, name):
    """A recording again and again, from a random place."""
    steps = RECORDED[name]
    median, place = statistics.median(steps), chance.randrange(len(steps))
    return (seconds / median for seconds in itertools.islice(itertools.cycle(steps), place, None))


def spikes(chance):
    """One step in twenty takes up to three times as long."""
    while True:
        yield chance.uniform(1.5, LARGEST_SWING) if chance.random() < 0.05 else 1.0


def drift(chance, largest=LARGEST_SWING):
    """The machine slows down by a factor and recovers, over some hundreds of steps."""
    period, phase = chance.uniform(200, 600), chance.uniform(0, 2 * math.pi)
    for step in itertools.count():
        yield largest ** (0.5 + 0.5 * math.sin(2 * math.pi * step / period + phase))


def swings(chance, largest=LARGEST_SWING):
    """Another job comes or goes every forty steps or so, and the pace jumps by up to a factor."""
    while True:
        pace = largest ** chance.random()
        for _ in range(1 + int(chance.expovariate(1 / 40))):
            yield pace


def jitter_with(*weathers):
    """The recorded jitter, and the weathers on top of it."""
    return lambda chance: map(
        math.prod, zip(replay(chance, "jitter"), *(make(chance) for make in weathers), strict=True)
    )


WEATHERS = {
    "quiet (1 % jitter)": quiet,
    "recorded jitter": jitter_with(),
    "and spikes to 3x": jitter_with(spikes),
    "and drift to 3x": jitter_with(drift),
    "and swings to 3x": jitter_with(swings),
    "and all, to 3x": jitter_with(spikes, partial(drift, largest=HALF), partial(swings, largest=HALF)),
    "recorded, busy (8x)": lambda chance: replay(chance, "busy"),
}


class ReplayBench:
    """Measures what the weather makes of the true step times."""

    def __init__(self, true_seconds, weather):
        self.true_seconds, self.weather, self.steps = true_seconds, weather, 0

    def detect(self):
        """A card: each config has its steps in a row, as the recorded ones were made."""
        return SimpleNamespace(device=Device(kind="cuda", name="replayed", total_bytes=0))

    def measure(self, config, effort):
        """The timed steps; those of the warm-up pass like the time of the swap."""
        self.steps += effort.warmup + effort.steps
        paces = list(itertools.islice(self.weather, 1 + effort.warmup + effort.steps))[-effort.steps :]
        seconds = self.true_seconds.get(config, 0.8)
        return Measurement(
            outcome=Outcome.OK, peak_bytes=1, step_seconds=tuple(seconds * pace for pace in paces), samples=1, batch=1
        )


def run_race(difference, make_weather, seed):
    """One race: whether its winner is wrong, that of three fixed rounds too, and what it took."""
    chance = random.Random(seed)
    seconds = [1.0 + number * difference for number in range(FINALISTS)]
    # The fastest stands at a random place, and has the highest peak.
    bench = ReplayBench(dict(zip(CONFIGS, seconds, strict=True)), make_weather(chance))
    entries = [_entry(bench, number, peak_bytes=FINALISTS - number) for number in range(FINALISTS)]
    chance.shuffle(entries)
    bench.steps = 0
    raced = race(bench, entries, has_reference=True)
    longest = 1 / (1 - TIE)
    is_wrong = seconds[raced.standings[0].trial.number] > longest
    return {
        "wrong": is_wrong,
        "surely_wrong": is_wrong and raced.ranking.end is not RaceEnd.UNDECIDED,
        "formerly_wrong": seconds[_former_winner(raced.standings).trial.number] > longest,
        "undecided": raced.ranking.end is RaceEnd.UNDECIDED,
        "rounds": raced.ranking.rounds,
        "steps": bench.steps,
    }


def _entry(bench, number, peak_bytes):
    """A finalist with its trial beside the reference, which is the first round."""
    reference, found = (bench.measure(config, TRIAL) for config in (Config(), CONFIGS[number]))
    trial = Trial(
        number=number,
        config=CONFIGS[number],
        description=f"finalist {number}",
        reason="",
        measurement=replace(found, peak_bytes=peak_bytes),
        reference_seconds=reference.median_step_seconds,
    )
    return Finalist(trial=trial)


def _former_winner(standings):
    """Who wins by the medians of three rounds, as a race of fixed length would say."""

    def speed(entry):
        return statistics.median(entry.ratios[:FORMER_ROUNDS])

    fastest = max(map(speed, standings))
    return min((entry for entry in standings if speed(entry) >= fastest * (1 - TIE)), key=lambda e: e.peak_bytes)


def main():
    """Prints a line for each weather and difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--races", type=int, default=150, help="races a line (default 150)")
    parser.add_argument("--differences", type=float, nargs="+", default=[0.05, 0.10, 0.02, 0.0])
    args = parser.parse_args()
    print(f"{args.races} races a line, {FINALISTS} finalists, at most {LOOKS[-1]} rounds, confidence {CONFIDENCE:.0%}")
    print(
        "weather              difference   wrong  surely  3 rounds  undecided  rounds: median  9 in 10  steps  / quiet"
    )
    for difference in args.differences:
        quiet_steps = None
        for name, make_weather in WEATHERS.items():
            races = [run_race(difference, make_weather, seed) for seed in range(args.races)]
            share = {key: statistics.fmean(one[key] for one in races) for key in races[0]}
            rounds = sorted(one["rounds"] for one in races)
            quiet_steps = quiet_steps or share["steps"]
            print(
                f"{name:<20} {difference:>10.0%} {share['wrong']:>7.1%} {share['surely_wrong']:>7.1%} "
                f"{share['formerly_wrong']:>9.1%} {share['undecided']:>10.1%} "
                f"{statistics.median_low(rounds):>15} {rounds[len(rounds) * 9 // 10]:>8} "
                f"{share['steps']:>6.0f} {share['steps'] / quiet_steps:>7.1f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
