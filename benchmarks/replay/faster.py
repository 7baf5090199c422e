"""How many configs of a table are faster than no recompute, by what all its recordings say together.

python benchmarks/replay/faster.py bert_mlm gpt2_clm vit_images bloom_clm
"""

from __future__ import annotations

import sys

from tables import SUFFIX, TABLES, load
from truth import fit_ratios


def main(names):
    """A line for each table."""
    for name in names:
        ratios = [ratio for config, ratio in fit_ratios(load(TABLES / f"{name}{SUFFIX}")).items() if not config.is_none]
        faster = sum(ratio < 1 for ratio in ratios)
        print(f"{name}: {len(ratios)} configs, {faster} faster than no recompute, the fastest {1 / min(ratios):.3f}x")


if __name__ == "__main__":
    main(sys.argv[1:])
