"""Recompute in plain PyTorch: what a model offers, how it is switched on, and what memory a step needs with it."""
