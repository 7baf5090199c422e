"""Tables of measured configs: from a recorder's journal to a small file, and back with what a search needs to know.

``python benchmarks/replay/tables.py NAME ...`` packs the journals of finished recordings.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.backends.ortmodule.memory import OrtMemoryModel
from autorecompute.memory import StepProfile, StepProfiles
from autorecompute.plans import Config, Space
from autorecompute.plans.savings import BATCH
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.training_job import Detection
from journal import read_lines

TABLES = Path(__file__).parents[2] / "studies" / "tables"
SUFFIX = ".json.gz"
COLUMNS = ("config", "round", "outcome", "peak_bytes", "seconds", "reference_seconds")
MODEL = ("study", "arguments", "batch", "is_sampled", "effort")
ANALYSIS = ("peak_bytes", "plans", "detection", "survey")


@dataclass(frozen=True, slots=True)
class Recording:
    """One measurement of one config.

    Attributes:
        outcome: How it ended, by the name of an ``Outcome``; no limit was held against it.
        peak_bytes: Largest memory held; ``None`` where it did not end well.
        seconds: Each timed step, in processor time of one thread; wall time in tables that are older.
        reference_seconds: Median step of the run without recompute, measured a few configs before.
        window: Recordings with one number share one measurement of the reference.
    """

    outcome: str
    peak_bytes: int | None
    seconds: tuple[float, ...]
    reference_seconds: float
    window: int


@dataclass(frozen=True)
class Table:
    """All that was recorded of one model.

    Attributes:
        name: The name of its file.
        plain: The file's content, as the schema has it.
    """

    name: str
    plain: dict

    @cached_property
    def detection(self):
        """What the worker found; its dimensions are those of the first batch."""
        return codec.from_plain(self.plain["detection"], Detection)

    @cached_property
    def space(self):
        """The plans whose configs were recorded; plans that save next to nothing are left out."""
        wanted, whole = set(self.plain["plans"]), self.detection.space
        plans = tuple(plan for plan in whole.plans if plan.id in wanted)
        known = {(choice.site, choice.option) for plan in plans for choice in plan.choices}
        recorded = {tuple(config.texts) for config in self._configs}
        presets = {
            name: preset if name in whole.opaque_presets else _part(preset, known)
            for name, preset in whole.own_presets.items()
            if name not in whole.opaque_presets or tuple(preset.texts) in recorded
        }
        return Space(plans=plans, own_presets=presets, covers=whole.covers)

    @property
    def is_torch(self):
        """Whether it was recorded in plain PyTorch."""
        return self.plain["survey"] is None

    @property
    def dims(self):
        """The dimensions at which the configs were measured."""
        return {**self.detection.dims, BATCH: self.plain["batch"]}

    @cached_property
    def memory(self):
        """What was known of memory before the first trial: from profiled small steps, or from fake ones."""
        if self.is_torch:
            return registry.controller("torch").memory_of(self.detection)
        plain = self.plain["survey"]
        profiles = {
            Config.parse(entry["config"]): codec.from_plain(entry["profile"], StepProfile)
            for entry in plain["profiles"]
        }
        small = StepProfiles(peak_bytes=plain["peak_bytes"], held_bytes=plain["held_bytes"], profiles=profiles)
        return OrtMemoryModel(self.detection.space, small)

    @cached_property
    def recordings(self):
        """All recordings of each measured config of the space; that of all plans, negligible ones too, is not of it."""
        found = {}
        configs, windows = self._configs, _windows(self.plain["measured"]["reference_seconds"])
        for values in zip(*(self.plain["measured"][name] for name in COLUMNS), windows, strict=True):
            config, _, outcome, peak_bytes, seconds, reference_seconds, window = values
            recording = Recording(outcome, peak_bytes, tuple(seconds), reference_seconds, window)
            if self.space.is_mix(configs[config]) or configs[config] in self.space.opaque_presets.values():
                found.setdefault(configs[config], []).append(recording)
        return found

    @cached_property
    def missing(self):
        """The configs of the space that were not recorded: none, but in a table of a sample."""
        return frozenset(self.candidates.places) - frozenset(self.recordings)

    @cached_property
    def simulator(self):
        """What tells the peak of any config of the space."""
        return self.memory.simulator(self.dims, choices_of(self.space))

    @cached_property
    def candidates(self):
        """The configs that a search looks at."""
        return Candidates(self.space, self.simulator)

    @cached_property
    def _configs(self):
        choices = self.plain["choices"]
        return [Config.parse(choices[number] for number in numbers) for numbers in self.plain["configs"]]


def _part(config, known):
    """What a config has of these sites and options, as often as it has it."""
    return Config(frozenset(choice for choice in config.choices if (choice.site, choice.option) in known))


def _windows(reference_seconds):
    """Numbers the runs of equal references: equal to the microsecond, they are one measurement."""
    runs = itertools.groupby(reference_seconds)
    return [number for number, (_, run) in enumerate(runs) for _ in run]


def read_journal(file):
    """The content of a table from a journal."""
    head, *measured = read_lines(file)
    keys = {key: number for number, key in enumerate(head["configs"])}
    choices = sorted({choice for texts in head["configs"].values() for choice in texts})
    numbers = {choice: number for number, choice in enumerate(choices)}
    recorder = "record.py" if head["survey"] else "record_torch.py"
    columns = {name: [row[name] for row in measured] for name in COLUMNS}
    return {
        **{name: head[name] for name in (*MODEL, *ANALYSIS)},
        "threads": int(head["threads"]),
        "provenance": {
            "recorded": dt.datetime.fromtimestamp(file.stat().st_mtime, dt.UTC).date().isoformat(),
            "command": f"python benchmarks/replay/{recorder} {file.stem}",
            "device": head["detection"]["device"],
            "versions": head["detection"]["versions"],
        },
        "choices": choices,
        "configs": [[numbers[choice] for choice in texts] for texts in head["configs"].values()],
        "measured": {**columns, "config": [keys[key] for key in columns["config"]]},
    }


def validate(plain):
    """Holds the content of a table to the schema.

    Raises:
        jsonschema.ValidationError: it is no table.
    """
    import jsonschema

    schema = json.loads((TABLES / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(plain, schema)


def load(file):
    """The table in a packed file, or in the journal of a recording that has not ended."""
    if file.name.endswith(SUFFIX):
        plain = json.loads(gzip.decompress(file.read_bytes()))
        validate(plain)
        return Table(file.name.removesuffix(SUFFIX), plain)
    return Table(file.stem, read_journal(file))


def save(table, folder=TABLES):
    """Writes a table; the same table gives the same bytes."""
    validate(table.plain)
    text = json.dumps(table.plain, separators=(",", ":"), sort_keys=True)
    (folder / f"{table.name}{SUFFIX}").write_bytes(gzip.compress(text.encode(), mtime=0))


def packed_names(folder=TABLES):
    """The tables there are, by name."""
    return sorted(file.name.removesuffix(SUFFIX) for file in folder.glob(f"*{SUFFIX}"))


def main():
    """Packs journals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", help="tables whose recording has ended")
    for name in parser.parse_args().names:
        table = load(TABLES / f"{name}.journal")
        missing = len(table.plain["configs"]) - len(set(table.plain["measured"]["config"]))
        if missing:
            parser.error(f"{name}: {missing} configs were not measured yet; record on first")
        save(table)


if __name__ == "__main__":
    main()
