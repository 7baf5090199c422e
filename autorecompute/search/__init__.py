"""Chooses which config to measure next. Knows nothing of processes and training systems."""

from __future__ import annotations

from autorecompute.search.fastest_batch import BatchChooser
from autorecompute.search.greedy import GreedySearcher
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.search.sampling import NAMES, OptunaSearcher, RecomputeSampler, make_searcher, require_installed
from autorecompute.search.searcher import GuidedSearcher, Limit, Prior, Proposal, Searcher, needs_in

__all__ = [
    "NAMES",
    "BatchChooser",
    "GreedySearcher",
    "GuidedSearcher",
    "Limit",
    "ModelSearcher",
    "OptunaSearcher",
    "Prior",
    "Proposal",
    "RecomputeSampler",
    "Searcher",
    "make_searcher",
    "needs_in",
    "require_installed",
]
