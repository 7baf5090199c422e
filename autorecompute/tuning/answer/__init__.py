"""From trials to an answer: finalists raced, the winner confirmed, and held against the rival without recompute."""
