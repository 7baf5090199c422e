"""How many configs a second and core are simulated, on the recorded tables: ``python benchmarks/replay/speed.py``."""

from __future__ import annotations

import time

import numpy as np

from autorecompute.memory import Simulator
from autorecompute.search.candidates import rows_of
from tables import SUFFIX, TABLES, load, packed_names

CONFIGS = 65536


def main():
    """Simulates random configs of each table."""
    for name in packed_names():
        table = load(TABLES / f"{name}{SUFFIX}")
        rows = rows_of(table.space)
        began = time.process_time()
        simulator = Simulator(table.survey.blueprint, table.dims, rows)
        made = time.process_time() - began
        switches = np.random.default_rng(0).integers(0, 2, (CONFIGS, len(rows))).astype(np.float32)
        began = time.process_time()
        simulator.simulate(switches)
        pace = CONFIGS / (time.process_time() - began)
        print(f"{name:14} {len(rows):2} switches: {pace:9,.0f} configs a second of processor time, {made:.2f} s before")


if __name__ == "__main__":
    main()
