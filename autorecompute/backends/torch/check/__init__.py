"""Comparisons of a training with recompute to the same training without."""
