"""Chooses which config to measure next. Knows nothing of processes and ORT."""

from __future__ import annotations

from autorecompute.search.greedy import GreedySearcher
from autorecompute.search.interface import Proposal, Searcher

__all__ = ["GreedySearcher", "Proposal", "Searcher"]
