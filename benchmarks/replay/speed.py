"""How many configs a second and core are simulated, on the recorded tables: ``python benchmarks/replay/speed.py``."""

from __future__ import annotations

import time

import numpy as np

from autorecompute.search.candidates import choices_of
from tables import SUFFIX, TABLES, load, packed_names

CONFIGS = 65536


def main():
    """Simulates random configs of each table."""
    for name in packed_names():
        table = load(TABLES / f"{name}{SUFFIX}")
        choices = choices_of(table.space)
        began = time.process_time()
        simulator = table.memory.simulator(table.dims, choices)
        made = time.process_time() - began
        switches = np.random.default_rng(0).integers(0, 2, (CONFIGS, len(choices))).astype(np.float32)
        began = time.process_time()
        simulator.simulate(switches)
        pace = CONFIGS / (time.process_time() - began)
        width = f"{name:14} {len(choices):2} choices"
        print(f"{width}: {pace:9,.0f} configs a second of processor time, {made:.2f} s before")


if __name__ == "__main__":
    main()
